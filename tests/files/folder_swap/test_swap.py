"""A folder is replaced whole, whatever happens, and what a user put into it stays."""

import errno
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from standfast import errors
from standfast.files.atomic import aside_prefix
from standfast.files.disk import LOCAL, Disk
from standfast.files.folder_swap.leftovers import NEW as NEW_SUFFIX
from standfast.files.folder_swap.leftovers import OLD as OLD_SUFFIX
from standfast.files.folder_swap.swap import making_folder, replacing_folder
from standfast.files.lines import replace_bytes
from tests.files.folder_swap.folder_states import (
    DISKS,
    LIST,
    NEW,
    OLD,
    OTHERS,
    PlainDisk,
    in_the_way,
    is_new,
    is_new_alone,
    is_old,
    own_files,
    prepare,
    save,
)
from tests.files.states import failing, leftovers
from tests.kit.disk_faults import FaultyDisk, raising
from tests.kit.power import (
    LoggingDisk,
    Operation,
    Tree,
    read_tree,
    trees_after_power_cut,
    write_tree,
)
from tests.kit.seams import Seams

PREFIX = aside_prefix(Path("model"))
"""Of what is written beside a folder `model`."""


def test_a_folder_is_made_where_nothing_is_or_an_empty_one(tmp_path):
    for name in ("missing", "empty"):
        path = tmp_path / name / "model"
        path.parent.mkdir()
        if name == "empty":
            path.mkdir(mode=0o700)
        save(path)
        assert is_new_alone(path, was_there=False)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("error", "expected", "named"),
    [
        (lambda aside: KeyError("injected"), KeyError, "injected"),
        (lambda at: errors.UnreadableFile(5, f"{at}/a"), errors.UnreadableFile, "model/a"),
        (lambda aside: OSError(errno.ENOSPC, "No space left"), errors.WriteFailed, "model"),
    ],
)
def test_if_the_body_raises_all_is_as_it_was(error, expected, named, tmp_path):
    def fail(aside: Path) -> None:
        (aside / "config.json").write_bytes(b"half")
        raise error(aside)

    path = prepare(tmp_path / "model")
    with (
        pytest.raises(expected, match=named) as caught,
        replacing_folder(path, LOCAL, own_files) as aside,
    ):
        fail(aside)
    assert aside.name not in str(caught.value)
    assert is_old(path)
    assert leftovers(path) == []


def test_places_where_no_folder_can_be_written_are_named(tmp_path, seams):
    with pytest.raises(errors.MissingFile, match="/nowhere"):
        save(tmp_path / "nowhere" / "model")
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    for place in (tmp_path / "file", tmp_path / "loop", Path("a\0b"), Path("/")):
        with pytest.raises(errors.WriteFailed, match=place.name[:1] or "/"):
            save(place)
    path = prepare(tmp_path / "model")
    seams.system(os, access=lambda access, path, mode: False)
    with pytest.raises(errors.WriteFailed, match="model"):
        save(path)
    assert is_old(path)
    assert sorted(leftovers(path)) == ["file", "loop"]


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("is_there", [True, False], ids=["over a folder", "as a new folder"])
@pytest.mark.parametrize(
    "fault", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()], ids=["EIO", "Ctrl-C"]
)
def test_a_save_that_fails_leaves_the_old_folder_or_the_new_one(fault, is_there, disk, tmp_path):
    kind = type("Faulty", (FaultyDisk, DISKS[disk]), {})
    struck = set()
    for at in range(1, 200):
        path = prepare(tmp_path / str(at) / "model", is_there)
        faulty = kind(at, raising(fault))
        try:
            save(path, faulty)
        except (errors.WriteFailed, KeyboardInterrupt):
            assert faulty.struck
            assert (is_new(path, is_there) or is_old(path)) if path.exists() else not is_there
        else:
            assert is_new(path, is_there)
            if faulty.struck is None:
                break
            # Nothing but cleaning up can fail without a word.
            assert faulty.struck in ("remove", "remove_folder", "sync_folder")
        struck.add(faulty.struck)
        save(path)
        assert is_new_alone(path, is_there)
    expected = {"abandoned_folders", "make_folder", "lock_folder", "create", "write", "sync"}
    expected |= {"rename", "sync_folder", "close"}
    if is_there:
        expected |= {"set_mode", "link", "exchange", "remove", "remove_folder"}
    assert expected <= struck


@pytest.mark.parametrize("disk", DISKS)
def test_a_save_killed_anywhere_leaves_the_old_folder_or_the_new_one(disk, tmp_path):
    child = [sys.executable, "-m", "tests.files.killed", str(tmp_path), disk]
    done = subprocess.run(child, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *killed, last = map(int, done.stdout.split())
    assert set(killed) == {-9}
    assert last == 0, done.stderr
    orphans = missing = 0
    for at in range(1, len(killed) + 1):
        path = tmp_path / str(at) / "model"
        if path.exists():
            assert is_old(path) or is_new(path)
        else:
            missing += 1
        orphans += len(leftovers(path))
        save(path, DISKS[disk]())
        assert is_new_alone(path)
    assert orphans > 10, "no kill left anything behind: were they early enough?"
    # Between two renames nothing is there, and the next save has put it back.
    assert missing == (disk == "two renames")


def test_only_abandoned_folders_of_this_path_are_cleaned_away(tmp_path):
    path = prepare(tmp_path / "model")
    leftover = f"{PREFIX}00000000{NEW_SUFFIX}"
    others = [f".0123456789abcdef.00000000{suffix}" for suffix in (NEW_SUFFIX, OLD_SUFFIX)]
    others += [f"{PREFIX}00000000.standfast", "model.new"]
    for name in [leftover, *others]:
        write_tree({"config.json": b"half", "README.md": b"half"}, tmp_path / name)
    file, link = (f"{PREFIX}{digit * 8}{NEW_SUFFIX}" for digit in "12")
    (tmp_path / file).write_bytes(b"a file")
    (tmp_path / link).symlink_to(path)
    save(path)
    assert is_new(path)
    assert sorted(leftovers(path)) == sorted([*others, file, link])
    assert all(len(os.listdir(tmp_path / name)) == 2 for name in others)


def test_a_file_that_is_in_an_old_folder_alone_is_never_removed(tmp_path):
    path = prepare(tmp_path / "model")
    leftover = tmp_path / f"{PREFIX}00000000{OLD_SUFFIX}"
    only = {"only.txt": b"here", "notes.txt": b"another version", "folder/file": b"x"}
    write_tree(OLD | OTHERS | only, leftover)
    save(path)
    assert is_new(path)
    assert read_tree(leftover) == only


@pytest.mark.parametrize("there", [None, {}, OTHERS], ids=["nothing", "empty", "others"])
def test_a_folder_that_was_left_aside_is_put_back(there, tmp_path):
    path = tmp_path / "model"
    leftover = tmp_path / f"{PREFIX}00000000{OLD_SUFFIX}"
    write_tree(OLD | OTHERS, leftover)
    if there is not None:
        path.mkdir()
        write_tree(there, path)
    with pytest.raises(KeyError), replacing_folder(path, LOCAL, own_files):
        raise KeyError
    assert is_old(leftover if there else path)
    if there:
        assert read_tree(path) == OTHERS
    else:
        save(path)
        assert is_new_alone(path)


def test_without_a_durable_exchange_the_old_folder_stays(tmp_path, seams):
    path = prepare(tmp_path / "model")

    def sync_folder(sync: Any, folder: Path) -> None:
        if folder == tmp_path:
            raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(errors.WriteFailed) as caught:
        save(path, seams.disk(Disk(), sync_folder=sync_folder))
    assert caught.value.errno == errno.EIO
    assert is_new(path)
    (left,) = leftovers(path)
    assert is_old(tmp_path / left)
    save(path)
    assert leftovers(path) == []


def test_a_folder_that_a_living_process_writes_is_not_cleaned_away(tmp_path):
    path = prepare(tmp_path / "model")
    with replacing_folder(path, LOCAL, own_files) as aside:
        (aside / "first.json").write_bytes(b"1")
        save(path)
        assert is_new(path)
        assert leftovers(path) == [aside.name]
    assert read_tree(path) == OTHERS | {"first.json": b"1"}  # the last one to finish
    assert leftovers(path) == []


def test_a_folder_that_a_cleaner_takes_away_is_made_again(tmp_path, seams):
    path = prepare(tmp_path / "model")
    turns = iter([Path.rmdir])

    def lock_folder(lock: Any, path: Path) -> int:
        for taken in turns:
            taken(path)
        return int(lock(path))

    save(path, seams.disk(lock_folder=lock_folder))
    assert next(turns, None) is None
    assert is_new_alone(path)


def before_exchange(seams: Seams, act: Callable[[], object], disk: Disk | None = None) -> Disk:
    """A disk on which something happens just before the folders are exchanged."""

    def exchange(call: Any, source: Path, target: Path) -> None:
        act()
        call(source, target)

    return seams.disk(disk, exchange=exchange)


@pytest.mark.parametrize("kind", DISKS)
def test_files_that_come_late_are_brought_over(kind, tmp_path, seams):
    path = prepare(tmp_path / "model")
    late = {"late.txt": b"late", "notes.txt": b"edited"}
    save(path, before_exchange(seams, lambda: write_tree(late, path), DISKS[kind]()))
    assert read_tree(path) == NEW | OTHERS | late
    assert leftovers(path) == []


def test_threads_that_replace_one_folder_at_once_leave_one_whole_folder(tmp_path):
    path = prepare(tmp_path / "model")
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda _: [save(path) for _ in range(5)], range(3)))
    assert is_new(path)
    save(path)
    assert leftovers(path) == []


def test_a_new_folder_takes_its_place_only_where_nothing_is(tmp_path):
    path = tmp_path / "model"
    with making_folder(path, LOCAL) as aside:
        (aside / "any.txt").write_bytes(b"1")
    assert read_tree(path) == {"any.txt": b"1"}
    with pytest.raises(errors.AlreadyExists), making_folder(path, LOCAL):
        pytest.fail("it was begun")
    late = tmp_path / "late"
    with pytest.raises(errors.AlreadyExists), making_folder(late, LOCAL):
        write_tree(OLD, late)
    assert read_tree(late) == OLD
    assert sorted(leftovers(path)) == ["late"]


def test_a_copy_is_made_only_where_a_link_cannot_be(tmp_path, seams):
    path = prepare(tmp_path / "model")
    big = os.urandom((2 << 20) + 77)
    (path / "big.dat").write_bytes(big)
    save(path, PlainDisk())
    assert (path / "big.dat").read_bytes() == big
    with pytest.raises(errors.WriteFailed) as caught:
        save(path, seams.disk(Disk(), link=failing(errno.ENOSPC)))
    assert caught.value.errno == errno.ENOSPC
    assert leftovers(path) == []


PUT: dict[str, Callable[[Path], object]] = {
    "checkpoints": Path.mkdir,
    "model.json": Path.mkdir,
    "weights.bin": lambda path: path.symlink_to("/dev/null"),
    "pipe": os.mkfifo,
}


@pytest.mark.parametrize("name", PUT)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_is_not_a_file_is_refused_and_stays(name, when, tmp_path):
    path = prepare(tmp_path / "model")
    begun: Any = PUT[name]
    if when == "before":
        begun(path / name)
        begun = pytest.fail
    with pytest.raises(errors.AlreadyExists, match=name), replacing_folder(path, LOCAL, own_files):
        begun(path / name)
    assert len(os.listdir(path)) == len(OLD | OTHERS) + 1
    assert leftovers(path) == []


class Save:
    """A save of NEW, logged."""

    def __init__(self, folder: Path, is_there: bool = True) -> None:
        path = prepare(folder / "model", is_there)
        self.before = read_tree(folder)
        self.states = [NEW | OTHERS, OLD | OTHERS] if is_there else [NEW, {}]
        disk = LoggingDisk(folder)
        save(path, disk)
        self.log = disk.log

    def violations(self, log: list[Operation]) -> int:
        """How many states after a power cut are neither the old folder nor the new one."""
        return sum(
            _model(tree) not in (self.states[:1] if is_over else self.states)
            for is_over, tree in trees_after_power_cut(log, self.before)
        )


def _model(tree: Tree) -> Tree:
    below = {name.removeprefix("model/"): tree[name] for name in tree if name.startswith("model/")}
    return {name: content for name, content in below.items() if name}


@pytest.mark.parametrize("is_there", [True, False], ids=["over a folder", "as a new folder"])
def test_a_power_cut_at_any_moment_leaves_the_old_folder_or_the_new_one(is_there, tmp_path):
    logged = Save(tmp_path, is_there)
    assert logged.violations(logged.log) == 0


def test_without_one_of_the_syncs_a_power_cut_would_break_the_folder(tmp_path):
    logged = Save(tmp_path)
    log, kinds = logged.log, [(each.kind, each.name) for each in logged.log]
    above = kinds.index(("sync_folder", ""))
    exchange = [kind for kind, _ in kinds].index("exchange")
    new = max(i for i in range(exchange) if kinds[i][0] == "sync_folder")
    assert logged.violations([*log[:new], *log[new + 1 :]]) > 0
    assert logged.violations([*log[:above], *log[above + 1 :], log[above]]) > 0


def test_a_file_that_is_not_ours_is_not_overwritten(tmp_path):
    path = prepare(tmp_path / "model")
    with (
        pytest.raises(errors.AlreadyExists, match=r"README\.md"),
        replacing_folder(path, LOCAL, own_files) as aside,
    ):
        (aside / "README.md").write_bytes(b"ours")
    assert is_old(path)
    (path / "theirs.bin").write_bytes(b"theirs")  # in the way, found before anything is written
    with (
        pytest.raises(errors.AlreadyExists, match=r"theirs\.bin"),
        replacing_folder(path, LOCAL, own_files, in_the_way),
    ):
        pytest.fail("it was begun")
    assert read_tree(path) == OLD | OTHERS | {"theirs.bin": b"theirs"}
    assert leftovers(path) == []


def test_what_is_ours_is_told_by_the_folder_and_not_by_names(tmp_path):
    path = tmp_path / "model"
    theirs = {"gone.json": b"mine", "other.json": b"mine"}
    write_tree(theirs, path)
    save(path)
    assert read_tree(path) == NEW | theirs
    shutil.rmtree(path)
    prepare(path)  # with a list of files that cannot be
    (path / LIST).write_bytes(b"config.json model.bin gone.json nul\0nul .. . nowhere\n")
    save(path)
    assert is_new_alone(path)


def test_a_folder_that_is_exchanged_while_it_is_listed_is_listed_again(tmp_path):
    path = prepare(tmp_path / "model")
    (path / LIST).write_bytes(b"config.json model.bin gone.json old.bin\n")
    (path / "old.bin").write_bytes(b"only of the old one")
    turns = iter([save])

    def own_files_a_moment_later(folder: Path) -> list[str]:
        for meanwhile in turns:
            meanwhile(path)
        return own_files(folder)

    with replacing_folder(path, LOCAL, own_files_a_moment_later, in_the_way) as aside:
        (aside / "first.json").write_bytes(b"1")
    assert read_tree(path) == OTHERS | {"first.json": b"1"}
    assert leftovers(path) == []


@pytest.mark.parametrize("below", ["", "deep/deeper"])
@pytest.mark.parametrize("is_empty", [True, False])
def test_the_current_folder_is_not_replaced(below, is_empty, tmp_path, monkeypatch):
    path = tmp_path / "model"
    (path / below).mkdir(parents=True)
    if not is_empty:
        prepare(path)
    before = read_tree(path)
    monkeypatch.chdir(path / below)
    for name in (".", path):
        with pytest.raises(errors.WriteFailed, match="model"):
            save(Path(name) if not below else path)
    assert Path.cwd() == path / below
    assert read_tree(path) == before
    assert leftovers(path) == []
    shutil.rmtree(path)  # a program whose folder is gone can save
    save(path)
    assert is_new(path, was_there=False)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that is a mount")
def test_a_mount_is_found_before_anything_is_written():
    with pytest.raises(errors.WriteFailed, match="/proc"):
        save(Path("/proc"))


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EBUSY])
@pytest.mark.parametrize("kind", DISKS)
def test_a_folder_that_cannot_be_moved_stays_and_is_named(kind, code, tmp_path, seams):
    path = prepare(tmp_path / "model")

    def rename(call: Any, source: Path, target: Path) -> None:
        if source == path:
            raise OSError(code, os.strerror(code))
        call(source, target)

    disk = seams.disk(DISKS[kind](), rename=rename)
    if kind == "exchange":
        seams.disk(exchange=failing(code))
    with pytest.raises(errors.WriteFailed, match="container") as caught:
        save(path, disk)
    assert caught.value.errno == code
    assert is_old(path)
    assert leftovers(path) == []


@pytest.mark.parametrize("disk", DISKS)
def test_a_file_that_replaces_another_keeps_its_mode(disk, tmp_path):
    path = prepare(tmp_path / "model")
    path.chmod(0o755)
    (path / "config.json").chmod(0o600)
    (path / "model.bin").chmod(0o640)
    with replacing_folder(path, DISKS[disk](), own_files) as aside:
        assert stat.S_IMODE(aside.stat().st_mode) == 0o700, "others could read it meanwhile"
        write_tree(NEW | {"added.json": b""}, aside)
        usual = stat.S_IMODE((aside / "added.json").stat().st_mode)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()}
    assert (modes["config.json"], modes["model.bin"]) == (0o600, 0o640)
    assert (modes["added.json"], modes[LIST]) == (usual, usual)
    assert stat.S_IMODE(path.stat().st_mode) == 0o755


def crowded(seams: Seams, path: Path, others: int, act: Callable[[Path], object]) -> Disk:
    """No exchange, and others that save to the same path whenever it is free for a moment."""
    left = iter(range(others))

    def rename(call: Any, source: Path, target: Path) -> None:
        call(source, target)
        if source == path and next(left, None) is not None:
            act(target)

    return seams.disk(PlainDisk(), rename=rename)


def test_a_save_tries_again_if_another_took_the_place(tmp_path, seams):
    theirs = {LIST: b"their.json\n", "their.json": b"theirs"}
    acts: list[Callable[[Path], object]] = [
        lambda moved: write_tree(theirs, path),
        lambda moved: moved.rename(path),  # it puts the old folder back
    ]
    for number, act in enumerate(acts):
        path = prepare(tmp_path / str(number) / "model")
        save(path, crowded(seams, path, 3, act))
        assert is_new_alone(path)
    path = prepare(tmp_path / "never" / "model")
    with pytest.raises(errors.WriteFailed, match="model"):
        save(path, crowded(seams, path, 1000, acts[0]))
    assert read_tree(path) == theirs
    save(path, Disk())
    (left,) = leftovers(path)  # with the files that are not in their folder
    assert read_tree(path.parent / left) == OTHERS


def test_a_folder_that_is_moved_away_is_waited_for(tmp_path, seams):
    path = prepare(tmp_path / "model")
    elsewhere = tmp_path / "elsewhere"
    save(path, before_exchange(seams, lambda: elsewhere.exists() or path.rename(elsewhere)))
    assert is_new(path)
    assert leftovers(path) == ["elsewhere"]


def test_a_late_file_in_the_way_is_left_aside(tmp_path, seams):
    path = prepare(tmp_path / "model")
    (path / LIST).write_bytes(b"model.bin gone.json\n")
    (path / "config.json").unlink()
    late = {"late.bin": b"late", "config.json": b"late, of a name that was written"}
    save(path, before_exchange(seams, lambda: write_tree(late, path)))
    assert is_new(path)
    (left,) = leftovers(path)
    assert read_tree(tmp_path / left) == late


def test_what_tells_which_files_are_ours_is_removed_last(tmp_path):
    *_, sync, last, folder = Save(tmp_path).log
    assert (sync.kind, last.kind, folder.kind) == ("sync_folder", "remove", "remove")
    assert last.name == f"{sync.name}/{LIST}"
    assert folder.name == sync.name


def test_files_in_a_new_folder_have_their_names_at_once(tmp_path, seams):
    logging = seams.disk(LoggingDisk(tmp_path))
    asked = []
    seams.disk(abandoned=lambda find, *place: asked.append(place) or find(*place))
    with replacing_folder(tmp_path / "model", logging, own_files) as aside:
        replace_bytes(aside / "a.json", b"a", logging)
        replace_bytes(aside / "b.json", b"b", logging)
        kinds = [operation.kind for operation in logging.log]
        assert kinds.count("sync") == 2
        assert not asked
        assert "rename" not in kinds
        replace_bytes(aside / "a.json", b"again", logging)
    kinds = [each.kind for each in logging.log if each.kind in ("sync_folder", "rename", "sync")]
    assert kinds[-3:] == ["sync_folder", "rename", "sync_folder"]
    assert read_tree(tmp_path / "model") == {"a.json": b"again", "b.json": b"b"}


def test_a_file_that_fails_in_a_new_folder_is_not_there(tmp_path, seams):
    with replacing_folder(tmp_path / "model", LOCAL, own_files) as aside:
        disk = seams.disk(Disk(), write=failing(errno.ENOSPC))
        with pytest.raises(errors.WriteFailed) as caught:
            replace_bytes(aside / "a.json", b"a", disk)
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(aside) == []
