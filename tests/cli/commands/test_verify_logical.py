"""`verify --logical` of checkpoints that are no simulations, and `show` of what ranks saved."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Store
from standfast.store.maintenance.logical import logical
from standfast.store.tree.per_rank import per_rank
from tests.amr.saved_states import GAUGE, refined, snapshot
from tests.kit.cli import flip_in
from tests.kit.rank_threads import ThreadRanks, on_ranks
from tests.store.save.cut import Cut, cut_framework
from tests.store.save.test_shared import columns, opened, rows

pytestmark = pytest.mark.usefixtures("cut_framework")
__all__ = ["cut_framework"]

WEIGHT = np.arange(40, dtype=np.float32).reshape(4, 10)


def state_of(layout: Any, rank: int, size: int, plus: int = 0) -> dict[str, Any]:
    weight = Cut(WEIGHT + plus, layout(WEIGHT.shape, rank, size), same="weight")
    return {
        "model": {"weight": weight, "tied": weight, "bias": np.ones(3)},
        "lr": 0.5 - plus / 4,
        "mine": per_rank({"seen": rank, "drawn": np.arange(2)}),
    }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """One state of 4, 2 and 2 ranks, then another one."""

    def save(layout: Any, plus: int, step: int, comm: ThreadRanks) -> None:
        with opened(tmp_path, comm) as run:
            run.save(step, state_of(layout, comm.rank, comm.size, plus), comm=comm)

    states = ((4, rows, 0), (2, columns, 0), (2, rows, 0), (2, columns, 1))
    for step, (size, layout, plus) in enumerate(states, 1):
        on_ranks(size, partial(save, layout, plus, step))
    return Store(tmp_path)


def test_one_state_of_two_numbers_of_ranks_is_the_same(store, cli):
    one, other = (logical(store.resolve(f"run@{step}")) for step in (1, 2))
    done = cli("verify", "--logical", "run@1", "run@2")
    run = store.find_run("run").hash
    assert done.code == 0
    assert done.lines == [
        f"intact      run@1 ({run}@1): 7 tensors, 248 B, every byte",
        f"logical     {one.digest}",
        f"own         {one.own}, of 4 ranks",
        f"intact      run@2 ({run}@2): 5 tensors, 216 B, every byte",
        f"logical     {one.digest}",
        f"own         {other.own}, of 2 ranks",
        "same        run@1 and run@2 hold the same state",
        "            what is the ranks' own differs: 4 ranks / 2 ranks",
    ]
    done = cli("verify", "--logical", "run@1", "run@4")
    assert done.code == 0
    assert done.lines[6].startswith("different ")
    assert done.lines[7:10] == [
        "            model.weight: other bytes",
        "            model.tied: other bytes",
        "            lr: 0.5 → 0.25",
    ]


def test_scripts_get_all_of_it(store, cli):
    states = [logical(store.resolve(f"run@{step}")) for step in (2, 3, 4)]
    found = cli("verify", "--logical", "--json", "run@2", "run@3", "run@4").json
    first, same, other = found
    assert first["status"] == "intact"
    assert [each["logical"] for each in found] == [state.digest for state in states]
    assert (first["own"], first["own_ranks"]) == (states[0].own, 2)
    assert first["tensors"] == {name: each.digest for name, each in states[0].tensors.items()}
    compared = {"with": "run@2", "same": True, "differences": []}
    assert same["compared"] == {**compared, "same_own": True, "own_ranks": [2, 2]}
    assert other["compared"]["same"] is False
    assert other["compared"]["differences"][-1] == {"name": "lr", "what": "0.5 → 0.25"}
    assert "compared" not in first


@pytest.mark.parametrize("tensor", ["model.weight", "mine.rank1.drawn"])
def test_damage_is_found_and_the_rest_is_verified(store, cli, tensor):
    flip_in(store, "run@1", tensor)
    done = cli("verify", "--logical", "run@1", "run@4")
    assert done.code == 1
    assert [line.split()[0] for line in done.lines] == ["damaged", "intact", "logical", "own"]
    assert tensor in done.lines[0]


def test_a_snapshot_is_compared_with_snapshots_only(store, cli):
    store.run("su2").save(1, snapshot(refined(GAUGE)))
    done = cli("verify", "--logical", "run@2", "su2@1", "run@3")
    assert done.code == 0
    assert [line.split()[0] for line in done.lines] == [
        *("intact", "logical", "own", "intact", "logical"),
        *("intact", "logical", "own", "same"),
    ]


def test_show_tells_boxes_and_ranks(cli):
    lines = cli("show", "run@2").lines
    assert "  written by: 2 ranks" in lines
    assert "  mine.rank1.seen: 1" in lines
    assert [line.split() for line in lines[-6:]] == [
        ["tensor", "dtype", "shape", "size", "boxes"],
        ["model.weight", "float32", "4×10", "160", "B", "2"],
        ["model.tied", "float32", "4×10", "160", "B", "2"],
        ["model.bias", "float64", "3", "24", "B"],
        ["mine.rank0.drawn", "int64", "2", "16", "B"],
        ["mine.rank1.drawn", "int64", "2", "16", "B"],
    ]
    _, tied, bias, *_ = cli("show", "run@2", "--json").json["tensors"]
    boxes = [{"offsets": [0, start], "shape": [4, 5]} for start in (0, 5)]
    assert (tied["boxes"], bias.get("boxes")) == (boxes, None)
