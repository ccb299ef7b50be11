"""Stores that change, vanish, are damaged or asked by many while they are shown."""

import asyncio
import json
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

import standfast
from standfast import Store
from tests.web import stores
from tests.web.api.client import Api


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


def test_changes_are_told_and_the_state_is_another_after_each(store):
    api, run = Api(Path(store.url).parent), store.find_run("a")
    assert api("/store")["checkpoints"] == 2
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
    assert [each["name"] for each in api("/runs")["runs"]] == ["b", "another"]
    assert [each["step"] for each in api(f"/runs/{run.hash}/checkpoints")["checkpoints"]] == [3, 2]
    api(f"/checkpoints/{run.hash}/1", 404)
    run.checkpoint(3).untag("paper")
    run.delete_all()
    api(f"/runs/{run.hash}", 404)


def test_who_waits_is_answered_when_something_changes(store, seams):
    clock, actions = seams.clock(), list[Callable[[], object]]()

    async def passing(sleep: Any, seconds: float) -> None:
        clock.advance(seconds)
        await sleep(0)
        if actions:
            actions.pop()()

    seams.system(asyncio, sleep=passing)
    seams.bound("settled changes", 0)
    seams.bound("interval of a dashboard's look", 20.0)  # as of a store elsewhere
    api = Api(Path(store.url).parent)

    def waited(state: str, seconds: object) -> tuple[float, Any]:
        begun = clock.now
        told = api(f"/store?wait={state}&seconds={seconds}")
        return clock.now - begun, told

    took, told = waited("another", 20)
    assert took < 1, "who brings another state need not wait"
    state = told["state"]
    assert waited(state, 20)[1]["state"] == state
    for seconds in (5, "inf", "1e400", 600):
        assert 4 < waited(state, seconds)[0] < 26, "nobody waits for ever"
    for seconds in ("nan", "-inf", "x"):
        assert waited(state, seconds)[0] < 26
    actions.append(lambda: save(store, "b", 1))
    clock.advance(20)
    took, told = waited(state, 24)
    assert (told["runs"], told["state"] != state) == (2, True)
    save(store, "c", 1)
    state = api("/store")["state"]  # one page is told, and another one waits for the next change
    assert waited(state, 5)[0] > 4


def test_comparisons_that_take_long_hold_up_nothing_else(store, seams):
    begun, ended = threading.Event(), threading.Event()
    run, slow = store.find_run("a").hash, save(store, "slow", 1).hash
    api = Api(Path(store.url).parent)
    api("/runs")  # now the index knows what there is

    def slowly(read: Any, name: str, *more: Any) -> Any:
        if slow in name:
            begun.set()
            ended.wait(60)
        return read(name, *more)

    seams.backend(read=slowly, open=slowly)
    with api.client as client, ThreadPoolExecutor(5) as pool:
        asked = [pool.submit(client.get, "/api/v1/compare?before=slow&after=slow") for _ in "12345"]
        assert begun.wait(60)
        for path in ("/metrics", "/checkpoints"):
            assert client.get(f"/api/v1/runs/{run}{path}").status_code == 200
        assert client.get(f"/api/v1/checkpoints/{run}/1/record").status_code == 200
        assert not any(each.done() for each in asked)
        ended.set()
        assert [each.result().status_code for each in asked] == [200] * 5


PATHS = (
    *("/store", "/runs", "/lineage", "/storage", "/runs/{}", "/runs/{}/checkpoints"),
    *("/runs/{}/metrics", "/checkpoints/{}/1", "/checkpoints/{}/1/record"),
)


def test_a_store_that_is_gone_is_410_and_told_of_again_when_it_is_back(store, tmp_path):
    place, aside = tmp_path / "store", tmp_path / "aside"
    run = store.find_run("a").hash
    store.close()
    api = Api(place)
    assert api("/store")["runs"] == 1
    place.rename(aside)
    for path in (*PATHS, "/compare?before=a&after=a"):
        assert api(path.format(run), 410)["error"]["kind"] == "NotAStore", path
    for page in ("/", "/lineage", "/storage", f"/runs/{run}"):
        assert api.client.get(page).status_code == 200
    assert not place.exists(), "to look for a store must not make one"
    aside.rename(place)
    assert api("/store")["checkpoints"] == 2
    shutil.rmtree(place)
    api("/runs", 410)
    save(Store(place), "new", 5)
    assert [each["name"] for each in api("/runs")["runs"]] == ["new"]


def test_a_store_that_vanishes_in_the_middle_never_breaks_an_answer(store, tmp_path):
    place, run = tmp_path / "store", store.find_run("a").hash
    api, ended, answered = Api(place), threading.Event(), threading.Semaphore(0)
    statuses: list[tuple[str, int]] = []

    def ask(path: str) -> None:
        while not ended.is_set():
            statuses.append((path, api.client.get(f"/api/v1{path}").status_code))
            answered.release()

    asking = [threading.Thread(target=ask, args=(path.format(run),)) for path in PATHS]
    for thread in asking:
        thread.start()
    for number in range(4):
        for _ in PATHS:
            answered.acquire()
        shutil.rmtree(place, ignore_errors=True)
        answered.acquire()
        save(Store(place), "a", *range(1, 5 + number))
    ended.set()
    for thread in asking:
        thread.join()
    assert {status for _, status in statuses} <= {200, 404, 410, 422}, statuses
    assert api("/store")["checkpoints"] == 7


def test_damage_is_told_and_nothing_else_suffers(shown):
    api = Api(shown(stores.damaged))
    runs = {run["name"]: run for run in api("/runs")["runs"]}
    assert runs["gpt"]["damaged"] == api("/store")["damaged"] == 1
    (lost,) = (run for run in runs.values() if run["problem"])
    assert api(f"/runs/{lost['run']}")["name"] == lost["name"]
    gpt = runs["gpt"]["run"]
    listed = {each["step"]: each for each in api(f"/runs/{gpt}/checkpoints")["checkpoints"]}
    assert (bool(listed[40]["damaged"]), listed[40]["kept"]) == (True, None)
    assert listed[20]["kept"]["keep"]
    assert api(f"/checkpoints/{gpt}/40", 422)["error"]["message"]
    assert api(f"/checkpoints/{gpt}/100", 422)["error"]["kind"] == "TruncatedFile"
    assert api(f"/checkpoints/{gpt}/80")["integrity"]["state"] == "damaged"
    error = api.send(f"/checkpoints/{gpt}/60/verify", status=422)["error"]
    assert error["kind"] == "DigestMismatch"
    assert api(f"/checkpoints/{gpt}/60")["integrity"]["state"] == "damaged"
    marks = {each["step"]: each["marks"] for each in api(f"/runs/{gpt}/metrics")["checkpoints"]}
    assert "damaged" in marks[40]


def test_hostile_names_are_told_as_they_are(shown):
    store = shown(stores.hostile)
    api = Api(store)
    told = {run["name"] for run in api("/runs?per_page=200")["runs"]}
    store.index.refresh()
    assert told == {listed.name for listed in store.index.runs()}
    assert any("<script>" in (name or "") for name in told)
    boot = api.client.get("/").text.partition('id="boot">')[2].partition("</script>")[0]
    assert not set("<>&'") & set(boot)
    assert {run["name"] for run in json.loads(boot)["data"]["runs"]} <= told


def test_thirty_requests_at_once_are_all_answered(small, served):
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
