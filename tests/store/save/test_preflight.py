"""A save that cannot fit is refused before a byte is written; one that dedup lets fit is not."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from standfast import Run, Store
from standfast.errors import NotEnoughSpace, WriteFailed
from standfast.files.disk import Disk
from standfast.store.retention.trash import Trash
from tests.kit.stores import MIB, data_files, data_path, folder, random_bytes, same

BIG = 8 * MIB


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Store(tmp_path).run("a")
    run.save(1, {"x": random_bytes(BIG)})
    return run


def _free(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(Disk, "free", lambda *_: nbytes)


def _names(run: Run) -> set[str]:
    return {path.name for path in folder(run).iterdir()}


@pytest.mark.guarantee("G5")
def test_a_save_that_cannot_fit_writes_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    before = _names(run)
    written: list[Path] = []
    create = Disk.create

    def noted(disk: Disk, path: Path, direct: bool = True) -> int:
        if path.is_relative_to(folder(run)):  # elsewhere threads write, of this store and others
            written.append(path)
        return create(disk, path, direct)

    _free(monkeypatch, BIG)
    monkeypatch.setattr(Disk, "create", noted)
    with pytest.raises(NotEnoughSpace, match="nothing was written") as caught:
        run.save(2, {"x": random_bytes(BIG, 2)})
    assert caught.value.errno == errno.ENOSPC
    assert f"{BIG:,} are free" in str(caught.value)
    assert written == []
    assert _names(run) == before
    monkeypatch.undo()
    run.save(2, {"x": random_bytes(BIG, 2)})
    assert same(run.load(), {"x": random_bytes(BIG, 2)})


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "fails"])
@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "fuse"])
def test_a_full_file_system_costs_the_save_and_nothing_else(
    kind: str, is_refused: bool, mount: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it writes, or in the middle, if another program takes the space meanwhile."""
    store = Store(mount(kind, size=40 * MIB) / "store")
    if not is_refused:
        _free(monkeypatch, 1 << 40)
    states = {step: {"x": random_bytes(3 * MIB, step)} for step in range(20)}

    def fill(run: Run) -> None:
        for step, state in states.items():
            run.save(step, state)

    with store.run("a") as run:
        with pytest.raises(NotEnoughSpace if is_refused else WriteFailed) as caught:
            fill(run)
        assert caught.value.errno == errno.ENOSPC
        saved = [each.step for each in run.checkpoints()]
        assert len(saved) > 5
        assert not list(folder(run).glob(".*.standfast"))
        run.delete(saved.pop())
        run.save(100, states[19])
        assert all(same(run.load(step), states[step]) for step in saved)
        assert same(run.load(), states[19])
    store.close()


def test_a_save_that_fits_thanks_to_dedup_goes_through(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, 3 * MIB)
    state = {"x": random_bytes(BIG), "more": random_bytes(MIB, 2)}
    run.save(2, state)
    assert same(run.load(2), state)
    with pytest.raises(NotEnoughSpace):
        run.save(3, state | {"new": random_bytes(3 * MIB, 3)})


def test_a_save_that_fits_thanks_to_another_run_goes_through(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = run._store.run("b")
    _free(monkeypatch, 2 * MIB)
    other.save(1, {"x": random_bytes(BIG)})
    assert data_path(run, 1).stat().st_nlink == 2
    assert same(other.load(), {"x": random_bytes(BIG)})


def test_a_refused_save_leaves_no_links(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    other = run._store.run("b")
    _free(monkeypatch, 2 * MIB)
    with pytest.raises(NotEnoughSpace):
        other.save(1, {"x": random_bytes(BIG), "new": random_bytes(BIG, 2)})
    assert data_files(other) == {}
    assert data_path(run, 1).stat().st_nlink == 1


def test_where_nobody_knows_what_is_free_a_save_is_tried(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def free(*_: object) -> int:
        raise OSError(errno.ENOSYS, "unknown")

    monkeypatch.setattr(Disk, "free", free)
    run.save(2, {"x": random_bytes(BIG, 2)})
    assert run.checkpoint().step == 2


def test_a_small_save_on_a_full_disk_is_refused_too(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    _free(monkeypatch, 1000)
    with pytest.raises(NotEnoughSpace):
        run.save(2, {"x": np.ones(3)})
    assert run.checkpoint().step == 1


def test_the_trash_is_emptied_when_its_space_is_needed(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(2, {"x": random_bytes(BIG, 2)})
    run.save(3, {"x": random_bytes(BIG, 3)})
    run.delete(1, trash="rm")
    run.delete(2, trash="rm")
    root = folder(run).parent.parent

    def free(*_: object) -> int:
        """A disk on which three such checkpoints fit, and half of a fourth."""
        files = {p.stat().st_ino: p.stat().st_size for p in root.rglob("*.safetensors")}
        return 7 * BIG // 2 - sum(files.values())

    monkeypatch.setattr(Disk, "free", free)
    trash = Trash(run.store.backend)
    assert [entry.steps for entry in trash.entries()] == [[1], [2]]
    run.save(4, {"x": random_bytes(BIG, 4)})
    assert [entry.steps for entry in trash.entries()] == [[2]], "no more than is needed"
    with pytest.raises(NotEnoughSpace):
        run.save(5, {"x": random_bytes(3 * BIG, 5)})
