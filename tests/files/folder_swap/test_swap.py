"""A folder is replaced whole, whatever happens, and what a user put into it stays."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.errors import AlreadyExists, MissingFile, UnreadableFile, WriteFailed
from standfast.files.atomic import aside_prefix
from standfast.files.disk import LOCAL, Disk
from standfast.files.folder_swap.leftovers import NEW as NEW_SUFFIX
from standfast.files.folder_swap.leftovers import OLD as OLD_SUFFIX
from standfast.files.folder_swap.swap import making_folder, replacing_folder
from tests.files.folder_swap.folder_states import (
    DISKS,
    NEW,
    OLD,
    OTHERS,
    PlainDisk,
    is_new,
    is_old,
    own_files,
    prepare,
    save,
)
from tests.files.states import leftovers
from tests.kit.disk_faults import FaultyDisk, raising
from tests.kit.power import read_tree, write_tree

PREFIX = aside_prefix(Path("model"))
"""Of what is written beside a folder `model`."""


@pytest.mark.parametrize("disk", DISKS)
def test_a_folder_is_replaced_and_other_files_in_it_stay(disk: str, tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    (path / "notes.txt").chmod(0o640)
    path.chmod(0o750)
    save(path, DISKS[disk]())
    assert is_new(path)
    assert stat.S_IMODE((path / "notes.txt").stat().st_mode) == 0o640
    assert stat.S_IMODE(path.stat().st_mode) == 0o750
    assert leftovers(path) == []


def test_a_folder_is_made_where_nothing_is_or_an_empty_one(tmp_path: Path) -> None:
    for name in ("missing", "empty"):
        path = tmp_path / name / "model"
        path.parent.mkdir()
        if name == "empty":
            path.mkdir(mode=0o700)
        save(path, LOCAL)
        assert is_new(path, was_there=False)
        assert leftovers(path) == []
    assert stat.S_IMODE(path.stat().st_mode) == 0o700


def test_files_that_stay_are_the_same_files_and_not_copies(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    before = (path / "notes.txt").stat()
    save(path, LOCAL)
    assert os.path.samestat((path / "notes.txt").stat(), before)
    assert (path / "notes.txt").stat().st_nlink == 1


def test_what_a_killed_writer_left_in_the_folder_goes_with_it(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    (path / ".0123456789abcdef.01234567.standfast").write_bytes(b"half")
    save(path, LOCAL)
    assert is_new(path)
    assert leftovers(path) == []


def test_a_link_to_a_folder_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    path = prepare(tmp_path / "models" / "model")
    link = tmp_path / "latest"
    link.symlink_to(path)
    save(link, LOCAL)
    assert link.is_symlink()
    assert is_new(path)
    assert leftovers(path) == []


def test_if_the_body_raises_all_is_as_it_was(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")

    def fail() -> None:
        with replacing_folder(path, LOCAL, own_files) as aside:
            (aside / "config.json").write_bytes(b"half")
            raise KeyError("injected")

    with pytest.raises(KeyError, match="injected"):
        fail()
    assert is_old(path)
    assert leftovers(path) == []


def test_errors_in_the_body_name_the_folder_that_the_user_knows(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with (
        pytest.raises(UnreadableFile, match=f"cannot read {path}/config.json: broken"),
        replacing_folder(path, LOCAL, own_files) as aside,
    ):
        raise UnreadableFile(errno.EIO, f"cannot read {aside}/config.json: broken")
    with (
        pytest.raises(WriteFailed, match=f"cannot write {path}: No space.*free some space"),
        replacing_folder(path, LOCAL, own_files),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")


def _put_folder(path: Path) -> None:
    (path / "checkpoints").mkdir()


def _put_own_folder(path: Path) -> None:
    (path / "model.json").mkdir()


def _put_link(path: Path) -> None:
    (path / "weights.bin").symlink_to("/dev/null")


def _put_pipe(path: Path) -> None:
    os.mkfifo(path / "pipe")


def _put_meanwhile(path: Path, put: Callable[[Path], None], when: str) -> None:
    assert when == "meanwhile", "the body was begun"
    put(path)


@pytest.mark.parametrize(
    ("put", "message"),
    [
        (_put_folder, "checkpoints in it is a folder"),
        (_put_own_folder, "model.json in it is a folder"),
        (_put_link, "weights.bin in it is a link"),
        (_put_pipe, "pipe in it is no file"),
    ],
)
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_what_is_no_file_is_refused_and_stays(
    put: Callable[[Path], None], message: str, when: str, tmp_path: Path
) -> None:
    path = prepare(tmp_path / "model")
    if when == "before":
        put(path)
    with (
        pytest.raises(AlreadyExists, match=message),
        replacing_folder(path, LOCAL, own_files),
    ):
        _put_meanwhile(path, put, when)
    assert len(os.listdir(path)) == len(OLD | OTHERS) + 1
    assert leftovers(path) == []


def test_places_where_no_folder_can_be_written_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(MissingFile, match=r"the folder .*/nowhere does not exist"):
        save(tmp_path / "nowhere" / "model", LOCAL)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(WriteFailed, match="file: it exists and is not a folder"):
        save(tmp_path / "file", LOCAL)
    with pytest.raises(WriteFailed, match="cannot be a path"):
        save(Path("a\0b"), LOCAL)
    with pytest.raises(WriteFailed, match="there is nothing above it"):
        save(Path("/"), LOCAL)
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(WriteFailed, match="loop"):
        save(tmp_path / "loop", LOCAL)
    path = prepare(tmp_path / "model")
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(WriteFailed, match="model: you may not change this folder"):
        save(path, LOCAL)
    assert is_old(path)
    assert sorted(leftovers(path)) == ["file", "loop"]


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("is_there", [True, False], ids=["over a folder", "as a new folder"])
@pytest.mark.parametrize(
    "fault", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()], ids=["EIO", "Ctrl-C"]
)
def test_a_save_that_fails_leaves_the_old_folder_or_the_new_one(
    fault: BaseException, is_there: bool, disk: str, tmp_path: Path
) -> None:
    kind = type("Faulty", (FaultyDisk, DISKS[disk]), {})
    struck = set()
    for at in range(1, 200):
        path = prepare(tmp_path / str(at) / "model", is_there)
        faulty = kind(at, raising(fault))
        caught: BaseException | None = None
        try:
            save(path, faulty)
        except (WriteFailed, KeyboardInterrupt) as error:
            caught = error
        if faulty.struck is None:
            assert caught is None
            break
        struck.add(faulty.struck)
        if path.exists():
            assert is_new(path, is_there) or (is_there and is_old(path)), faulty.struck
        else:
            assert not is_there
        if caught is None:  # nothing but cleaning up can fail without a word
            assert is_new(path, is_there)
            assert faulty.struck in ("remove", "remove_folder", "sync_folder"), faulty.struck
        else:
            assert isinstance(caught, KeyboardInterrupt | WriteFailed)
        save(path, LOCAL)
        assert is_new(path, is_there)
        assert leftovers(path) == []
    expected = {"abandoned_folders", "make_folder", "lock_folder", "create", "write", "sync"}
    expected |= {"rename", "sync_folder", "close"}
    if is_there:
        expected |= {"set_mode", "link", "exchange", "remove", "remove_folder"}
    assert expected <= struck


@pytest.mark.parametrize("disk", DISKS)
def test_a_save_killed_at_any_operation_leaves_the_old_folder_or_the_new_one(
    disk: str, tmp_path: Path
) -> None:
    child = [sys.executable, "-m", "tests.files.killed", str(tmp_path), disk]
    done = subprocess.run(child, check=False, capture_output=True, text=True)
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
        assert is_new(path)
        assert leftovers(path) == []
    assert orphans > 10, "no kill left anything behind: were they early enough?"
    # Between two renames nothing is there, and the next save has put it back.
    assert missing == (disk == "two renames")


def test_only_abandoned_folders_of_this_path_are_cleaned_away(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    leftover = tmp_path / f"{PREFIX}00000000{NEW_SUFFIX}"
    others = [
        f".0123456789abcdef.00000000{NEW_SUFFIX}",
        f".0123456789abcdef.00000000{OLD_SUFFIX}",
        f"{PREFIX}00000000.standfast",
        "model.new",
    ]
    for name in [leftover.name, *others]:
        write_tree({"config.json": b"half", "README.md": b"half"}, tmp_path / name)
    (tmp_path / f"{PREFIX}11111111{NEW_SUFFIX}").write_bytes(b"a file")
    (tmp_path / f"{PREFIX}22222222{NEW_SUFFIX}").symlink_to(path)
    save(path, LOCAL)
    assert not leftover.exists()
    assert is_new(path)
    kept = [*others, f"{PREFIX}11111111{NEW_SUFFIX}", f"{PREFIX}22222222{NEW_SUFFIX}"]
    assert sorted(leftovers(path)) == sorted(kept)
    assert all(len(os.listdir(tmp_path / name)) == 2 for name in others)


def test_a_file_that_is_in_an_old_folder_alone_is_never_removed(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    leftover = tmp_path / f"{PREFIX}00000000{OLD_SUFFIX}"
    write_tree(OLD | OTHERS | {"only.txt": b"here", "folder/file": b"x"}, leftover)
    (leftover / "notes.txt").write_bytes(b"another version")
    save(path, LOCAL)
    assert is_new(path)
    assert read_tree(leftover) == {
        "only.txt": b"here",
        "notes.txt": b"another version",
        "folder/file": b"x",
    }


@pytest.mark.parametrize("has_empty_folder", [False, True])
def test_a_whole_folder_that_was_left_aside_is_put_back_where_none_is(
    has_empty_folder: bool, tmp_path: Path
) -> None:
    path = tmp_path / "model"
    if has_empty_folder:
        path.mkdir()
    write_tree(OLD | OTHERS, tmp_path / f"{PREFIX}00000000{OLD_SUFFIX}")
    with pytest.raises(KeyError), replacing_folder(path, LOCAL, own_files):
        raise KeyError
    assert is_old(path)
    save(path, LOCAL)
    assert is_new(path)
    assert leftovers(path) == []


def test_the_old_folder_is_not_removed_while_only_other_files_are_in_its_place(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model"
    leftover = tmp_path / f"{PREFIX}00000000{OLD_SUFFIX}"
    write_tree(OLD | OTHERS, leftover)
    write_tree(OTHERS, path)
    with pytest.raises(KeyError), replacing_folder(path, LOCAL, own_files):
        raise KeyError
    assert is_old(leftover)
    assert read_tree(path) == OTHERS


def test_where_the_exchange_could_not_be_made_durable_the_old_folder_stays_aside(
    tmp_path: Path,
) -> None:
    path = prepare(tmp_path / "model")

    class Failing(Disk):
        def sync_folder(self, folder: Path) -> None:
            if folder == tmp_path:
                raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(WriteFailed, match="Input/output error"):
        save(path, Failing())
    assert is_new(path)
    (left,) = leftovers(path)
    assert is_old(tmp_path / left)
    save(path, LOCAL)
    assert leftovers(path) == []


def test_a_folder_that_a_living_process_writes_is_not_cleaned_away(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    with replacing_folder(path, LOCAL, own_files) as aside:
        (aside / "first.json").write_bytes(b"1")
        save(path, LOCAL)
        assert is_new(path)
        assert leftovers(path) == [aside.name]
    assert read_tree(path) == OTHERS | {"first.json": b"1"}  # the last one to finish
    assert leftovers(path) == []


def test_a_folder_that_a_cleaner_takes_away_before_it_is_locked_is_made_again(
    tmp_path: Path,
) -> None:
    path = prepare(tmp_path / "model")
    taken: list[Path] = []

    class Slow(Disk):
        def lock_folder(self, path: Path) -> int:
            if not taken:
                taken.append(path)
                path.rmdir()
            return super().lock_folder(path)

    save(path, Slow())
    assert taken
    assert is_new(path)
    assert leftovers(path) == []


@pytest.mark.parametrize("disk", DISKS)
def test_files_that_come_or_change_at_the_last_moment_are_brought_over(
    disk: str, tmp_path: Path
) -> None:
    path = prepare(tmp_path / "model")

    class Late(DISKS[disk]):  # type: ignore[misc]
        def exchange(self, source: Path, target: Path) -> None:
            (path / "late.txt").write_bytes(b"late")
            (path / "edited").write_bytes(b"edited")
            (path / "edited").rename(path / "notes.txt")
            super().exchange(source, target)

    save(path, Late())
    assert read_tree(path) == NEW | OTHERS | {"late.txt": b"late", "notes.txt": b"edited"}
    assert leftovers(path) == []


def test_threads_that_replace_one_folder_at_once_leave_one_whole_folder(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    errors: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                save(path, LOCAL)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert is_new(path)
    save(path, LOCAL)
    assert leftovers(path) == []


def test_a_new_folder_takes_its_place_only_where_nothing_is(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with making_folder(path, LOCAL) as aside:
        (aside / "any.txt").write_bytes(b"1")
    assert read_tree(path) == {"any.txt": b"1"}
    with pytest.raises(AlreadyExists, match="is there already"), making_folder(path, LOCAL):
        pytest.fail("it was begun")
    late = tmp_path / "late"
    with (
        pytest.raises(AlreadyExists, match="is there already"),
        making_folder(late, LOCAL),
    ):
        write_tree(OLD, late)
    assert read_tree(late) == OLD
    assert sorted(leftovers(path)) == ["late"]


def test_a_copy_is_made_only_where_a_link_cannot_be(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    big = os.urandom((2 << 20) + 77)
    (path / "big.dat").write_bytes(big)
    save(path, PlainDisk())
    assert (path / "big.dat").read_bytes() == big
    assert leftovers(path) == []

    class Full(Disk):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(WriteFailed, match="free some space"):
        save(path, Full())
    assert leftovers(path) == []
