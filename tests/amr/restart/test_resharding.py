"""A snapshot on another number of ranks: the same blocks, the same digest, the same future."""

from collections.abc import Iterator
from typing import Any

import pytest

from standfast import Store
from standfast.amr import Snapshot, logical_digest
from standfast.tensors import randomness
from tests.amr.meshes import merged
from tests.amr.restart.simulations import LAST, SIMULATIONS, Simulation
from tests.amr.restart.states import blocks_by_place, followed
from tests.kit.rank_threads import on_threads

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
