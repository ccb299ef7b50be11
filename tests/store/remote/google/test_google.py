"""Stores at gs://, where an object is replaced by its generation: obstore itself demands it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import obstore
import obstore.store
import pytest
from obstore.store import GCSStore

from standfast import Store
from standfast.errors import AlreadyExists
from standfast.store.remote import locks
from standfast.store.remote.backend import RemoteBackend
from standfast.store.remote.client import Client
from tests.kit.object_store.fixtures import use
from tests.store.remote.google.server import Google, running
from tests.store.remote.places import check, fresh, large, state, use_small_parts

URL = "gs://bucket/store"


@pytest.fixture
def google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Google]:
    opened: Any = obstore.store.from_url

    def from_url(url: str, *, client_options: Any, **options: Any) -> Any:
        """As without a test, but for the encryption."""
        return opened(url, client_options={**client_options, "allow_http": True}, **options)

    monkeypatch.setattr(obstore.store, "from_url", from_url)
    with running() as server:
        use(monkeypatch, server.environment, tmp_path)
        yield server


def test_obstore_refuses_a_tag_without_a_version(google: Google) -> None:
    """If this fails, the versions of tags may go."""
    store = GCSStore("bucket", prefix="store")
    obstore.put(store, "a", b"1")
    with pytest.raises(obstore.exceptions.GenericError, match="Version required"):
        obstore.put(store, "a", b"2", mode={"e_tag": "x"}, use_multipart=False)


def test_an_object_is_replaced_by_what_the_server_said_of_it(google: Google) -> None:
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


def test_an_object_is_replaced_by_what_a_list_said_of_it(google: Google) -> None:
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


def test_who_wrote_the_same_again_is_noticed(google: Google) -> None:
    client = Client(URL)
    first = client.put("a", b"1")
    again = client.put("a", b"1")
    assert (first == again, first.version == again.version) == (True, False)
    with pytest.raises(AlreadyExists):
        client.put("a", b"2", match=first)


def test_a_lock_is_taken_renewed_and_released(
    google: Google, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_SLACK", 1.0)
    backend = RemoteBackend(URL, lease=1.0)
    lock = backend.lock("a")
    assert lock is not None
    time.sleep(2.5)
    assert lock.is_held(), "it was renewed"
    assert backend.lock("a") is None
    lock.release()
    assert google.objects[f"store/{locks.FOLDER}/a"].data == b""
    again = backend.lock("a")
    assert again is not None
    again.release()


def test_a_store_works(google: Google, monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)
    run = Store(URL).run("a")
    run.save(1, large(1))
    run.save(2, state(2))
    other = fresh(URL).run("a")
    run.close()
    other.save(3, state(3))
    check(fresh(URL), large(1), state(2), state(3))
    other.delete(1)
    other.close()
    check(fresh(URL), state(2), state(3))
    assert [each.step for each in fresh(URL).find_run("a").checkpoints()] == [2, 3]
