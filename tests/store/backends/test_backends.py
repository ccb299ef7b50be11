"""Backends in memory and in an object store, and stores, which work the same on each."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from standfast import Store, errors
from standfast.files.digests import CHUNK
from standfast.store.backends.backend import Backend
from standfast.store.backends.memory import MemoryBackend
from standfast.store.maintenance.doctor import examine
from standfast.store.remote.backend import RemoteBackend
from standfast.store.schema import names
from tests.kit.stores import chunks, random_bytes, same
from tests.store.backends.backend_suite import BackendSuite


class TestMemoryBackend(BackendSuite):
    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()


class TestRemoteBackend(BackendSuite):
    keeps_what_is_open = False

    @pytest.fixture
    def backend(self, bucket_url: str) -> Backend:
        return RemoteBackend(bucket_url)


def test_two_backends_in_memory_share_nothing_and_no_disk():
    first, second = MemoryBackend(), MemoryBackend()
    run = Store(first).run("a")
    run.save(1, {"number": 1})
    Store(second).run("a").save(2, {"number": 2})
    assert (run.load(), len(run.checkpoints())) == ({"number": 1}, 1)
    with first.lock("x"), second.lock("x"):
        assert first.path("models") is None
        assert (first.cache, first.free()) == (None, None)


@pytest.fixture(params=["disk", "memory", "object store"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "object store":
        return Store(str(request.getfixturevalue("bucket_url")))
    return Store(tmp_path) if request.param == "disk" else Store(MemoryBackend())


def _held(store: Store, run: str) -> int:
    """The bytes of all data files in the folder of a run."""
    folder = names.run_folder(run)
    files = (name for name, _ in store.backend.list(folder) if name.endswith(".safetensors"))
    return sum(store.backend.size(f"{folder}/{name}") for name in files)


STATE: dict[str, Any] = {
    "model": {"w": torch.arange(70_000.0), "b": torch.ones(3, dtype=torch.bfloat16)},
    "numpy": np.arange(5.0),
    "step": 7,
}


def test_states_come_back(store):
    run = store.run("a", hp={"lr": 0.1})
    run.save(1, STATE, metrics={"loss": 0.5}, epoch=1, best=True)
    for each in (run, Store(store.backend).run("a", hp={"lr": 0.1})):
        loaded = each.load()
        assert same(loaded, STATE)
        loaded["model"]["w"] += 1
        assert same(each.load("best"), STATE)
    checkpoint = Store(store.backend).resolve("latest")
    assert (checkpoint.metrics, checkpoint.epoch) == ({"loss": 0.5}, 1)
    assert checkpoint.verify().tensors == 3


def test_references_mean_the_same(store):
    with pytest.raises(errors.NotAStore):
        store.resolve("latest")
    a, b = store.run("a"), store.run("b")
    for step in (1, 2):
        a.save(step, {"step": step})
    b.save(7, {"step": 7}).tag("paper")
    a.checkpoint(1).note("text")
    for each in (store, Store(store.backend)):
        assert each.resolve("latest").step == 7
        assert each.resolve("a").step == 2
        assert each.resolve(f"{a.hash}@1").notes[0].text == "text"
        assert each.resolve("paper").ref == f"{b.hash}@7"
        with pytest.raises(errors.RefNotFound):
            each.resolve("nobody")
    with pytest.raises(errors.AmbiguousRef):
        a.checkpoint(1).tag("paper")
    with pytest.raises(errors.StepExists):
        a.save(1, {})
    a.save(1, {"step": 11}, replace=True)
    assert Store(store.backend).resolve("a@1").state()["step"] == 11
    a.rename("c")
    assert Store(store.backend).find_run("c").hash == a.hash


def test_what_is_held_is_not_written_again(store):
    run = store.run("a")
    x = chunks(1, 2)
    run.save(1, {"x": x})
    first = _held(store, run.hash)
    assert first < 2 * CHUNK + 10_000
    run.save(2, {"y": x})
    assert _held(store, run.hash) == first
    x[-1] ^= 1
    run.save(3, {"x": x})
    assert _held(store, run.hash) < first + CHUNK + 10_000
    assert same(run.load(3), {"x": x})
    assert same(run.load(2), {"y": chunks(1, 2)})
    other = Store(store.backend).run("b")
    other.save(1, {"x": x})
    run.delete_all()
    assert same(Store(store.backend).run("b").load(), {"x": x})


def test_damage_is_found_and_mended(store):
    run = store.run("a")
    run.save(1, {"x": random_bytes(1000), "n": 1})
    run.save(2, {"x": random_bytes(1000), "n": 2})
    (file,) = run.checkpoint(2).head.files
    path = f"{names.run_folder(run.hash)}/{file.name}"
    data = bytearray(store.backend.read(path))
    data[-1] ^= 1
    store.backend.replace(path, bytes(data))
    with pytest.raises(errors.DamagedFile):
        run.load(2)
    with pytest.warns(errors.FellBack):
        assert run.load()["n"] == 1
    assert list(examine(store.backend, store.index).restored) == [f"{run.hash}@2"]
    assert run.load()["n"] == 2
