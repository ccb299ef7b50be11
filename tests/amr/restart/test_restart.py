"""A run of T steps equals k steps, a new process, and T - k steps: every byte of the state."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Run, Store
from standfast.amr import Snapshot
from standfast.tensors import randomness
from tests import ROOT
from tests.amr.restart.program import AGAIN
from tests.amr.restart.simulations import LAST, Heat, Simulation
from tests.amr.restart.states import digest, first_difference, followed, whole_state
from tests.kit.parallel_ranks import run_ranks

PROGRAM = Path(__file__).with_name("program.py")
EVERY = [f"{name}:{step}" for name, last in LAST.items() for step in range(last + 1)]
"""Right after each of the changes of the scripts, in between, and at the end."""
SOME = ["heat:1", "heat:3", "heat:10", "heat:15", "links:2", "links:7", "links:13"]
ON_RANKS = ["heat:3", "heat:10", "links:7"]
"""Right after changes of several kinds, weighted partitions among them."""


def start(count: int, what: str, store: Path, out: Path, *arguments: Any) -> None:
    """Run a part of the program on so many ranks, to its end."""
    words = [str(count), what, str(store), str(out), *map(str, arguments)]
    if count > 1:
        run_ranks(count, PROGRAM, *words)
        return
    command = [sys.executable, "-m", "tests.amr.restart.program", *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def told(out: Path, name: str, rank: int = 0) -> Any:
    """What a rank told under a name."""
    return json.loads((out / f"{name}-{rank}.json").read_text())


def content(run: Run, step: int) -> Any:
    """All that a checkpoint holds, wherever its bytes lie."""
    record = run.checkpoint(step).record
    return record.tree, record.names, record.specs, record.digests


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run without a stop has left its store and its states."""
    folder = tmp_path_factory.mktemp("straight")
    start(1, "straight", folder / "store", folder, *EVERY)
    return folder


@pytest.mark.parametrize(
    "after",
    [pytest.param(SOME, id="some steps"), pytest.param(EVERY, id="every", marks=pytest.mark.long)],
)
def test_a_run_goes_on_as_if_it_had_not_stopped(
    after: list[str], straight: Path, tmp_path: Path
) -> None:
    start(1, "resume", straight / "store", tmp_path, *after)
    check_restarts(1, after, straight, tmp_path)


@pytest.mark.parametrize(
    ("count", "after"),
    [
        pytest.param(3, ON_RANKS, id="3"),
        *(pytest.param(n, EVERY, id=f"{n}, every", marks=pytest.mark.long) for n in (2, 3, 4)),
    ],
)
def test_ranks_go_on_as_if_they_had_not_stopped(
    count: int, after: list[str], tmp_path: Path
) -> None:
    start(count, "straight", tmp_path / "store", tmp_path, *after)
    start(count, "resume", tmp_path / "store", tmp_path, *after)
    check_restarts(count, after, tmp_path, tmp_path)
    for name, last in LAST.items():  # the parts of one mesh, whose owners change while it runs
        states = [told(tmp_path, f"straight-{name}", rank) for rank in range(count)]
        assert len({state[str(last)]["fields"] for state in states}) == count
        assert all(state[str(last)]["owners"] == states[0][str(last)]["owners"] for state in states)
        assert len({state["owners"] for state in states[0].values()}) > 3


def check_restarts(count: int, after: list[str], straight: Path, resumed: Path) -> None:
    for each in after:
        name, step = each.split(":")
        run = Store(straight / "store").run(name)
        assert content(run, int(step)) == content(run, AGAIN + int(step)), each
        files = Snapshot(run.checkpoint(int(step))).export(resumed, extras=False)
        for rank in range(count):
            states = told(straight, f"straight-{name}", rank)
            again = told(resumed, f"resumed-{name}-{step}", rank)
            assert list(map(int, again)) == list(range(int(step), LAST[name] + 1))
            assert first_difference(states, again) is None, f"{each} on rank {rank}"
            assert digest(Path(files[rank]).read_bytes()) == states[step]["file"]
            assert all(state["file"] == state["file written again"] for state in states.values())


def test_restarts_in_a_row_change_nothing(straight: Path, tmp_path: Path) -> None:
    ends = (5, 12, 17)
    for last in ends:
        start(1, "on", tmp_path / "store", tmp_path, last)
    for name, last in LAST.items():
        states: dict[str, Any] = {}
        for end in ends:
            states |= told(tmp_path, f"on-{name}-{end}")
        assert states == told(straight, f"straight-{name}")
        runs = [Store(folder / "store").run(name) for folder in (straight, tmp_path)]
        assert content(runs[0], last) == content(runs[1], last)


def sort_free_list(simulation: Simulation) -> None:
    arena = simulation.arena
    arena.free_slots[: arena.free_count].sort()


def drop_dead_blocks(simulation: Simulation) -> None:
    tree = simulation.tree
    blocks, slots = tree.blocks[tree.live].copy(), tree.field_slots[tree.live].copy()
    blocks["block_index"] = np.arange(len(blocks))
    geometry = tree.base_spacing, tree.bits_per_dim, tree.max_level
    simulation.tree = type(tree).restored(tree.frontend, *geometry, blocks, slots)


@pytest.fixture
def _generators_kept() -> Iterator[None]:
    before = randomness.capture()
    yield
    randomness.restore(before)


@pytest.mark.usefixtures("_generators_kept")
@pytest.mark.parametrize(
    ("leave_out", "step", "at_once", "later"),
    [
        (None, 4, ["random"], 5),
        (sort_free_list, 5, ["file", "file written again", "free_slots"], 6),
        (drop_dead_blocks, 4, ["blocks", "field_slots", "file", "file written again", "ghosts"], 6),
    ],
    ids=["random state", "free-list order", "tombstones"],
)
def test_a_restart_without_it_ends_elsewhere(
    leave_out: Callable[[Simulation], None] | None,
    step: int,
    at_once: list[str],
    later: int,
    straight: Path,
) -> None:
    """And not in the bytes of a section alone: the fields are others from the step `later` on."""
    run = Store(straight / "store").run("heat")
    simulation = Heat.resumed(run, step, with_random=leave_out is not None)
    if leave_out is not None:
        leave_out(simulation)
    expected = told(straight, "straight-heat")
    found = followed(simulation, step + 4, whole_state)
    assert first_difference(expected, found) == (step, at_once)
    apart = [int(each) for each in found if expected[each]["fields"] != found[each]["fields"]]
    assert apart == list(range(later, step + 5))
