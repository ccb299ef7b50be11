"""Lists of the API: pages, filters, orders, and what of a store is told in them."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.errors import RunBusy
from standfast.store.backends.memory import MemoryBackend
from tests.web.api.client import Api


@pytest.fixture
def api(small: Store) -> Api:
    return Api(Path(small.url).parent)


def names(told: Any) -> list[str]:
    return [run["name"] for run in told["runs"]]


def test_runs_and_checkpoints_come_in_pages(api, small):
    every = [run["run"] for run in api("/runs")["runs"]]
    pages = [api(f"/runs?per_page=4&page={page}") for page in (1, 2, 3)]
    assert [len(page["runs"]) for page in pages] == [4, 2, 0]
    assert [run["run"] for page in pages for run in page["runs"]] == every
    assert {(page["total"], page["pages"], page["per_page"]) for page in pages} == {(6, 2, 4)}
    path = f"/runs/{small.find_run('gpt').hash}/checkpoints?per_page=4&page="
    steps = [[each["step"] for each in api(f"{path}{n}")["checkpoints"]] for n in (1, 2, 3)]
    assert steps == [[200, 180, 160, 140], [120, 100, 80, 60], [40, 20]]


def test_runs_are_found_by_text_and_by_parts_of_their_hash(api, small):
    gpt, low = (small.find_run(name).hash for name in ("gpt", "low rate"))
    for query, found in (
        ("q=LOW", {"low rate"}),
        (f"q={low[:12]}", {"low rate"}),
        (f"q={low[:8]}_{low[8:16]}", {"low rate"}),
        ("q=lr%3D5", {"not begun"}),
        ("q=adamw", {"gpt", "low rate", "wide", "less data"}),
        ("q=%00", set()),
        (f"hp={gpt[:8]}", {"gpt"}),
        (f"model={gpt[8:16]}", {"gpt", "low rate", "less data"}),
        (f"data={gpt[16:]}", {"gpt", "low rate", "wide"}),
        (f"hp={gpt[:8]}&model={gpt[8:16]}&data={gpt[16:]}", {"gpt"}),
        ("data=00000000", set()),
    ):
        assert set(names(api(f"/runs?{query}"))) == found, query
    assert api("/runs?q=_")["total"] < api("/runs")["total"]


def test_runs_are_found_by_the_metric_of_their_best_or_latest(api):
    every = api("/runs?metric=loss<1e9")["runs"]
    values = {run["run"]: (run["best"] or run["latest"])["metrics"]["loss"] for run in every}
    middle = sorted(values.values())[len(values) // 2]
    for sign, fits in (
        ("<", lambda value: value < middle),
        ("<=", lambda value: value <= middle),
        (">", lambda value: value > middle),
        (">=", lambda value: value >= middle),
        ("=", lambda value: value == middle),
    ):
        found = {run["run"] for run in api(f"/runs?metric=loss{sign}{middle!r}")["runs"]}
        assert found == {run for run, value in values.items() if fits(value)}, sign
    assert api("/runs?metric=nothing<1")["total"] == 0


def test_runs_are_sorted_and_those_without_a_metric_come_last(api):
    for sort, reverse in (("loss", False), ("-loss", True)):
        tops = [run["best"] or run["latest"] for run in api(f"/runs?sort={sort}")["runs"]]
        found = [top["metrics"].get("loss") if top else None for top in tops]
        having = [loss for loss in found if loss is not None]
        assert len(having) >= 4
        assert found == sorted(having, reverse=reverse) + [None] * (len(found) - len(having))
    assert names(api("/runs?sort=name")) == sorted(names(api("/runs")))
    assert names(api("/runs?sort=-name")) == sorted(names(api("/runs")), reverse=True)
    counts = [run["checkpoints"] for run in api("/runs?sort=checkpoints")["runs"]]
    assert counts == sorted(counts, reverse=True)
    assert names(api("/runs?sort=-time")) == names(api("/runs?sort=time"))[::-1]


def test_the_metrics_of_a_run_are_those_of_its_best_or_else_latest_checkpoint(tmp_path):
    store = Store(tmp_path)
    for name, best in (("by save", 1), ("by mark", 2), ("none", 0)):
        with store.run(name) as run:
            for step, loss in ((1, 0.1), (2, 0.2), (3, 0.3)):
                run.save(step, {"x": step}, metrics={"loss": loss}, best=best == step == 1)
        if best == 2:  # a metric that came late counts too
            run.checkpoint(2).add_metrics({"score": 1.0}, best=True)
    api = Api(store)
    for value, name in ((0.1, "by save"), (0.2, "by mark"), (0.3, "none")):
        assert names(api(f"/runs?metric=loss={value}")) == [name]
    assert names(api("/runs?sort=loss")) == ["by save", "by mark", "none"]
    assert names(api("/runs?metric=score>0.5&sort=score")) == ["by mark"]


KILLED = """
import os, sys, standfast
run = standfast.Store(sys.argv[1]).run("killed")
run.take()
run.save(1, {"x": 1})
print("taken", flush=True)
sys.stdin.read()
os._exit(9)
"""


def test_a_store_in_a_folder_whose_name_is_no_text_is_shown(tmp_path):
    place = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    Store(place).run("a").save(1, {"n": 1})
    api = Api(place)
    assert api("/store")["runs"] == 1
    assert "caf" in api.client.get("/").text


def test_a_run_is_live_while_a_process_writes_into_it(tmp_path):
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    program = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)
    assert program.stdout is not None
    assert program.stdout.readline() == "taken\n"
    api = Api(tmp_path)
    before = api("/store")["state"]
    assert api("/runs")["runs"][0]["live"] is True
    with pytest.raises(RunBusy):  # to look must not have taken it from its writer
        Store(tmp_path).run("killed").take(0)
    program.communicate("")
    assert api("/runs")["runs"][0]["live"] is False
    with Store(tmp_path).run("killed") as run:
        run.save(2, {"x": 2})  # which still holds its lock
        assert api("/runs")["runs"][0]["live"] is True
    assert api("/runs")["runs"][0]["live"] is False
    assert api("/store")["state"] != before


def test_a_store_that_is_in_no_folder_is_told_of_too():
    store = Store(MemoryBackend())
    with store.run("a") as run:
        for step in (1, 2):
            run.save(step, {"model": {"x": step}}, metrics={"loss": 1 / step})
        api = Api(store)
        (told,) = api("/runs")["runs"]
        assert (told["name"], told["live"], told["checkpoints"]) == ("a", True, 2)
    assert api(f"/runs/{run.hash}/metrics")["metrics"]["loss"]["values"] == [1, 0.5]
    assert api(f"/runs/{run.hash}")["usage"]["checkpoints"] == 2
    assert api(f"/checkpoints/{run.hash}/2")["step"] == 2
    assert api("/storage")["usage"]["total"]["checkpoints"] == 2
    assert api.client.get("/").status_code == 200


def test_no_filter_takes_long(api):
    began = time.process_time()
    for text in ("a" + " " * 120 + "<" + " " * 376 + "<", "<" * 5000, " " * 5000 + "=", "_" * 999):
        api.client.get("/api/v1/runs", params={"metric": text, "q": text})
    assert time.process_time() - began < 2
