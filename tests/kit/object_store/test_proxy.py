"""The proxy counts what goes through it, and each of its faults does what it says."""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import obstore
import pytest
from obstore.exceptions import BaseError
from obstore.store import S3Store

from tests.kit.object_store.faults import (
    Answer,
    Call,
    CutAnswer,
    DropAnswer,
    DropRequest,
    Fault,
    HoldAnswer,
    ReplaceInAnswer,
    Slow,
)
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.object_store.server import Server

FAILURES = (BaseError, PermissionError, OSError)
SIZE = 3_000_000


@pytest.fixture
def store(proxy: Proxy, bucket_url: str) -> S3Store:
    """Goes through the proxy and tries nothing twice."""
    return client(bucket_url)


@pytest.fixture
def straight(server: Server, bucket_url: str) -> S3Store:
    """The same place, past the proxy."""
    return server.client("tests", prefix=bucket_url.removeprefix("s3://tests/"))


def client(url: str, retries: int = 0, **options: Any) -> S3Store:
    patience = timedelta(seconds=20)
    return S3Store.from_url(
        url,
        client_options={"allow_http": True, **options},  # type: ignore[arg-type]
        retry_config={"max_retries": retries, "retry_timeout": patience},
    )


def by(method: str) -> Callable[[Request], bool]:
    return lambda request: request.method == method


def there(store: S3Store, key: str) -> bool:
    return any(meta["path"] == key for page in obstore.list(store) for meta in page)


def test_bodies_and_requests_are_counted_and_no_secret_is_shown(
    proxy: Proxy, store: S3Store, bucket_url: str
) -> None:
    data = os.urandom(SIZE)
    obstore.put(store, "a b/ü", data)
    assert obstore.get(store, "a b/ü").bytes() == data
    assert obstore.get_range(store, "a b/ü", start=10, length=500) == data[10:510]
    obstore.head(store, "a b/ü")
    assert proxy.requests == {"PUT": 1, "GET": 2, "HEAD": 1}
    assert (proxy.up, proxy.down) == (len(data), len(data) + 500)
    path = bucket_url.removeprefix("s3:/") + "/a b/ü"
    assert {request.path for request in proxy.log} == {path}
    assert proxy.log[2].headers["range"] == "bytes=10-509"
    assert "authorization" in proxy.log[0].headers
    assert "Signature" not in repr(proxy.log)
    proxy.reset()
    assert (proxy.log, proxy.up, proxy.down) == ([], 0, 0)
    assert there(store, "a b/ü")
    (listing,) = proxy.log
    assert listing.query["prefix"].endswith("/store/")


def test_parts_of_an_upload_go_through_at_the_same_time(
    proxy: Proxy, store: S3Store, straight: S3Store
) -> None:
    data = os.urandom(12 << 20)
    obstore.put(store, "large", data, use_multipart=True, chunk_size=5 << 20, max_concurrency=4)
    assert obstore.get(straight, "large").bytes() == data
    assert proxy.requests == {"POST": 2, "PUT": 3}


@pytest.mark.parametrize(
    ("fault", "is_done"),
    [
        (HoldAnswer(30), True),
        (DropRequest(), False),
        (DropAnswer(), True),
        (Answer(500, b"<Error/>"), False),
        (Answer(403, b"<Error/>"), False),
    ],
    ids=str,
)
def test_a_request_fails_before_the_deed_or_after_it(
    proxy: Proxy, bucket_url: str, straight: S3Store, fault: Fault, is_done: bool
) -> None:
    proxy.rule(fault, by("PUT"))
    store = client(bucket_url, timeout=timedelta(seconds=1))
    with pytest.raises(FAILURES):
        obstore.put(store, "x", b"1")
    assert there(straight, "x") == is_done
    obstore.put(store, "x", b"2")
    assert obstore.get(straight, "x").bytes() == b"2"


@pytest.mark.parametrize("at", [0, 1, 1 << 20, SIZE - 3])
def test_bytes_of_an_answer_are_cut_or_replaced(proxy: Proxy, store: S3Store, at: int) -> None:
    data = os.urandom(SIZE)
    obstore.put(store, "x", data)
    new = bytes(byte ^ 255 for byte in data[at : at + 3])
    proxy.rule(ReplaceInAnswer(at, new), by("GET"))
    assert obstore.get(store, "x").bytes() == data[:at] + new + data[at + 3 :]
    proxy.reset()
    proxy.rule(CutAnswer(at), by("GET"))
    with pytest.raises(FAILURES):
        obstore.get(store, "x").bytes()
    assert proxy.down == at
    assert obstore.get(store, "x").bytes() == data


def test_a_slow_line_takes_its_time_both_ways(
    proxy: Proxy, store: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(proxy, "wait", pauses.append)
    data = os.urandom(300_000)
    for act in (lambda: obstore.put(store, "x", data), lambda: obstore.get(store, "x").bytes()):
        pauses.clear()
        proxy.rule(Slow(1_000_000))
        act()
        assert sum(pauses) >= 0.3


def test_a_rule_counts_the_requests_it_takes_and_leaves_alone(
    proxy: Proxy, store: S3Store, straight: S3Store
) -> None:
    seen: list[bool] = []
    for late in (False, True):
        rule = proxy.rule(Call(lambda _: seen.append(there(straight, "x")), late), by("PUT"))
        obstore.put(store, "x", b"1")
        assert rule.fired.is_set()
        obstore.delete(straight, "x")
    assert seen == [False, True]
    rule = proxy.rule(DropRequest(), by("PUT"), times=1, skip=1)
    obstore.put(store, "0", b"0")
    assert not rule.fired.is_set()
    with pytest.raises(FAILURES):
        obstore.put(store, "1", b"1")
    obstore.put(store, "2", b"2")
    assert [there(straight, key) for key in "012"] == [True, False, True]
    proxy.rule(DropRequest(), times=None)
    for _ in range(2):
        with pytest.raises(FAILURES):
            obstore.get(store, "0")
    proxy.heal()
    assert obstore.get(store, "0").bytes() == b"0"


def test_the_proxy_ends_although_clients_wait(
    server: Server, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures: list[BaseException] = []

    def fail(store: S3Store) -> None:
        try:
            obstore.put(store, "x", b"1")
        except FAILURES as error:
            failures.append(error)

    with Proxy(server.port) as proxy:
        rule = proxy.rule(HoldAnswer(600))
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        waiting = threading.Thread(target=fail, args=[client(bucket_url)])
        waiting.start()
        assert rule.fired.wait(60)
    waiting.join(60)
    assert len(failures) == 1
