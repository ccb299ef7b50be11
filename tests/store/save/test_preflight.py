"""A save that cannot fit is refused before a byte is written; one that dedup lets fit is not."""

import errno
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Run, Store, errors
from standfast.store.retention.trash import Trash
from tests.kit.seams import Seams
from tests.kit.stores import MIB, data_files, data_path, folder, random_bytes, same

BIG = 8 * MIB


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Store(tmp_path).run("a")
    run.save(1, {"x": random_bytes(BIG)})
    return run


def _free(seams: Seams, nbytes: int) -> None:
    seams.disk(free=lambda *_: nbytes)


@pytest.mark.guarantee("G5")
def test_a_save_that_cannot_fit_writes_nothing(run):
    before = {path.name for path in folder(run).iterdir()}
    written: list[Path] = []

    def noted(create: Any, path: Path, *direct: bool) -> int:
        written.append(path)
        return int(create(path, *direct))

    with Seams.until_end() as seams:
        _free(seams, BIG)
        seams.disk(create=noted)
        with pytest.raises(errors.NotEnoughSpace, match=f"{BIG:,}") as caught:
            run.save(2, {"x": random_bytes(BIG, 2)})
        _free(seams, 1000)
        with pytest.raises(errors.NotEnoughSpace):
            run.save(2, {"x": np.ones(3)})
    assert caught.value.errno == errno.ENOSPC
    assert not any(path.is_relative_to(folder(run)) for path in written)  # but elsewhere, of others
    assert {path.name for path in folder(run).iterdir()} == before
    run.save(2, {"x": random_bytes(BIG, 2)})
    assert same(run.load(), {"x": random_bytes(BIG, 2)})


@pytest.mark.guarantee("G5")
@pytest.mark.parametrize("is_refused", [True, False], ids=["refused", "fails"])
@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "fuse"])
def test_a_full_file_system_costs_the_save_and_nothing_else(kind, is_refused, mount, seams):
    store = Store(mount(kind, size=40 * MIB) / "store")
    if not is_refused:
        _free(seams, 1 << 40)
    states = {step: {"x": random_bytes(3 * MIB, step)} for step in range(20)}

    def fill(run: Run) -> None:
        for step, state in states.items():
            run.save(step, state)

    with store.run("a") as run:
        with pytest.raises(errors.NotEnoughSpace if is_refused else errors.WriteFailed) as caught:
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


def test_a_save_that_fits_thanks_to_dedup_goes_through(run, seams):
    _free(seams, 3 * MIB)
    state = {"x": random_bytes(BIG), "more": random_bytes(MIB, 2)}
    run.save(2, state)
    assert same(run.load(2), state)
    with pytest.raises(errors.NotEnoughSpace):
        run.save(3, state | {"new": random_bytes(3 * MIB, 3)})
    other = run.store.run("b")
    with pytest.raises(errors.NotEnoughSpace):
        other.save(1, {"x": random_bytes(BIG), "new": random_bytes(BIG, 2)})
    assert data_files(other) == {}
    assert data_path(run, 1).stat().st_nlink == 1
    other.save(1, {"x": random_bytes(BIG)})
    assert data_path(run, 1).stat().st_nlink == 2
    assert same(other.load(), {"x": random_bytes(BIG)})


def test_where_nobody_knows_what_is_free_a_save_is_tried(run, seams):
    def free(*_: object) -> int:
        raise OSError(errno.ENOSYS, "unknown")

    seams.disk(free=free)
    run.save(2, {"x": random_bytes(BIG, 2)})
    assert run.checkpoint().step == 2


def test_the_trash_is_emptied_when_its_space_is_needed(run, seams):
    run.save(2, {"x": random_bytes(BIG, 2)})
    run.save(3, {"x": random_bytes(BIG, 3)})
    run.delete(1, trash="rm")
    run.delete(2, trash="rm")
    root = folder(run).parent.parent

    def free(*_: object) -> int:
        """A disk on which three such checkpoints fit, and half of a fourth."""
        files = {p.stat().st_ino: p.stat().st_size for p in root.rglob("*.safetensors")}
        return 7 * BIG // 2 - sum(files.values())

    seams.disk(free=free)
    trash = Trash(run.store.backend)
    assert [entry.steps for entry in trash.entries()] == [[1], [2]]
    run.save(4, {"x": random_bytes(BIG, 4)})
    assert [entry.steps for entry in trash.entries()] == [[2]], "no more than is needed"
    with pytest.raises(errors.NotEnoughSpace):
        run.save(5, {"x": random_bytes(3 * BIG, 5)})
