"""The curves of the API: what is in the log and the records, in no more points than asked for."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import standfast
from standfast import Store
from standfast.training.metrics import read_metrics
from standfast.web import curves
from standfast.web.curves import Series
from tests.web.api.client import Api


@pytest.fixture
def api(small: Store) -> Api:
    return Api(Path(small.url).parent)


def test_a_short_log_is_told_as_it_is(api: Api, small: Store) -> None:
    run = small.find_run("gpt").hash
    assert small.logs is not None
    lines = [*read_metrics(small.logs / f"{run}_metrics.jsonl")]
    told = api(f"/runs/{run}/metrics")
    loss = told["metrics"]["loss"]
    logged = [(line.step, line.metrics["loss"]) for line in lines if "loss" in line.metrics]
    assert list(zip(loss["steps"], loss["values"], strict=True)) == logged
    assert loss["all"] == len(logged)
    assert told["damaged_lines"] == 0


def test_checkpoints_are_on_the_same_axis_with_their_marks_and_reasons(
    api: Api, small: Store
) -> None:
    run = small.find_run("gpt")
    told = api(f"/runs/{run.hash}/metrics")["checkpoints"]
    verdicts = {each.step: list(each.why) for each in run.verdicts()}
    assert [each["step"] for each in told] == sorted(verdicts)
    assert {each["step"]: each["why"] for each in told} == verdicts
    marks = {each["step"]: each["marks"] for each in told}
    assert marks[100] == ["paper"]
    assert "latest" in marks[200]


def test_without_a_log_the_records_are_told(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with store.run("a") as run:
        for step in (3, 1, 2):
            run.save(step, {"x": step}, metrics={"loss": step / 2})
    told = Api(store)(f"/runs/{run.hash}/metrics")
    assert told["metrics"] == {"loss": {"steps": [1, 2, 3], "values": [0.5, 1.0, 1.5], "all": 3}}


def write(path: Path, steps: range, **metrics: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    with path.open("ab") as log:
        for step in steps:
            values = {name: value(step) for name, value in metrics.items()}
            line = {"step": step, "epoch": None, "time": "2026-01-01T00:00:00Z", "metrics": values}
            log.write(msgspec.json.encode(line) + b"\n")


@pytest.fixture
def run(tmp_path: Path) -> standfast.Run:
    store = Store(tmp_path)
    return store.run("a")


def log_of(run: standfast.Run) -> Path:
    assert run.store.logs is not None
    return run.store.logs / f"{run.hash}_metrics.jsonl"


def test_a_log_that_grows_is_read_on(run: standfast.Run) -> None:
    api, path = Api(run.store), f"/runs/{run.hash}/metrics"
    assert api(path)["metrics"] == {}
    write(log_of(run), range(5), loss=float)
    assert api(path)["metrics"]["loss"]["values"] == [0, 1, 2, 3, 4]
    with log_of(run).open("ab") as log:
        log.write(b'{"step":5,"epoch":null,"time":"2026-01-01T00:00:00Z","me')
    assert api(path)["metrics"]["loss"]["all"] == 5, "a line that is being written is none yet"
    with log_of(run).open("ab") as log:
        log.write(b'trics":{"loss":5.0,"top":"NaN"}}\n')
    told = api(path)["metrics"]
    assert told["loss"]["values"] == [0, 1, 2, 3, 4, 5]
    assert told["top"] == {"steps": [5], "values": [None], "all": 1}


def test_a_log_that_was_cut_is_read_again(run: standfast.Run) -> None:
    api, path = Api(run.store), f"/runs/{run.hash}/metrics"
    write(log_of(run), range(9), loss=float)
    assert api(path)["metrics"]["loss"]["all"] == 9
    lines = log_of(run).read_bytes().splitlines(keepends=True)
    log_of(run).write_bytes(b"".join(lines[:3]))
    assert api(path)["metrics"]["loss"]["steps"] == [0, 1, 2]
    # Cut, and grown beyond what it was, in the same file.
    log_of(run).write_bytes(b"".join(lines[:2]))
    write(log_of(run), range(7, 20), loss=lambda step: -step)
    assert api(path)["metrics"]["loss"]["values"] == [0, 1, *range(-7, -20, -1)]
    log_of(run).unlink()
    assert api(path)["metrics"] == {}


def test_lines_that_are_none_are_counted_and_left_out(run: standfast.Run) -> None:
    write(log_of(run), range(2), loss=float)
    with log_of(run).open("ab") as log:
        log.write(b'no json\n\xff\n{"step":"x"}\n' + b"[" * 2000 + b"\n")
    write(log_of(run), range(2, 4), loss=float)
    told = Api(run.store)(f"/runs/{run.hash}/metrics")
    assert told["metrics"]["loss"]["values"] == [0, 1, 2, 3]
    assert told["damaged_lines"] == 4


def test_of_a_long_log_the_extremes_stay(run: standfast.Run) -> None:
    high, low = 7_777, 33_333

    def loss(step: int) -> float:
        return {high: 1e6, low: -1e6}.get(step, float(step % 10))

    write(log_of(run), range(50_000), loss=loss)
    told = Api(run.store)(f"/runs/{run.hash}/metrics?points=100")["metrics"]["loss"]
    assert told["all"] == 50_000
    assert len(told["steps"]) <= 100
    assert told["steps"] == sorted(told["steps"])
    assert dict(zip(told["steps"], told["values"], strict=True)) | {high: 1e6, low: -1e6} == dict(
        zip(told["steps"], told["values"], strict=True)
    )


def test_a_long_log_is_held_in_little(run: standfast.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curves, "_HELD", 1000)
    line = b'{"step":%d,"epoch":1,"time":"2026-01-01T00:00:00Z","metrics":{"loss":%d.5}}\n'
    log_of(run).parent.mkdir()
    with log_of(run).open("wb") as log:
        for step in range(0, 200_000, 1000):
            log.write(b"".join(line % (each, each % 777) for each in range(step, step + 1000)))
    held = curves.Curves()
    told = held.of_run(run.store, run.hash, 2000)["metrics"]["loss"]
    assert told["all"] == 200_000
    assert (min(told["values"]), max(told["values"])) == (0.5, 776.5)
    ((_, kept),) = held._logs.values()
    assert len(kept.series["loss"].steps) <= 2000
    again: list[bytes] = []
    monkeypatch.setattr(curves, "_take_lines", lambda lines, log: again.extend(lines))
    assert held.of_run(run.store, run.hash, 2000)["metrics"]["loss"] == told
    assert again == [], "what was read once is not read again"


def test_thinning_keeps_the_lowest_and_highest_of_each_stretch() -> None:
    rng = np.random.default_rng(0)
    for count in (101, 1000, 12345):
        values = rng.normal(size=count)
        values[rng.integers(count, size=count // 10)] = np.nan
        found = Series(range(count), values).thinned(100)
        steps, kept = found.steps.tolist(), found.values.tolist()
        assert len(steps) <= 100
        assert steps == sorted(set(steps))
        assert (steps[0], steps[-1]) == (0, count - 1)
        assert np.array_equal(np.array(kept), values[steps], equal_nan=True)
        edges = np.linspace(0, count, 50).astype(int)
        for first, end in itertools.pairwise(edges):
            inside = [value for step, value in zip(steps, kept, strict=True) if first <= step < end]
            numbers = [value for value in values[first:end] if np.isfinite(value)]
            assert {*inside} >= {min(numbers), max(numbers)} if numbers else inside


def test_what_is_smoothed_is_the_mean_of_all_and_not_of_the_extremes() -> None:
    """A loss with spikes is near its mean, however far they reach."""
    rng = np.random.default_rng(0)
    values = 2 + rng.normal(size=200_000) / 100
    values[::200] = 10
    values[7] = np.nan
    series = Series()
    for first in range(0, len(values), 1000):  # as a log grows
        part = values[first : first + 1000]
        series = series.followed_by(Series(range(first, first + len(part)), part))
        if len(series) >= 4000:
            series = series.thinned(2000)
    found = series.thinned(500)
    assert (found.all, found.steps[-1], found.values[-1]) == (200_000, 199_999, values[-1])
    assert np.average(found.means, weights=found.weights) == pytest.approx(np.nanmean(values))
    assert found.means.mean() == pytest.approx(2.04, abs=0.05)
    assert found.values.mean() > 2.5


def test_the_last_value_of_a_long_log_is_told_and_its_means(run: standfast.Run) -> None:
    write(log_of(run), range(10_000), loss=lambda step: 10.0 if step == 9_990 else 2.0)
    run.save(9_999, {"n": 1}, metrics={"loss": 2.0})
    told = Api(run.store)(f"/runs/{run.hash}/metrics?points=200")["metrics"]["loss"]
    assert (told["all"], told["steps"][-1], told["values"][-1]) == (10_000, 9_999, 2.0)
    assert 10.0 in told["values"]
    assert max(told["means"]) < 2.2
    assert (
        "means" not in Api(run.store)(f"/runs/{run.hash}/metrics?points=10000")["metrics"]["loss"]
    )


def test_of_two_values_of_one_step_the_later_line_counts() -> None:
    series = curves._in_order(Series([1, 2, 3, 2, 4], [5.0, 4.0, 3.0, 1.5, 1.0]))
    assert series.steps.tolist() == [1, 2, 3, 4]
    assert series.values.tolist() == [5.0, 1.5, 3.0, 1.0]
    assert series.all == 4


def test_a_line_that_is_too_long_hides_none_after_it(tmp_path: Path) -> None:
    path = tmp_path / "log"
    good = b'{"step": %d, "metrics": {"loss": 1.0}}\n'
    path.write_bytes(good % 1 + b"x" * (9 << 20) + b"\n" + good % 2)
    log = curves._Log()
    curves._read_on(path, log)
    assert log.series["loss"].steps.tolist() == [1, 2]
    assert log.damaged == 1
    with path.open("ab") as file:
        file.write(good % 3)
    curves._read_on(path, log)
    assert log.series["loss"].steps.tolist() == [1, 2, 3]
