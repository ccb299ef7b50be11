"""`standfast pack` and `standfast unpack`: a model package as one file, and back."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from standfast.display.output import count_text, print_json, progress_bar, say, size_text
from standfast.errors import AlreadyExists
from standfast.packages.remote.places import check_are_here


def pack_folder(given: str, target: str | None, *, replace: bool, as_json: bool) -> None:
    """Pack and print what was written."""
    from standfast.packages.archive import archive_path, pack

    check_are_here(given, target)
    folder = Path(given)
    path = archive_path(folder, target)
    if not replace and os.path.lexists(path):
        raise AlreadyExists(errno.EEXIST, f"{path} is there already: --yes replaces it")
    with progress_bar(f"packing {folder}", sum(_sizes(folder))) as report:
        pack(folder, path, progress=report)
    _print("packed", folder, folder, path, path, as_json)


def unpack_archive(given: str, into: str, *, as_json: bool) -> None:
    """Unpack and print what was written."""
    from standfast.packages.archive import unpack

    check_are_here(given, into)
    archive = Path(given)
    total = archive.stat().st_size if archive.is_file() else 0
    with progress_bar(f"unpacking {archive}", total) as report:
        folder = unpack(archive, into, progress=report)
    _print("unpacked", archive, folder, archive, folder, as_json)


def _print(
    done: str, source: Path, folder: Path, archive: Path, target: Path, as_json: bool
) -> None:
    sizes = _sizes(folder)
    packed = archive.stat().st_size
    if as_json:
        print_json(
            {
                "source": str(source),
                "target": str(target),
                "files": len(sizes),
                "bytes": sum(sizes),
                "archive_bytes": packed,
            }
        )
        return
    say(
        (f"{done:<12}", "green"),
        f"{target}: {count_text(len(sizes), 'file')}, {size_text(sum(sizes))} in an archive of "
        f"{size_text(packed)}",
    )


def _sizes(folder: Path) -> list[int]:
    """The sizes of the files in a folder, if there is one."""
    if not folder.is_dir():
        return []
    return [entry.stat().st_size for entry in folder.iterdir() if entry.is_file()]
