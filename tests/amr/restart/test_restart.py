"""A run of T steps equals k steps, a new process, and T - k steps: every byte of the state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.amr import Snapshot
from tests.amr.restart.program import AGAIN
from tests.amr.restart.simulations import LAST
from tests.amr.restart.starting import content, start, told
from tests.amr.restart.states import digest, first_difference

EVERY = [f"{name}:{step}" for name, last in LAST.items() for step in range(last + 1)]
"""Right after each of the changes of the scripts, in between, and at the end."""


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a run without a stop has left its store and its states."""
    folder = tmp_path_factory.mktemp("straight")
    start(1, "straight", folder / "store", folder, *EVERY)
    return folder


def test_a_run_goes_on_after_every_step_as_if_it_had_not_stopped(
    straight: Path, tmp_path: Path
) -> None:
    start(1, "resume", straight / "store", tmp_path, *EVERY)
    for each in EVERY:
        name, step = each.split(":")
        resumed = told(tmp_path, f"resumed-{name}-{step}")
        assert list(map(int, resumed)) == list(range(int(step), LAST[name] + 1))
        assert first_difference(told(straight, f"straight-{name}"), resumed) is None, each
        run = Store(straight / "store").run(name)
        assert content(run, int(step)) == content(run, AGAIN + int(step)), each


@pytest.mark.parametrize("name", LAST)
def test_files_are_the_same_bytes_however_often_they_are_saved_and_loaded(
    name: str, straight: Path, tmp_path: Path
) -> None:
    run = Store(straight / "store").run(name)
    for step, state in told(straight, f"straight-{name}").items():
        assert state["file"] == state["file written again"]
        (path,) = Snapshot(run.checkpoint(int(step))).export(tmp_path / "a.sunc", extras=False)
        assert digest(Path(path).read_bytes()) == state["file"]


def test_three_restarts_in_a_row_change_nothing(straight: Path, tmp_path: Path) -> None:
    ends = (4, 9, 12, 17)
    for last in ends:
        start(1, "on", tmp_path / "store", tmp_path, last)
    for name, last in LAST.items():
        states: dict[str, Any] = {}
        for end in ends:
            states |= told(tmp_path, f"on-{name}-{end}")
        assert states == told(straight, f"straight-{name}")
        runs = [Store(folder / "store").run(name) for folder in (straight, tmp_path)]
        assert content(runs[0], last) == content(runs[1], last)


@pytest.mark.parametrize(
    ("without", "step", "at_once", "later"),
    [
        ("random", 4, ["random"], 5),
        ("free order", 5, ["file", "file written again", "free_slots"], 6),
        ("tombstones", 4, ["blocks", "field_slots", "file", "file written again", "ghosts"], 6),
    ],
    ids=["random state", "free-list order", "tombstones"],
)
def test_a_restart_without_it_ends_elsewhere(
    without: str, step: int, at_once: list[str], later: int, straight: Path, tmp_path: Path
) -> None:
    """And not in the bytes of a section alone: the fields are others from the step `later` on."""
    start(1, "control", straight / "store", tmp_path, without, step)
    expected = told(straight, "straight-heat")
    found = told(tmp_path, f"control-{without}")
    assert first_difference(expected, found) == (step, at_once)
    apart = [int(each) for each in found if expected[each]["fields"] != found[each]["fields"]]
    assert apart == list(range(later, step + 5))
