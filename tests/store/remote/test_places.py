"""Where in a bucket a store may be."""

from __future__ import annotations

import secrets

import obstore
import pytest

from standfast import Store
from tests.kit.cases import kept
from tests.kit.object_store.server import Server
from tests.store.remote.places import check, fresh, state, straight


@pytest.mark.parametrize(
    "prefix",
    kept(
        ["/", "/a/b/c/d/e/f/g/h", "/with space", "/müßig", "/100%", "/%41", "/a+b&c=d", "/a'b(c)!"],
        "/",
        "/%41",
    ),
)
def test_a_store_may_be_anywhere_in_a_bucket(prefix: str, server: Server, bucket_url: str) -> None:
    url = server.bucket(f"place-{secrets.token_hex(4)}") + prefix
    with Store(url) as store, store.run("a") as run:
        run.save(1, state(1))
        run.save(2, state(2)).tag("paper")
        run.delete(1)
    check(fresh(url.rstrip("/")), state(2))
    assert fresh(url.rstrip("/")).resolve("paper").step == 2
    assert store.backend.unfinished() == []
    with Store(url).run("a") as run:
        run.save(3, state(3))
    check(fresh(url.rstrip("/")), state(2), state(3))


def test_stores_beside_each_other_have_nothing_in_common(bucket_url: str) -> None:
    urls = [bucket_url, f"{bucket_url}2", f"{bucket_url}/store", f"{bucket_url}/checkpoints"]
    for number, url in enumerate(urls):
        with Store(url) as store, store.run("a") as run:
            run.save(number, state(number))
    for number, url in enumerate(urls):
        check(fresh(url), state(number))
        assert fresh(url).index.count() in (0, 1), "its own, once it was looked at"


def test_objects_of_others_are_let_be(bucket_url: str, server: Server) -> None:
    client = straight(server, bucket_url)
    for key in ("readme.txt", "models/notes.txt", "models/x/y"):
        obstore.put(client, key, b"theirs")
    with Store(bucket_url) as store, store.run("a") as run:
        run.save(1, state(1))
        run.save(2, state(2))
        run.delete(1)
    with Store(bucket_url) as store:
        store.run("a").delete_all()
        assert store.runs() == []
    for key in ("readme.txt", "models/notes.txt", "models/x/y"):
        assert bytes(obstore.get(client, key).bytes()) == b"theirs"
