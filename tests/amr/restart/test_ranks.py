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

AFTER = ["heat:3", "heat:10", "links:7"]
"""Right after changes of several kinds, weighted partitions among them."""
EVERY = [f"{name}:{step}" for name, last in LAST.items() for step in range(last)]


@pytest.mark.parametrize(
    ("count", "after"),
    [
        pytest.param(3, AFTER, id="3"),
        *(
            pytest.param(count, EVERY, id=f"{count}, every step", marks=pytest.mark.long)
            for count in (2, 3, 4)
        ),
    ],
)
def test_ranks_go_on_as_if_they_had_not_stopped(
    count: int, after: list[str], tmp_path: Path
) -> None:
    folder = tmp_path
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
