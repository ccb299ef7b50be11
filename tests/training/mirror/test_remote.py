"""A mirror in an object store: what goes wrong there costs time, and no checkpoint."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import standfast
from standfast import KeepLast
from standfast.errors import RefNotFound
from tests.kit.cli import call
from tests.kit.object_store.faults import Call, HoldAnswer, Slow
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.walk import checkpointer
from tests.training.mirror.test_mirror import EVERY, copying_processes, program, wait_for

if TYPE_CHECKING:
    pass


def train(store: Path, steps: int, place: Any, **options: Any) -> standfast.Checkpointer:
    """Each step has other weights: nothing of one is in another."""
    weights = np.zeros(1 << 17)
    state = standfast.TrainingState(walk={"weights": weights})
    options = {**EVERY, "mirror": place, **options}
    with checkpointer(store, state, **options) as ckpt:
        for step in ckpt.steps(steps):
            weights[:] = np.random.default_rng(step).random(weights.size)
            ckpt.step(step)
    return ckpt


def steps_in(place: str) -> list[int]:
    """The steps of the only run, each verified."""
    found = [
        checkpoint for run in standfast.Store(place).runs() for checkpoint in run.checkpoints()
    ]
    for checkpoint in found:
        checkpoint.verify()
    return sorted(checkpoint.step for checkpoint in found)


def is_data(request: Request) -> bool:
    return request.method == "PUT" and request.path.endswith(".safetensors")


def is_record(request: Request) -> bool:
    name = request.path
    is_json = name.endswith(".json") and not name.endswith(".marks.json")
    return request.method == "PUT" and "_step_" in name and is_json


def test_everything_arrives_and_the_list_says_so(bucket_url, tmp_path):
    ckpt = train(tmp_path / "store", 3, bucket_url, keep=KeepLast(1))
    assert ckpt.mirrored is not None
    assert (ckpt.mirrored.place, ckpt.mirrored.step) == (bucket_url, 3)
    assert 3 in steps_in(bucket_url)
    train(tmp_path / "store", 4, bucket_url, keep=KeepLast(1), mirror_keep=KeepLast(1))
    assert steps_in(bucket_url) == [4]
    (shown,) = call("ls", "--json", "--store", tmp_path / "store").json
    assert shown["where"] == ["local", bucket_url]


@pytest.mark.long
def test_a_server_that_is_killed_in_an_upload_gets_the_rest_when_it_is_back(
    own_server, tmp_path, monkeypatch
):
    place = f"{own_server.bucket('tests')}/mirror"
    killed = threading.Event()

    def kill(request: Request) -> None:
        own_server.kill()
        killed.set()

    weights = np.zeros(1 << 17)
    state = standfast.TrainingState(walk={"weights": weights})
    with Proxy(own_server.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        proxy.rule(Call(kill), is_data, skip=1)
        with checkpointer(tmp_path / "store", state, name="walk", every=1, mirror=place) as ckpt:
            for step in ckpt.steps(4):
                weights[:] = np.random.default_rng(step).random(weights.size)
                ckpt.step(step)
            wait_for(killed.is_set)
            own_server.start()
        assert steps_in(place) == [1, 2, 3, 4]


@pytest.mark.long
def test_a_program_that_is_killed_in_an_upload_copies_the_rest_and_nothing_twice(
    bucket_url, proxy, tmp_path
):
    store = tmp_path / "store"
    slow = proxy.rule(Slow(2 << 20), is_data, times=None, skip=1)
    with program(store, bucket_url, 3, "--stay") as process:
        wait_for(slow.fired.is_set)
        up = proxy.up
        wait_for(lambda: proxy.up > up + (1 << 20))
        process.kill()
        process.wait()
        wait_for(lambda: not copying_processes(store))
    proxy.heal()
    before = [*proxy.log]
    arrived = steps_in(bucket_url)
    assert len(arrived) < 3
    proxy.reset()
    with program(store, bucket_url, 3) as process:
        assert process.wait(60) == 0
    assert steps_in(bucket_url) == [1, 2, 3]
    written = {request.path for request in before if is_record(request)}
    again = {request.path for request in proxy.log if is_record(request) or is_data(request)}
    assert len(written) == len(arrived)
    assert not {path for path in again for step in arrived if f"_step_{step:06d}" in path}


@pytest.mark.long
def test_a_server_that_hangs_holds_no_save_and_no_list_up(bucket_url, proxy, tmp_path, seams):
    train(tmp_path / "store", 1, bucket_url)
    call("ls", "--store", tmp_path / "store")
    proxy.rule(HoldAnswer(600), times=None)
    seams.bound("patience with places", 0.3)
    ckpt = train(tmp_path / "store", 5, bucket_url, mirror_wait=0)
    assert ckpt.run.checkpoint().step == 5
    done = call("ls", "--json", "--store", tmp_path / "store")
    assert [each["where"] for each in done.json] == [["local"]] * 4 + [["local", bucket_url]]
    assert bucket_url in done.err


@pytest.mark.long
def test_the_end_waits_for_a_server_that_is_slow_to_take_the_last_bytes(
    bucket_url, proxy, tmp_path, seams
):
    seams.bound("patience of a mirror", 0.5)
    slow = proxy.rule(Slow(400_000), is_data, times=None)
    state = standfast.TrainingState(walk={"weights": np.ones(1 << 17)})  # a megabyte
    with checkpointer(tmp_path / "store", state, **EVERY, mirror=bucket_url) as ckpt:
        ckpt.step(1)
        wait_for(slow.fired.is_set)
    assert ckpt.mirrored is not None
    assert (ckpt.mirrored.step, ckpt.mirrored.problem) == (1, None)
    assert steps_in(bucket_url) == [1]


def test_the_end_waits_for_a_server_that_hangs_as_long_as_a_request_may_take(
    bucket_url, proxy, tmp_path, monkeypatch, seams
):
    seams.bound("patience of a mirror", 0.3)
    monkeypatch.setenv("STANDFAST_TIMEOUT", "0.3")
    held = proxy.rule(HoldAnswer(600), is_data, times=None)
    state = standfast.TrainingState(walk={"weights": np.ones(1 << 17)})
    with checkpointer(tmp_path / "store", state, **EVERY, mirror=bucket_url) as ckpt:
        ckpt.step(1)
        wait_for(held.fired.is_set)
    assert ckpt.mirrored is not None
    assert ckpt.mirrored.step is None


def test_wrong_credentials_are_told_without_them(bucket_url, tmp_path, monkeypatch):
    state = standfast.TrainingState(walk={"weights": np.zeros(4)})
    with checkpointer(tmp_path / "store", state, **EVERY) as ckpt:
        ckpt.step(1)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret-that-nobody-may-see")
    options = {**EVERY, "mirror": bucket_url, "mirror_wait": 0}
    with pytest.raises(RefNotFound, match="SignatureDoesNotMatch") as refused:
        checkpointer(tmp_path / "another", state, **options).__enter__()
    assert "a-secret" not in str(refused.value)
    with checkpointer(tmp_path / "store", state, **options) as ckpt:
        ckpt.step(2)
        wait_for(lambda: ckpt.mirrored is not None and ckpt.mirrored.problem)
        assert ckpt.mirrored is not None
        said = str(ckpt.mirrored)
    assert "SignatureDoesNotMatch" in said
    for secret in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID"):
        assert os.environ[secret] not in said
    assert not any(b"a-secret" in path.read_bytes() for path in tmp_path.rglob("*.json"))
