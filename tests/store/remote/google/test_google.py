"""Stores at gs://, where an object is replaced by its generation: obstore itself demands it."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore.store
import pytest

from standfast import Store
from standfast.errors import AlreadyExists
from standfast.store.remote import locks
from standfast.store.remote.backend import RemoteBackend
from standfast.store.remote.client import Client
from tests.kit.object_store.fixtures import use
from tests.kit.seams import Seams
from tests.store.remote.google.server import Google, running
from tests.store.remote.places import check, fresh, large, state

URL = "gs://bucket/store"


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seams: Seams) -> Iterator[Google]:
    def unencrypted(from_url: Any, url: str, *, client_options: Any, **options: Any) -> Any:
        return from_url(url, client_options={**client_options, "allow_http": True}, **options)

    seams.system(obstore.store, from_url=unencrypted)
    with running() as server:
        use(monkeypatch, server.environment, tmp_path)
        yield server


def test_an_object_is_replaced_by_what_the_server_said_of_it(google):
    client = Client(URL)
    first = client.put("a", b"1", create=True)
    assert client.put("a", b"1", create=True) == first, "as if its answer had been lost"
    with pytest.raises(AlreadyExists):
        client.put("a", b"2", create=True)
    second = client.put("a", b"2", match=first)
    with pytest.raises(AlreadyExists):
        client.put("a", b"3", match=first)
    found = client.head("a")
    assert found is not None
    assert (found.tag, found.tag.version) == (second, second.version)
    client.put("a", b"3", match=found.tag)
    assert bytes(client.get("a")) == b"3"
    assert google.updates == 2


def test_an_object_is_replaced_by_what_a_list_said_of_it(google):
    client = Client(URL)
    client.put("a", b"1")
    ((_, meta),), _ = client.list()
    assert meta.tag.version is None, "then nothing need be asked for"
    client.put("a", b"2", match=meta.tag)
    with pytest.raises(AlreadyExists):
        client.put("a", b"3", match=meta.tag)
    with pytest.raises(AlreadyExists):
        client.put("absent", b"3", match=meta.tag)
    assert bytes(client.get("a")) == b"2"


def test_who_wrote_the_same_again_is_noticed(google):
    client = Client(URL)
    first = client.put("a", b"1")
    again = client.put("a", b"1")
    assert (first == again, first.version == again.version) == (True, False)
    with pytest.raises(AlreadyExists):
        client.put("a", b"2", match=first)


def test_a_lock_is_taken_renewed_and_released(google, seams):
    seams.bound("slack of a lease", 60.0)
    backend = RemoteBackend(URL, lease=1.0)
    with backend.lock("a") as lock:  # type: ignore[union-attr]
        deadline = time.monotonic() + 60
        while google.updates < 2:
            assert time.monotonic() < deadline, "it was never renewed"
            threading.Event().wait(0.02)
        assert lock.is_held()
        assert backend.lock("a") is None
    assert google.objects[f"store/{locks.FOLDER}/a"].data == b""
    with backend.lock("a"):  # type: ignore[union-attr]
        pass


@pytest.mark.usefixtures("small_parts")
def test_a_store_works(google):
    with Store(URL).run("a") as run:
        run.save(1, large(1))
        run.save(2, state(2))
    with fresh(URL).run("a") as other:
        other.save(3, state(3))
        check(fresh(URL), large(1), state(2), state(3))
        other.delete(1)
    check(fresh(URL), state(2), state(3))
