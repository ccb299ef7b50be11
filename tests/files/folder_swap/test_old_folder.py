"""Which folders may be replaced, what of them stays, and who else may be at it."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from standfast import errors
from standfast.files.disk import LOCAL, Disk
from standfast.files.folder_swap.swap import replacing_folder
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
    is_old,
    own_files,
    prepare,
    save,
)
from tests.files.states import leftovers
from tests.kit.power import LoggingDisk, read_tree, write_tree
from tests.kit.seams import Seams


def test_a_file_that_is_not_ours_is_not_overwritten(tmp_path: Path) -> None:
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


def test_what_is_ours_is_told_by_the_folder_and_not_by_names(tmp_path: Path) -> None:
    path = tmp_path / "model"
    theirs = {"gone.json": b"mine", "other.json": b"mine"}
    write_tree(theirs, path)
    save(path, LOCAL)
    assert read_tree(path) == NEW | theirs
    shutil.rmtree(path)
    prepare(path)  # with a list of files that cannot be
    (path / LIST).write_bytes(b"config.json model.bin gone.json nul\0nul .. . nowhere\n")
    save(path, LOCAL)
    assert is_new(path)
    assert leftovers(path) == []


def test_a_folder_that_is_exchanged_while_it_is_listed_is_listed_again(
    tmp_path: Path,
) -> None:
    path = prepare(tmp_path / "model")
    (path / LIST).write_bytes(b"config.json model.bin gone.json old.bin\n")
    (path / "old.bin").write_bytes(b"only of the old one")
    asked: list[Path] = []

    def own_files_a_moment_later(folder: Path) -> list[str]:
        asked.append(folder)
        if len(asked) == 1:
            save(path, LOCAL)
        return own_files(folder)

    with replacing_folder(path, LOCAL, own_files_a_moment_later, in_the_way) as aside:
        (aside / "first.json").write_bytes(b"1")
    assert read_tree(path) == OTHERS | {"first.json": b"1"}
    assert leftovers(path) == []


@pytest.mark.parametrize("below", ["", "deep/deeper"])
@pytest.mark.parametrize("is_empty", [True, False])
def test_the_current_folder_is_not_replaced(
    below: str, is_empty: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "model"
    (path / below).mkdir(parents=True)
    if not is_empty:
        prepare(path)
    before = read_tree(path)
    monkeypatch.chdir(path / below)
    for name in (".", path):
        with pytest.raises(errors.WriteFailed, match="model"):
            save(Path(name) if not below else path, LOCAL)
    assert Path.cwd() == path / below
    assert read_tree(path) == before
    assert leftovers(path) == []
    shutil.rmtree(path)  # a program whose folder is gone can save
    save(path, LOCAL)
    assert is_new(path, was_there=False)


@pytest.mark.skipif(sys.platform != "linux", reason="needs a folder that is a mount")
def test_a_mount_is_found_before_anything_is_written() -> None:
    with pytest.raises(errors.WriteFailed, match="/proc"):
        save(Path("/proc"), LOCAL)


@pytest.mark.parametrize("code", [errno.EXDEV, errno.EBUSY])
@pytest.mark.parametrize("kind", DISKS)
def test_a_folder_that_cannot_be_moved_stays_and_the_error_says_what_it_is(
    kind: str, code: int, tmp_path: Path, seams: Seams
) -> None:
    path = prepare(tmp_path / "model")

    def exchange(call: Any, source: Path, target: Path) -> None:
        if kind == "exchange":
            raise OSError(code, os.strerror(code))
        call(source, target)

    def rename(call: Any, source: Path, target: Path) -> None:
        if source == path:
            raise OSError(code, os.strerror(code))
        call(source, target)

    disk = seams.disk(DISKS[kind](), exchange=exchange, rename=rename)
    with pytest.raises(errors.WriteFailed, match="container") as caught:
        save(path, disk)
    assert caught.value.errno == code
    assert is_old(path)
    assert leftovers(path) == []


@pytest.mark.parametrize("disk", DISKS)
def test_a_file_that_replaces_another_keeps_its_mode(disk: str, tmp_path: Path) -> None:
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


def test_a_save_tries_again_if_another_took_the_place(tmp_path: Path, seams: Seams) -> None:
    theirs = {LIST: b"their.json\n", "their.json": b"theirs"}
    acts: list[Callable[[Path], object]] = [
        lambda moved: write_tree(theirs, path),
        lambda moved: moved.rename(path),  # it puts the old folder back
    ]
    for number, act in enumerate(acts):
        path = prepare(tmp_path / str(number) / "model")
        save(path, crowded(seams, path, 3, act))
        assert is_new(path)
        assert leftovers(path) == []
    path = prepare(tmp_path / "never" / "model")
    with pytest.raises(errors.WriteFailed, match="model"):
        save(path, crowded(seams, path, 1000, acts[0]))
    assert read_tree(path) == theirs
    save(path, Disk())
    (left,) = leftovers(path)  # with the files that are not in their folder
    assert read_tree(path.parent / left) == OTHERS


def test_a_folder_that_is_moved_away_is_waited_for(tmp_path: Path, seams: Seams) -> None:
    path = prepare(tmp_path / "model")

    def exchange(call: Any, source: Path, target: Path) -> None:
        if target.exists() and not (tmp_path / "elsewhere").exists():
            target.rename(tmp_path / "elsewhere")
        call(source, target)

    save(path, seams.disk(exchange=exchange))
    assert is_new(path)
    assert leftovers(path) == ["elsewhere"]


def test_a_late_file_in_the_way_is_left_aside(tmp_path: Path, seams: Seams) -> None:
    path = prepare(tmp_path / "model")
    (path / LIST).write_bytes(b"model.bin gone.json\n")
    (path / "config.json").unlink()
    late = {"late.bin": b"late", "config.json": b"late, of a name that was written"}

    def exchange(call: Any, source: Path, target: Path) -> None:
        write_tree(late, path)
        call(source, target)

    save(path, seams.disk(exchange=exchange))
    assert is_new(path)
    (left,) = leftovers(path)
    assert read_tree(tmp_path / left) == late


def test_what_tells_which_files_are_ours_is_removed_last(tmp_path: Path) -> None:
    path = prepare(tmp_path / "model")
    disk = LoggingDisk(tmp_path)
    save(path, disk)
    *_, sync, last, folder = disk.log
    assert (sync.kind, last.kind, folder.kind) == ("sync_folder", "remove", "remove")
    assert last.name == f"{sync.name}/{LIST}"
    assert folder.name == sync.name


def test_files_in_a_new_folder_have_their_names_at_once(tmp_path: Path, seams: Seams) -> None:
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


def test_a_file_that_fails_in_a_new_folder_is_not_there(tmp_path: Path, seams: Seams) -> None:
    def full(write: Any, *_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with replacing_folder(tmp_path / "model", LOCAL, own_files) as aside:
        disk = seams.disk(Disk(), write=full)
        with pytest.raises(errors.WriteFailed) as caught:
            replace_bytes(aside / "a.json", b"a", disk)
        assert caught.value.errno == errno.ENOSPC
        assert os.listdir(aside) == []
