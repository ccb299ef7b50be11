"""The same on several ranks: each compares its own bytes, its ghosts, and who owns what."""

from __future__ import annotations

from pathlib import Path

import pytest

from standfast import Store
from standfast.amr import Snapshot
from tests.amr.restart.program import AGAIN
from tests.amr.restart.simulations import LAST
from tests.amr.restart.starting import content, start, told
from tests.amr.restart.states import digest, first_difference

AFTER = {
    2: "heat:1 heat:3 heat:9 links:2 links:7",
    3: "heat:2 heat:10 links:5",
    4: "heat:4 heat:8 heat:15 links:6",
}
"""Right after changes of all kinds, weighted partitions among them."""
EVERY = " ".join(f"{name}:{step}" for name, last in LAST.items() for step in range(last))


@pytest.mark.parametrize("count", AFTER)
def test_ranks_go_on_as_if_they_had_not_stopped(count: int, tmp_path: Path) -> None:
    _check_restarts(count, AFTER[count].split(), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("count", AFTER)
def test_ranks_go_on_after_every_step(count: int, tmp_path: Path) -> None:
    _check_restarts(count, EVERY.split(), tmp_path)


def _check_restarts(count: int, after: list[str], folder: Path) -> None:
    start(count, "straight", folder / "store", folder, *after)
    start(count, "resume", folder / "store", folder, *after)
    for each in after:
        name, step = each.split(":")
        run = Store(folder / "store").run(name)
        assert content(run, int(step)) == content(run, AGAIN + int(step)), each
        files = Snapshot(run.checkpoint(int(step))).export(folder, extras=False)
        for rank in range(count):
            straight = told(folder, f"straight-{name}", rank)
            resumed = told(folder, f"resumed-{name}-{step}", rank)
            assert list(map(int, resumed)) == list(range(int(step), LAST[name] + 1))
            assert first_difference(straight, resumed) is None, f"{each} on rank {rank}"
            assert digest(Path(files[rank]).read_bytes()) == straight[step]["file"]
    _check_telling(count, folder)


def _check_telling(count: int, folder: Path) -> None:
    """The ranks have different parts of one mesh, whose owners change while it runs."""
    for name, last in LAST.items():
        states = [told(folder, f"straight-{name}", rank) for rank in range(count)]
        assert len({state[str(last)]["fields"] for state in states}) == count
        assert all(state[str(last)]["owners"] == states[0][str(last)]["owners"] for state in states)
        assert len({state["owners"] for state in states[0].values()}) > 3
