"""The curves of the API: what is in the log and the records, in no more points than asked for."""

import itertools
import os
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from standfast import Run
from standfast.training.metrics import read_metrics
from standfast.web.curves import Series
from tests.web.api.client import Api


def test_a_short_log_is_told_as_it_is_with_the_checkpoints_and_why_they_stay(small):
    run = small.find_run("gpt")
    lines = [*read_metrics(log_of(run))]
    told = Api(Path(small.url).parent)(f"/runs/{run.hash}/metrics")
    loss = told["metrics"]["loss"]
    logged = [(line.step, line.metrics["loss"]) for line in lines if "loss" in line.metrics]
    assert list(zip(loss["steps"], loss["values"], strict=True)) == logged
    assert (loss["all"], told["damaged_lines"]) == (len(logged), 0)
    verdicts = {each.step: list(each.why) for each in run.verdicts()}
    assert [each["step"] for each in told["checkpoints"]] == sorted(verdicts)
    assert {each["step"]: each["why"] for each in told["checkpoints"]} == verdicts
    marks = {each["step"]: each["marks"] for each in told["checkpoints"]}
    assert (marks[100], "latest" in marks[200]) == (["paper"], True)


def test_without_a_log_the_records_are_told(run):
    for step in (3, 1, 2):
        run.save(step, {"x": step}, metrics={"loss": step / 2})
    told = Api(run.store)(f"/runs/{run.hash}/metrics")
    assert told["metrics"] == {"loss": {"steps": [1, 2, 3], "values": [0.5, 1.0, 1.5], "all": 3}}


def write(run: Run, steps: range, **metrics: Any) -> None:
    with log_of(run).open("ab") as log:
        for step in steps:
            values = {name: value(step) for name, value in metrics.items()}
            line = {"step": step, "epoch": None, "time": "2026-01-01T00:00:00Z", "metrics": values}
            log.write(msgspec.json.encode(line) + b"\n")


def log_of(run: Run) -> Path:
    assert run.store.logs is not None
    run.store.logs.mkdir(exist_ok=True)
    return run.store.logs / f"{run.hash}_metrics.jsonl"


def test_a_log_that_grows_is_read_on(run):
    api, path = Api(run.store), f"/runs/{run.hash}/metrics"
    assert api(path)["metrics"] == {}
    write(run, range(5), loss=float)
    assert api(path)["metrics"]["loss"]["values"] == [0, 1, 2, 3, 4]
    with log_of(run).open("ab") as log:
        log.write(b'{"step":5,"epoch":null,"time":"2026-01-01T00:00:00Z","me')
    assert api(path)["metrics"]["loss"]["all"] == 5, "a line that is being written is none yet"
    with log_of(run).open("ab") as log:
        log.write(b'trics":{"loss":5.0,"top":"NaN"}}\n')
    told = api(path)["metrics"]
    assert told["loss"]["values"] == [0, 1, 2, 3, 4, 5]
    assert told["top"] == {"steps": [5], "values": [None], "all": 1}
    write(run, range(3, 5), loss=lambda step: -step)
    assert api(path)["metrics"]["loss"]["values"] == [0, 1, 2, -3, -4, 5], "the later line counts"


def test_a_log_that_was_cut_is_read_again(run):
    api, path = Api(run.store), f"/runs/{run.hash}/metrics"
    write(run, range(9), loss=float)
    assert api(path)["metrics"]["loss"]["all"] == 9
    lines = log_of(run).read_bytes().splitlines(keepends=True)
    log_of(run).write_bytes(b"".join(lines[:3]))
    assert api(path)["metrics"]["loss"]["steps"] == [0, 1, 2]
    # Cut, and grown beyond what it was, in the same file.
    log_of(run).write_bytes(b"".join(lines[:2]))
    write(run, range(7, 20), loss=lambda step: -step)
    assert api(path)["metrics"]["loss"]["values"] == [0, 1, *range(-7, -20, -1)]
    log_of(run).unlink()
    assert api(path)["metrics"] == {}


def test_lines_that_are_none_are_counted_and_left_out(run):
    write(run, range(2), loss=float)
    with log_of(run).open("ab") as log:
        log.write(b'no json\n\xff\n{"step":"x"}\n' + b"[" * 2000 + b"\n" + b"x" * (9 << 20) + b"\n")
    write(run, range(2, 4), loss=float)
    told = Api(run.store)(f"/runs/{run.hash}/metrics")
    assert told["metrics"]["loss"]["values"] == [0, 1, 2, 3]
    assert told["damaged_lines"] == 5


def test_of_a_long_log_the_extremes_the_last_value_and_the_means_stay(run, seams):
    seams.bound("points held of a curve", 1000)
    values = {777: 1e3, 3_333: -1e3, 9_990: 10.0}
    write(run, range(10_000), loss=lambda step: values.get(step, 2.0))
    run.save(9_999, {"n": 1}, metrics={"loss": 2.0})
    read: list[int] = []

    def counted(pread: Any, *given: int) -> bytes:
        data: bytes = pread(*given)
        read.append(len(data))
        return data

    seams.system(os, pread=counted)
    api, path = Api(run.store), f"/runs/{run.hash}/metrics?points=200"
    told = api(path)["metrics"]["loss"]
    shown = dict(zip(told["steps"], told["values"], strict=True))
    assert (told["all"], [*shown][-1]) == (10_000, 9_999)
    assert len(shown) <= 200
    assert [*shown] == sorted(shown)
    assert shown == {step: values.get(step, 2.0) for step in shown}
    assert {777, 3_333, 9_990} <= {*shown}
    assert told["means"][-1] < 2.2
    assert sum(read) > 100_000
    read.clear()
    assert api(path)["metrics"]["loss"] == told
    assert sum(read) < 10_000, "what was read once is not read again"


@pytest.mark.parametrize("count", [101, 1000, 12345])
def test_thinning_keeps_the_lowest_and_highest_of_each_stretch(count):
    rng = np.random.default_rng(0)
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


def test_what_is_smoothed_is_the_mean_of_all_and_not_of_the_extremes():
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
