"""Objects that are not what was saved, and answers that are not what the server said."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import obstore
import pytest
from obstore.store import S3Store

from standfast import Run, Store
from standfast.errors import (
    ChangedFile,
    DamagedFile,
    DigestMismatch,
    FellBack,
    MissingData,
    MissingFile,
    TruncatedFile,
)
from standfast.store.maintenance.doctor import examine
from standfast.store.remote.backend import RemoteBackend
from standfast.store.schema import names
from tests.kit.object_store.faults import Call, CutAnswer, ReplaceInAnswer
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.object_store.server import Server
from tests.kit.stores import same
from tests.store.remote.places import fresh, state, straight

SIZE = 300_000


def cut(client: S3Store, key: str, other: str) -> None:
    obstore.put(client, key, bytes(obstore.get(client, key).bytes())[:-1])


def lengthen(client: S3Store, key: str, other: str) -> None:
    obstore.put(client, key, bytes(obstore.get(client, key).bytes()) + b"\0")


def swap(client: S3Store, key: str, other: str) -> None:
    obstore.put(client, key, obstore.get(client, other).bytes())


def turn(client: S3Store, key: str, other: str) -> None:
    data = bytearray(obstore.get(client, key).bytes())
    data[SIZE // 2] ^= 1
    obstore.put(client, key, bytes(data))


def delete(client: S3Store, key: str, other: str) -> None:
    obstore.delete(client, key)


HARM: dict[str, tuple[Callable[[S3Store, str, str], None], type[DamagedFile]]] = {
    "cut": (cut, TruncatedFile),
    "lengthened": (lengthen, TruncatedFile),
    "swapped": (swap, DigestMismatch),
    "turned": (turn, DigestMismatch),
    "deleted": (delete, MissingData),
}


@pytest.fixture
def run(bucket_url: str) -> Run:
    """Two checkpoints, each with one data file of the same size."""
    run = Store(bucket_url).run("a")
    for step in (1, 2):
        run.save(step, state(step, SIZE))
    return run


def data_key(run: Run, step: int) -> str:
    (file,) = run.checkpoint(step).head.files
    return f"{names.run_folder(run.hash)}/{file.name}"


@pytest.mark.parametrize("how", HARM)
def test_a_damaged_object_is_never_loaded(
    run: Run, how: str, server: Server, bucket_url: str
) -> None:
    harm, kind = HARM[how]
    harm(straight(server, bucket_url), data_key(run, 2), data_key(run, 1))
    for store in (run.store, fresh(bucket_url)):
        found = store.run("a")
        with pytest.raises(kind, match=r"_step_000002|step 2"):
            found.load(2)
        with pytest.warns(FellBack, match=f"fell back to {run.hash}@1"):
            assert same(found.load(), state(1, SIZE))
        with pytest.raises(DamagedFile):
            found.checkpoint(2).verify()
        found.checkpoint(1).verify()
    diagnosis = examine(store.backend, store.index)
    assert list(diagnosis.damaged) == [f"{run.hash}@2"]
    assert diagnosis.checkpoints == 2
    run.save(2, state(3, SIZE))  # whoever fell back comes by here again
    assert same(fresh(bucket_url).run("a").load(), state(3, SIZE))


def test_a_record_that_is_damaged_is_told_of(run: Run, server: Server, bucket_url: str) -> None:
    client = straight(server, bucket_url)
    key = names.record_file(run.hash, 2)
    obstore.put(client, key, bytes(obstore.get(client, key).bytes())[:-30])
    with pytest.raises(DamagedFile, match=r"_step_000002\.json"):
        fresh(bucket_url).run("a").load(2)
    with pytest.warns(FellBack):
        assert same(fresh(bucket_url).run("a").load(), state(1, SIZE))
    obstore.delete(client, key)
    assert [each.step for each in fresh(bucket_url).run("a").checkpoints()] == [1]


@pytest.mark.parametrize("how", ["swapped", "turned", "deleted"])
def test_an_object_that_changes_while_it_is_open_is_not_read_on(
    run: Run, how: str, server: Server, bucket_url: str
) -> None:
    key = data_key(run, 2)
    opened = RemoteBackend(f"{bucket_url}/checkpoints").open(key)
    first = opened.read(0, 100)
    assert len(first) == 100
    HARM[how][0](straight(server, bucket_url), key, data_key(run, 1))
    with pytest.raises((ChangedFile, MissingFile)):
        opened.read(opened.size - 70_000, 70_000)
    opened.close()


def test_an_object_that_changes_in_the_middle_of_a_load_is_never_half_of_each(
    proxy: Proxy, server: Server, bucket_url: str
) -> None:
    run = Store(bucket_url).run("a")
    for step in (1, 2):
        run.save(step, state(step, SIZE))
    key, other, client = data_key(run, 2), data_key(run, 1), straight(server, bucket_url)

    def is_data(request: Request) -> bool:
        return request.method == "GET" and request.path.endswith(key.rpartition("/")[2])

    rule = proxy.rule(Call(lambda request: swap(client, key, other)), is_data)
    with pytest.raises((ChangedFile, DigestMismatch)):
        run.load(2)
    assert rule.hits == 1


# Answers


@pytest.mark.parametrize("at", [0, 5_000, SIZE // 2, SIZE])
def test_bytes_that_change_on_the_way_are_noticed(proxy: Proxy, bucket_url: str, at: int) -> None:
    run = Store(bucket_url).run("a")
    run.save(1, state(1, SIZE))
    name = run.checkpoint(1).head.files[0].name
    rule = proxy.rule(
        ReplaceInAnswer(at, b"?!"),
        lambda request: request.method == "GET" and request.path.endswith(name),
        times=None,
    )
    _refuses(lambda: run.load(1))
    assert rule.hits > 0
    proxy.heal()
    run.load(1)
    proxy.rule(ReplaceInAnswer(at, b"?!"), _is_record, times=None)
    loaded = _refuses(lambda: fresh(bucket_url).run("a").load(1))
    proxy.heal()
    assert loaded is None or same(loaded, state(1, SIZE))


def _refuses(load: Callable[[], Any]) -> Any:
    """What was loaded, if it was: of a file, some bytes are not asked for."""
    try:
        loaded = load()
    except DamagedFile:
        return None
    assert same(loaded, state(1, SIZE))
    return loaded


def _is_record(request: Request) -> bool:
    return request.method == "GET" and request.path.endswith("_step_000001.json")


@pytest.mark.parametrize("after", [0, 1, 100_000])
@pytest.mark.parametrize("what", ["data", "record", "listing"])
def test_an_answer_that_breaks_off_is_asked_for_again(
    proxy: Proxy, bucket_url: str, what: str, after: int
) -> None:
    run = Store(bucket_url).run("a")
    run.save(1, state(1, SIZE))
    run.close()

    def match(request: Request) -> bool:
        is_listing = "list-type" in request.query
        if what == "listing":
            return is_listing
        end = "_step_000001.json" if what == "record" else ".safetensors"
        return request.method == "GET" and not is_listing and request.path.endswith(end)

    rule = proxy.rule(CutAnswer(after), match)
    assert same(fresh(bucket_url).run("a").load(), state(1, SIZE))
    assert rule.hits == 1
