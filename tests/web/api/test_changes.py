"""Stores that change, vanish, are damaged or asked by many while they are shown."""

from __future__ import annotations

import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import standfast
from standfast import Store
from standfast.web import changes
from standfast.web.api import checkpoints
from tests.web import stores
from tests.web.api.client import Api
from tests.web.conftest import Serve, Shown


def save(store: Store, name: str, *steps: int) -> standfast.Run:
    with store.run(name) as run:
        for step in steps:
            run.save(step, {"model": {"x": step}}, metrics={"loss": 1 / step})
    return run


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "store")
    save(store, "a", 1, 2)
    return store


def test_what_was_saved_or_deleted_meanwhile_is_told(store: Store) -> None:
    api = Api(Path(store.url).parent)
    assert api("/store")["checkpoints"] == 2
    run = save(store, "b", 1, 2, 3)
    assert [each["name"] for each in api("/runs")["runs"]] == ["b", "a"]
    run.delete(1)
    assert [each["step"] for each in api(f"/runs/{run.hash}/checkpoints")["checkpoints"]] == [3, 2]
    api(f"/checkpoints/{run.hash}/1", 404)
    run.delete_all()
    api(f"/runs/{run.hash}", 404)
    assert [each["name"] for each in api("/runs")["runs"]] == ["a"]


def test_the_state_is_another_after_each_change(store: Store) -> None:
    api = Api(Path(store.url).parent)
    run = store.find_run("a")
    seen = [api("/store")["state"]]
    for change in (
        lambda: save(store, "a", 3),
        lambda: run.checkpoint(3).tag("paper"),
        lambda: run.rename("another"),
        lambda: save(store, "b"),
        lambda: run.delete(1),
    ):
        change()
        seen.append(api("/store")["state"])
    assert len(set(seen)) == len(seen)


def test_who_waits_is_answered_when_something_changes(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(changes, "LONGEST", 600)
    monkeypatch.setattr(changes, "_SETTLED", 0)
    api = Api(Path(store.url).parent)
    state = api("/store?wait=another&seconds=600")["state"]  # who brings another need not wait
    begun = time.monotonic()
    assert api(f"/store?wait={state}&seconds=0.6")["state"] == state
    assert time.monotonic() - begun > 0.5
    threading.Timer(0.5, save, (store, "b", 1)).start()
    told = api(f"/store?wait={state}&seconds=600")
    assert told["state"] != state
    while told["runs"] == 1:  # it came upon an earlier step
        told = api(f"/store?wait={told['state']}&seconds=600")
    assert told["runs"] == 2


def test_who_was_told_of_a_change_by_another_page_waits_for_the_next_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store elsewhere is looked at seldom: what a page has just read is not older than that."""
    monkeypatch.setattr(changes, "_PAUSE", 20.0)
    monkeypatch.setattr(changes, "_SETTLED", 0)
    api = Api(Path(store.url).parent)
    state = api("/store")["state"]
    api(f"/store?wait={state}&seconds=0.1")
    save(store, "b", 1)
    state = api("/store")["state"]
    begun = time.monotonic()
    assert api(f"/store?wait={state}&seconds=0.6")["state"] == state
    assert time.monotonic() - begun > 0.5


def test_comparisons_that_take_long_hold_up_nothing_else(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()
    compared = []

    def slow(*_: Any) -> dict[str, Any]:
        begun.set()
        compared.append(ended.wait(60))
        return {}

    monkeypatch.setattr(checkpoints, "runs_diff_json", slow)
    run = store.find_run("a").hash
    with Api(Path(store.url).parent).client as client, ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(client.get, "/api/v1/compare?before=a&after=a") for _ in range(5)]
        assert begun.wait(60)
        time.sleep(0.3)  # and the others, if they may
        for path in (
            f"/runs/{run}/metrics",
            f"/checkpoints/{run}/1",
            f"/checkpoints/{run}/1/record",
        ):
            assert client.get(f"/api/v1{path}").status_code == 200
        assert not compared
        ended.set()
        assert [each.result().status_code for each in asked] == [200] * 5


def test_a_store_that_is_gone_is_410_and_told_of_again_when_it_is_back(
    store: Store, tmp_path: Path
) -> None:
    place, aside = tmp_path / "store", tmp_path / "aside"
    run = store.find_run("a").hash
    store.close()
    api = Api(place)
    assert api("/store")["runs"] == 1
    place.rename(aside)
    for path in (
        *("/store", "/runs", "/lineage", "/storage", "/compare?before=a&after=a"),
        *(f"/runs/{run}", f"/runs/{run}/checkpoints", f"/runs/{run}/metrics"),
        *(f"/checkpoints/{run}/1", f"/checkpoints/{run}/1/record"),
    ):
        assert api(path, 410)["error"]["kind"] == "NotAStore", path
    for page in ("/", "/lineage", "/storage", f"/runs/{run}"):
        assert api.client.get(page).status_code == 200
    assert not place.exists(), "to look for a store must not make one"
    aside.rename(place)
    assert api("/store")["checkpoints"] == 2
    shutil.rmtree(place)
    api("/runs", 410)
    save(Store(place), "new", 5)
    assert [each["name"] for each in api("/runs")["runs"]] == ["new"]


def test_a_store_that_vanishes_in_the_middle_never_breaks_an_answer(tmp_path: Path) -> None:
    place = tmp_path / "store"
    run = save(Store(place), "a", *range(1, 9)).hash
    api = Api(place)
    ended = threading.Event()
    paths = ("/store", "/runs", f"/runs/{run}", f"/runs/{run}/checkpoints", f"/runs/{run}/metrics",
             f"/checkpoints/{run}/3", "/lineage", "/storage")  # fmt: skip
    statuses: list[tuple[str, int]] = []

    def ask(path: str) -> None:
        while not ended.is_set():
            statuses.append((path, api.client.get(f"/api/v1{path}").status_code))

    asking = [threading.Thread(target=ask, args=(path,)) for path in paths]
    for thread in asking:
        thread.start()
    for number in range(4):
        time.sleep(0.1)
        shutil.rmtree(place, ignore_errors=True)
        time.sleep(0.05)
        save(Store(place), "a", *range(1, 5 + number))
    ended.set()
    for thread in asking:
        thread.join()
    assert {status for _, status in statuses} <= {200, 404, 410, 422}, statuses
    assert api("/store")["checkpoints"] == 7


def test_damage_is_told_and_nothing_else_suffers(
    shown: Shown,
) -> None:
    store = shown(stores.damaged)
    api = Api(store)
    runs = {run["name"]: run for run in api("/runs")["runs"]}
    assert runs["gpt"]["damaged"] == 1
    assert api("/store")["damaged"] == 1
    (lost,) = (run for run in runs.values() if run["problem"])
    assert api(f"/runs/{lost['run']}")["name"] == lost["name"]
    gpt = runs["gpt"]["run"]
    listed = {each["step"]: each for each in api(f"/runs/{gpt}/checkpoints")["checkpoints"]}
    assert listed[40]["damaged"]
    assert listed[40]["kept"] is None
    assert listed[20]["kept"]["keep"]
    assert api(f"/checkpoints/{gpt}/40", 422)["error"]["message"]
    assert api(f"/checkpoints/{gpt}/100", 422)["error"]["kind"] == "TruncatedFile"
    assert api(f"/checkpoints/{gpt}/80")["integrity"]["state"] == "damaged"
    error = api.send(f"/checkpoints/{gpt}/60/verify", status=422)["error"]
    assert error["kind"] == "DigestMismatch"
    assert api(f"/checkpoints/{gpt}/60")["integrity"]["state"] == "damaged"
    marks = {each["step"]: each["marks"] for each in api(f"/runs/{gpt}/metrics")["checkpoints"]}
    assert "damaged" in marks[40]


def test_hostile_names_are_told_as_they_are(shown: Shown) -> None:
    store = shown(stores.hostile)
    api = Api(store)
    told = {run["name"] for run in api("/runs?per_page=200")["runs"]}
    store.index.refresh()
    assert told == {listed.name for listed in store.index.runs()}
    assert any("<script>" in (name or "") for name in told)
    page = api.client.get("/").text
    _, _, rest = page.partition('id="boot">')
    boot = rest.partition("</script>")[0]
    assert not set("<>&'") & set(boot)
    assert {run["name"] for run in json.loads(boot)["data"]["runs"]} <= told


def test_thirty_requests_at_once_are_all_answered(small: Store, served: Serve) -> None:
    url = served(small)
    run = small.find_run("gpt").hash
    tensor = next(name for name in small.resolve(f"{run}@100").tensors if name.startswith("model."))
    paths = (
        *("/", "/api/v1/store", "/api/v1/runs", "/api/v1/lineage", "/api/v1/storage"),
        *(f"/api/v1/runs/{run}", f"/api/v1/runs/{run}/metrics", f"/api/v1/checkpoints/{run}/100"),
        *(f"/api/v1/tensor?ref={run}@100&name={tensor}", "/api/v1/store?wait=now&seconds=1"),
    )
    with httpx.Client(base_url=url, timeout=60) as client, ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(client.get, paths * 3))
    assert [answer.status_code for answer in answers] == [200] * 30
    for at in range(len(paths)):
        if paths[at] in ("/api/v1/runs", f"/api/v1/runs/{run}", "/api/v1/lineage"):
            assert len({answer.text for answer in answers[at :: len(paths)]}) == 1
