"""Two folders of files, an old and a new one, beside others that a user put there."""

from pathlib import Path

from standfast.files.disk import LOCAL, Disk
from standfast.files.folder_swap.swap import replacing_folder
from standfast.files.lines import replace_lines
from tests.files.states import leftovers
from tests.kit.power import Tree, read_tree, write_tree

LIST = "files.json"
"""The file that says which are ours."""
OLD: Tree = {
    "config.json": b"old\n",
    LIST: b"config.json model.bin gone.json\n",
    "model.bin": b"old " * 300 + b"\n",
    "gone.json": b"old\n",
}
NEW: Tree = {
    "config.json": b"new\n",
    LIST: b"config.json model.bin\n",
    "model.bin": b"new " * 200 + b"\n",
}
OTHERS: Tree = {"README.md": b"mine", "notes.txt": b"mine too"}


def own_files(folder: Path) -> list[str]:
    try:
        return [*(folder / LIST).read_text().split(), LIST]
    except OSError:
        return []


def in_the_way(name: str) -> bool:
    return name.endswith(".bin")


def save(path: Path, disk: Disk = LOCAL) -> None:
    with replacing_folder(path, disk, own_files, in_the_way) as aside:
        for name, content in NEW.items():
            replace_lines(aside / name, [content.removesuffix(b"\n")], disk)


def prepare(path: Path, is_there: bool = True) -> Path:
    """A folder as an earlier save and a user left it, or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_there:
        write_tree(OLD | OTHERS, path)
    return path


def is_old(path: Path) -> bool:
    return read_tree(path) == OLD | OTHERS


def is_new(path: Path, was_there: bool = True) -> bool:
    return read_tree(path) == (NEW | OTHERS if was_there else NEW)


def is_new_alone(path: Path, was_there: bool = True) -> bool:
    """The new folder, with nothing left beside it."""
    return is_new(path, was_there) and leftovers(path) == []


class PlainDisk(Disk):
    """A file system that has neither the exchange nor hard links."""

    def exchange(self, source: Path, target: Path) -> None:
        raise OSError(22, "Invalid argument")

    def link(self, source: Path, target: Path) -> None:
        raise OSError(95, "Operation not supported")


DISKS = {"exchange": Disk, "two renames": PlainDisk}
