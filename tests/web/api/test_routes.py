"""The API tells what the command line prints with --json, of the same store."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Store
from tests.kit.cli import call
from tests.web import stores
from tests.web.api.client import Api

Printed = Callable[..., Any]


@pytest.fixture
def place(small: Store) -> Path:
    return Path(small.url).parent


@pytest.fixture
def printed(place: Path) -> Printed:
    """What a command prints with --json, of the same store."""
    return lambda *arguments: call(*arguments, "--json", "--store", place).json


@pytest.fixture
def api(place: Path) -> Api:
    return Api(place, files=place)


@pytest.fixture
def gpt(small: Store) -> str:
    return small.find_run("gpt").hash


def test_the_store_is_told_of_in_figures(api, small):
    told = api("/store")
    assert told["url"] == small.url
    assert told["version"] == standfast.__version__
    assert told["runs"] == len(small.runs()) == 6
    assert told["checkpoints"] == sum(len(run.checkpoints()) for run in small.runs()) == 18
    assert (told["damaged"], told["allow_edit"]) == (0, False)
    assert told["files"] == str(Path(small.url).parent)


def test_the_runs_are_those_of_the_log_the_newest_first(api, printed):
    told, logged = api("/runs"), printed("log")
    by_run = {each["run"]: each for each in logged}
    assert told["total"] == len(by_run) == len(told["runs"])
    for run in told["runs"]:
        of_log = by_run[run["run"]]
        for key in ("name", "parent", "checkpoints", "first_step", "last_step", "best"):
            assert run[key] == of_log[key], key
        assert api(f"/runs/{run['run']}")["changes"] == of_log["changes"]
    times = [run["time"] for run in told["runs"] if run["time"]]
    assert times == sorted(times, reverse=True)
    assert "loss" in told["metrics"]
    begun = {run["name"]: run for run in told["runs"]}["not begun"]
    assert (begun["hp"], begun["model"], begun["data"]) == (begun["run"][:8], None, None)
    assert api("/lineage") == logged


def test_a_run_is_told_with_its_checkpoints_and_what_it_takes(api, printed, gpt):
    told, of_ls = api(f"/runs/{gpt}/checkpoints"), printed("ls", gpt, "--all")
    (retained,) = printed("log", gpt, "--retention")
    kept = {each["step"]: each for each in retained["checkpoints"]}
    assert len(told["checkpoints"]) == told["total"] == len(of_ls) == 10
    for each, listed in zip(told["checkpoints"], of_ls, strict=True):
        why = each.pop("kept")
        assert each == listed
        assert why == {key: kept[each["step"]][key] for key in ("keep", "why", "protected")}
    told = api(f"/runs/{gpt}")
    usage = next(each for each in printed("du")["runs"] if each["run"] == gpt)
    assert told["usage"] == {key: usage[key] for key in told["usage"]}
    assert set(told["usage"]) == {"checkpoints", "logical", "on_disk", "saved", "budget"}
    assert told["hyperparameters"] == stores.HP
    assert told["monitor"] == {"metric": "loss", "mode": "min"}
    assert told["retention"] == retained["retention"]
    assert ("python" in told["environment"], told["mirror"]) == (True, None)
    names = {run["run"]: run["name"] for run in api("/runs")["runs"]}
    assert {names[child] for child in told["children"]} == {"low rate", "wide"}


def test_a_checkpoint_is_told_as_show_and_diff_do(api, printed, gpt, small):
    told = api(f"/checkpoints/{gpt}/100")
    assert told.pop("integrity")["state"] in ("verified", "unverified")
    assert told.pop("kept")["keep"]
    parts = {tensor["name"]: tensor.pop("part") for tensor in told["tensors"]}
    assert told == printed("show", f"{gpt}@100")
    assert set(parts.values()) >= {"model", "optimizer"}
    assert all(name.startswith(f"{part}.") for name, part in parts.items() if part)
    heat = small.find_run("heat").hash
    assert api(f"/checkpoints/{heat}/60")["tree"] == printed("show", f"{heat}@60")["tree"]
    for before, after in ((f"{gpt}@20", f"{gpt}@200"), ("gpt", "low rate"), ("gpt", "not begun")):
        told = api(f"/compare?before={before}&after={after}")
        assert told == printed("diff", before, after)


def test_a_verified_checkpoint_is_known_to_be_so(tmp_path):
    store = Store(tmp_path)
    with store.run("a") as run:
        saved = run.save(1, {"x": np.ones(9)})
    api, path = Api(store), f"/checkpoints/{run.hash}/1"
    assert api(path)["integrity"] == {"state": "unverified", "problem": None}
    verified = api.send(f"{path}/verify")
    assert (verified["intact"], verified["bytes"]) == (True, saved.nbytes)
    assert api(path)["integrity"]["state"] == "verified"


def test_the_record_is_told_by_its_head_and_the_sizes_of_its_lines(api, gpt, small):
    told = api(f"/checkpoints/{gpt}/100/record")
    assert told["head"]["step"] == 100
    assert told["bytes"] == small.backend.size(told["file"])
    assert sum(line["bytes"] for line in told["lines"]) == told["bytes"]
    lines = " ".join(line["name"] for line in told["lines"])
    assert lines == "head tree names kinds specs extents digests views digest"


def test_storage_is_told_as_du_and_gc_do(api, printed, small):
    told = api("/storage")
    assert told["usage"] == printed("du")
    assert told["gc"] == printed("gc")
    assert told["trash"] == told["usage"]["trash"]
    for run in small.runs():
        parts = [part for part in told["parts"] if part["run"] == run.hash]
        files = small.index.files(run.hash)
        assert sum(part["files"] for part in parts) == len(files)
        assert sum(part["bytes"] for part in parts) == sum(file.size for file in files.values())
    assert {part["part"] for part in told["parts"]} == {"several parts"}
    assert told["kept"]["the latest of its run"] == 5


def test_the_parts_of_a_large_state_are_told_apart(tmp_path):
    store = Store(tmp_path)
    with store.run("a") as run:
        large = {name: np.zeros(5 << 20, np.uint8) for name in ("x", "y")}
        run.save(1, {"model": {"x": large["x"]}, "optimizer": {"y": large["y"] + 1}})
    parts = {part["part"]: part["bytes"] for part in Api(store)("/storage")["parts"]}
    assert set(parts) == {"model", "optimizer"}
    assert min(parts.values()) >= 5 << 20


def test_what_is_not_finite_is_null(tmp_path):
    store = Store(tmp_path)
    with store.run("a") as run:
        run.save(1, {"x": 1}, metrics={"loss": float("nan"), "top": float("inf"), "ok": 0.5})
    answer = Api(store).client.get(f"/api/v1/runs/{run.hash}")
    json.loads(answer.text, parse_constant=pytest.fail)
    assert answer.json()["latest"]["metrics"] == {"loss": None, "top": None, "ok": 0.5}


def test_a_tensor_is_summed_up_a_large_one_in_part(api, gpt, small, shown):
    tensors = small.resolve(f"{gpt}@100").tensors
    name = next(each for each in tensors if each.startswith("model."))
    told = api(f"/tensor?ref={gpt}@100&name={name}&bins=16")
    assert (told["name"], told["shape"]) == (name, list(tensors[name].shape))
    assert len(told["histogram"]["counts"]) == 16
    huge = shown(stores.huge)
    told = Api(huge)(f"/tensor?ref={huge.find_run('huge').hash}@1&name=model.weight")
    assert (told["elements"], told["exact"]) == (1 << 28, False)
    assert 0 < told["seen"] <= 1 << 26
    assert abs(told["mean"]) < 0.01
    assert abs(told["std"] - 1) < 0.01


WRONG = {
    "RefNotFound": """
        /runs/000000000000000000000000 /runs/short /runs/000000000000000000000000/checkpoints
        /checkpoints/{}/21 /checkpoints/{}/99999999999999999999 /checkpoints/{}/-1
        /compare?before=gpt&after=nobody /no-such-thing
    """,
    "BadOption": f"""
        /runs?per_page=0 /runs?per_page=201 /runs?page=x /runs?metric=loss /runs?metric=loss<x
        /runs?q={"x" * 1000} /runs/{{}}/metrics?points=1 /compare?before=gpt /tensor?name=x
        /tensor?ref={{}}@100&name=x&bins=7
    """,
    "TensorNotFound": "/tensor?ref={}@100&name=nothing",
}


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_question_is_an_error_that_says_why(api, gpt, kind):
    for path in WRONG[kind].split():
        error = api(path.format(gpt), 400 if kind == "BadOption" else 404)["error"]
        assert error["kind"] == kind, path
        assert error["message"]


def test_without_a_folder_of_files_none_is_shown(place):
    assert "--files" in Api(place)("/files?path=", 403)["error"]["message"]
