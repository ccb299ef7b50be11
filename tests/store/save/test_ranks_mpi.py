"""Ranks that are processes, started by MPI, save one checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.store.maintenance.doctor import examine
from standfast.store.save.ranks import save_together
from tests.kit.cases import kept
from tests.kit.fault_states import leftovers
from tests.kit.parallel_ranks import run_ranks
from tests.kit.rank_threads import ThreadRanks, on_ranks
from tests.kit.stores import data_files, same
from tests.store.save.rank_states import SLAB, SLABS, part, union

PROGRAM = Path(__file__).parent / "programs" / "save_together.py"


def test_ranks_save_what_one_process_loads(tmp_path: Path) -> None:
    count = 3
    done = run_ranks(count, PROGRAM, str(tmp_path), "2")
    expected = [f"{rank} {step} {step}" for rank in range(count) for step in (1, 2)]
    assert sorted(done.stdout.split("\n")) == ["", *expected]
    run = Store(tmp_path).run("heat")
    sizes = data_files(run)
    second = sum(sizes[name] for name in sizes if "_step_000002." in name)
    assert sum(sizes.values()) - second > count * SLABS * SLAB
    assert count * SLAB < second < count * (SLAB + 32768), "one slab of a hundred, and the headers"
    for step in (1, 2):
        assert same(run.load(step), union(count, step))
        assert run.checkpoint(step).verify().tensors == count * SLABS
    assert examine(run.store.backend, run.store.index).sound


@pytest.mark.parametrize(("rank", "at"), kept([(0, 5), (1, 4)], (0, 5)))
def test_a_killed_rank_leaves_the_checkpoint_before(rank: int, at: int, tmp_path: Path) -> None:
    done = run_ranks(2, PROGRAM, str(tmp_path), "2", str(rank), str(at), check=False)
    assert done.returncode != 0
    assert "0 1 1\n" in done.stdout
    assert "2 2\n" not in done.stdout
    run = Store(tmp_path).run("heat")
    assert [each.step for each in run.checkpoints()] == [1]
    assert same(run.load(), union(2, 1))

    def save(comm: ThreadRanks) -> Any:
        run = Store(tmp_path).run("heat")
        return save_together(run, comm, 2, part(comm.rank, 2))

    on_ranks(2, save)
    assert same(run.load(), union(2, 2))
    assert leftovers(run.store) == []
