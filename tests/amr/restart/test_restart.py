"""A run of T steps equals k steps, a new process, and T - k steps: every byte of the state."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast import Run, Store
from standfast.amr import Snapshot, logical_digest
from standfast.tensors import randomness
from tests import ROOT
from tests.amr.meshes import merged
from tests.amr.restart.program import AGAIN
from tests.amr.restart.simulations import LAST, SIMULATIONS, Simulation
from tests.amr.restart.states import blocks_by_place, digest, followed
from tests.kit.rank_threads import on_threads

EVERY = [f"{name}:{step}" for name, last in LAST.items() for step in range(last + 1)]
"""Right after each of the changes of the scripts, in between, and at the end."""
SOME = ["heat:1", "heat:3", "heat:10", "heat:15", "links:2", "links:7", "links:13"]
ON_RANKS = ["heat:3", "heat:10", "links:7"]
"""Right after changes of several kinds, weighted partitions among them."""


def content(run: Run, step: int) -> Any:
    """All that a checkpoint holds, wherever its bytes lie."""
    record = run.checkpoint(step).record
    return record.tree, record.names, record.specs, record.digests


@pytest.mark.parametrize(
    ("count", "after"),
    [
        *(pytest.param(1, SOME, id="1"), pytest.param(3, ON_RANKS, id="3")),
        *(pytest.param(n, EVERY, id=f"{n}, every", marks=pytest.mark.long) for n in (1, 2, 3, 4)),
    ],
)
def test_a_run_goes_on_as_if_it_had_not_stopped(count, after, tmp_path):
    command = [sys.executable, "-m", "tests.amr.restart.program", str(tmp_path), str(count), *after]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr

    def told(name: str) -> list[Any]:
        """What each rank told under a name."""
        paths = [tmp_path / f"{name}-{rank}.json" for rank in range(count)]
        return [json.loads(path.read_text()) for path in paths]

    for each in after:
        name, step = each.split(":")
        run = Store(tmp_path / "store").run(name)
        assert content(run, int(step)) == content(run, AGAIN + int(step)), each
        files = Snapshot(run.checkpoint(int(step))).export(tmp_path, extras=False)
        ranks = zip(told(f"straight-{name}"), told(f"resumed-{each}"), files, strict=True)
        for states, again, file in ranks:
            assert list(map(int, again)) == list(range(int(step), LAST[name] + 1))
            assert again == {number: states[number] for number in again}, each
            assert digest(Path(file).read_bytes()) == states[step]["file"]
            assert all(state["file"] == state["file written again"] for state in states.values())
    for name, last in LAST.items() if count > 1 else ():
        ends = [states[str(last)] for states in told(f"straight-{name}")]
        assert len({end["fields"] for end in ends}) == count, "they have parts of one mesh"
        assert len({end["owners"] for end in ends}) == 1
        owners = {state["owners"] for state in told(f"straight-{name}")[0].values()}
        assert len(owners) > 3, "which change while it runs"


SHARED = {"heat": 11, "links": 9}
"""The step whose snapshot is loaded by other numbers of ranks: there are tombstones, and levels."""


@pytest.fixture(autouse=True)
def _generators_kept() -> Iterator[None]:
    before = randomness.capture()
    yield
    randomness.restore(before)


@pytest.mark.parametrize("name", SIMULATIONS)
@pytest.mark.parametrize(
    ("count", "others"),
    [
        (3, (2, 1)),
        pytest.param(4, (2, 3, 1), marks=pytest.mark.long),
        pytest.param(1, (4,), marks=pytest.mark.long),
    ],
)
def test_other_numbers_of_ranks_have_the_same_blocks_and_go_on_alike(count, others, name, tmp_path):
    kind, step = SIMULATIONS[name], SHARED[name]

    def blocks(size: int) -> Any:
        """By step the blocks of all ranks, none of which has another's."""

        def program(comm: Any) -> Any:
            comm = None if size == 1 else comm
            store = Store(tmp_path / "store")
            if size == count:
                simulation: Simulation = kind.begun(comm, by_place=True)
                while simulation.step < step:
                    simulation.advance()
            else:
                simulation = kind.resumed(store.run(str(count)), step, comm, by_place=True)
            simulation.save(store.run(str(size)))
            return followed(simulation, blocks_by_place)

        ranks = on_threads(size, program)
        assert all(rank.keys() == ranks[0].keys() for rank in ranks)
        return {step: merged([rank[step] for rank in ranks]) for step in ranks[0]}

    expected, digests = blocks(count), set()
    assert sorted(map(int, expected)) == list(range(step, LAST[name] + 1))
    for other in others:
        assert blocks(other) == expected, f"{name} on {other} ranks"
    for size in (count, *others):
        checkpoint = Store(tmp_path / "store").run(str(size)).checkpoint(step)
        files = Snapshot(checkpoint).export(tmp_path / f"{size}.sunc")
        assert len(files) == size
        digests |= {logical_digest(checkpoint), logical_digest(*files)}
    assert len(digests) == 1
