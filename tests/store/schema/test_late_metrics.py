"""Metrics that become known after a commit, and what they make the best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.store.query.listing import checkpoints


def _run(store: Path, *bests: bool) -> standfast.Run:
    run = standfast.Store(store).run("late")
    for step, best in enumerate(bests, 1):
        run.save(step, {"w": np.full(3, step)}, metrics={"loss": float(step)}, best=best)
    return run


def test_they_are_seen_beside_those_that_were_saved(tmp_path: Path) -> None:
    checkpoint = _run(tmp_path, False).checkpoint(1)
    checkpoint.tag("kept")
    assert checkpoint.metrics == {"loss": 1.0}
    checkpoint.add_metrics({"val": np.float32(0.5), "worst": float("inf")})
    assert checkpoint.metrics == {"loss": 1.0, "val": 0.5, "worst": float("inf")}
    again = standfast.Store(tmp_path).resolve("late@1")
    assert again.metrics == checkpoint.metrics
    assert again.tags == ["kept"]
    again.note("seen")
    assert again.metrics["val"] == 0.5


def test_a_metric_that_is_no_number_is_refused(tmp_path: Path) -> None:
    checkpoint = _run(tmp_path, False).checkpoint(1)
    with pytest.raises(errors.RefusedState, match="a metric is a number"):
        checkpoint.add_metrics({"val": "good"})
    assert checkpoint.metrics == {"loss": 1.0}


def test_the_last_one_that_was_made_the_best_is_it(tmp_path: Path) -> None:
    run = _run(tmp_path, True, False, True, False)
    assert run.checkpoint("best").step == 3
    run.checkpoint(2).add_metrics({}, best=True)
    assert run.checkpoint("best").step == 2
    run.checkpoint(4).add_metrics({}, best=True)
    run.checkpoint(1).add_metrics({}, best=True)  # after no further commit
    assert run.checkpoint("best").step == 1
    run.save(5, {"w": np.zeros(3)})
    assert run.checkpoint("best").step == 1
    run.save(6, {"w": np.zeros(3)}, best=True)
    assert run.checkpoint("best").step == 6
    store = standfast.Store(tmp_path)
    store.index.rebuild()
    marked = {entry.step: entry.marks for entry in checkpoints(store.index)}
    assert [step for step, marks in marked.items() if "best" in marks] == [6]


def test_marks_without_them_are_as_they_were(tmp_path: Path) -> None:
    _run(tmp_path, False).checkpoint(1).tag("kept")
    text = next(tmp_path.rglob("*.marks.json")).read_text()
    assert '"metrics"' not in text
    assert '"best"' not in text


def test_a_run_can_be_looked_for_without_being_made(tmp_path: Path) -> None:
    store = standfast.Store(tmp_path)
    with pytest.raises(errors.NotAStore):
        store.known_run("gpt", hp={"lr": 1})
    assert not (tmp_path / "checkpoints").exists()
    store.run("other")
    assert store.known_run("gpt", hp={"lr": 1}) is None
    made = store.run("gpt", hp={"lr": 1})
    found = store.known_run("gpt", hp={"lr": 1})
    assert found is not None
    assert found.hash == made.hash
    assert store.known_run("gpt", hp={"lr": 2}) is None


def test_a_new_run_knows_the_checkpoint_that_it_goes_on_from(tmp_path: Path) -> None:
    first = _run(tmp_path, False, False)
    store = standfast.Store(tmp_path)
    branch = store.run("branch", hp={"lr": 2}, parent=first.checkpoint(1))
    saved = branch.save(2, {"w": np.zeros(3)})
    assert saved.parent == first.checkpoint(1)
    assert branch.parent == first.checkpoint(1).head.place
    assert store.run("branch", hp={"lr": 2}, parent=first.checkpoint(2)).parent == branch.parent
