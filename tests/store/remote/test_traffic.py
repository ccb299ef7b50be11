"""What goes over the wire: only what is asked for, and nothing twice."""

import re

import numpy as np
import pytest

import standfast
from standfast.store.schema import names
from tests.kit.object_store.proxy import Proxy
from tests.kit.stores import MIB, random_bytes


def record_size(store: standfast.Store, ref: str) -> int:
    head = store.resolve(ref).head
    return len(store.backend.read(names.record_file(head.run, head.step)))


def of_data(proxy: Proxy) -> list[str]:
    """The requests for parts of data files."""
    gets = (request for request in proxy.log if request.method == "GET")
    return [request.path for request in gets if request.path.endswith(".safetensors")]


def test_one_tensor_of_many_is_fetched_alone(bucket_url, proxy):
    state = {"model": {f"w{n}": random_bytes(4 * MIB, n) for n in range(5)}}
    store = standfast.Store(bucket_url)
    store.run("a").save(1, state)
    checkpoint = store.resolve("a@1")
    record = record_size(store, "a@1")
    proxy.reset()
    assert checkpoint["model.w3"].tobytes() == state["model"]["w3"].tobytes()
    assert 4 * MIB <= proxy.down <= 4.2e6 + record
    assert len(of_data(proxy)) == 1


def test_small_neighbours_come_together(bucket_url, proxy):
    state = {f"bias{n}": np.full(100, n, np.float32) for n in range(500)}
    run = standfast.Store(bucket_url).run("a")
    run.save(1, state)
    proxy.reset()
    loaded = run.load("latest")
    assert all((loaded[name] == state[name]).all() for name in state)
    assert len(of_data(proxy)) == 1


def test_a_small_change_is_a_small_upload(bucket_url, proxy):
    state = {f"w{n}": random_bytes(2 * MIB, n) for n in range(10)}
    run = standfast.Store(bucket_url).run("a")
    run.save(1, state)
    state["w7"] = random_bytes(2 * MIB, 100)
    proxy.reset()
    run.save(2, state)
    assert 2 * MIB <= proxy.up <= 1.05 * 2 * MIB
    assert not of_data(proxy), "nothing is read to save"
    assert run.load(2)["w7"].tobytes() == state["w7"].tobytes()


def test_a_warm_list_asks_for_no_run_and_no_record(bucket_url, proxy):
    with standfast.Store(bucket_url) as store:
        for number in range(5):
            with store.run(f"run {number}") as run:
                run.save(1, {"w": np.arange(3.0)})
    store = standfast.Store(bucket_url)
    assert len(store.runs()) == 5
    proxy.reset()
    store.index.refresh()
    assert store.index.count() == 5
    # One for what was announced, one for which runs there are; both are for all runs.
    assert proxy.requests == {"GET": 2}
    proxy.reset()
    with standfast.Store(bucket_url) as other:
        other.resolve("run 3@1").tag("paper")
    proxy.reset()
    assert store.resolve("paper").head.step == 1
    prefixes = [dict(request.query).get("prefix", "") for request in proxy.log]
    looked_at = [each for each in prefixes if re.search("checkpoints/models/[0-9a-f]", each)]
    assert len(looked_at) == 1, "the run that was changed, once"


def test_listing_fetches_heads_alone(bucket_url, proxy, tmp_path, monkeypatch):
    state = {f"w{n}": np.arange(3.0) for n in range(3000)}
    with standfast.Store(bucket_url) as store:
        store.run("a").save(1, state)
        record = record_size(store, "a@1")
    assert record > 100_000
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    proxy.reset()
    assert standfast.Store(bucket_url).find_run("a").checkpoint(1).head.tensors == 3000
    assert proxy.down < 40_000


@pytest.mark.parametrize("verify", [True, False])
def test_what_is_cached_is_not_fetched_again(bucket_url, proxy, verify):
    state = {"w": random_bytes(18 * MIB), "b": np.arange(5.0)}
    standfast.Store(bucket_url).run("a").save(1, state)
    for cache, expected in (("1MB", 2), ("100MB", 2), ("100MB", 0)):
        store = standfast.Store(bucket_url, cache=cache)
        proxy.reset()
        loaded = store.resolve("a@1").load(verify=verify)
        assert loaded["w"].tobytes() == state["w"].tobytes()
        assert len(of_data(proxy)) == expected
