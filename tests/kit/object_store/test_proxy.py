"""The proxy counts what goes through it, and each of its faults does what it says."""

from __future__ import annotations

import os
import threading
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


def is_put(request: Request) -> bool:
    return request.method == "PUT"


def is_get(request: Request) -> bool:
    return request.method == "GET"


def there(store: S3Store, key: str) -> bool:
    return any(meta["path"] == key for page in obstore.list(store) for meta in page)


def test_bodies_and_requests_are_counted(proxy: Proxy, store: S3Store, bucket_url: str) -> None:
    data = os.urandom(3_000_000)
    obstore.put(store, "a b/ü", data)
    assert obstore.get(store, "a b/ü").bytes() == data
    assert obstore.get_range(store, "a b/ü", start=10, length=500) == data[10:510]
    obstore.head(store, "a b/ü")
    assert proxy.requests == {"PUT": 1, "GET": 2, "HEAD": 1}
    assert (proxy.up, proxy.down) == (len(data), len(data) + 500)
    path = bucket_url.removeprefix("s3:/") + "/a b/ü"
    assert {request.path for request in proxy.log} == {path}
    assert proxy.log[2].headers["range"] == "bytes=10-509"
    proxy.reset()
    assert (proxy.log, proxy.up, proxy.down) == ([], 0, 0)


def test_a_listing_is_logged_with_its_query_and_no_secret_is_shown(
    proxy: Proxy, store: S3Store
) -> None:
    obstore.put(store, "x/1", b"1")
    assert there(store, "x/1")
    put, listing = proxy.log
    assert (listing.path, listing.query["list-type"]) == ("/tests", "2")
    assert listing.query["prefix"].endswith("/store/")
    assert proxy.down > 100
    assert "authorization" in put.headers
    assert "Signature" not in repr(put)


def test_parts_of_an_upload_go_through_at_the_same_time(
    proxy: Proxy, store: S3Store, straight: S3Store
) -> None:
    data = os.urandom(12 << 20)
    obstore.put(store, "large", data, use_multipart=True, chunk_size=5 << 20, max_concurrency=4)
    assert obstore.get(straight, "large").bytes() == data
    parts = {request.query.get("partNumber") for request in proxy.log if is_put(request)}
    assert parts == {"1", "2", "3"}
    assert proxy.requests == {"POST": 2, "PUT": 3}


def test_a_held_answer_comes_late_to_a_request_that_was_served(
    proxy: Proxy, bucket_url: str, straight: S3Store
) -> None:
    rule = proxy.rule(HoldAnswer(30), is_put)
    impatient = client(bucket_url, timeout=timedelta(seconds=0.5))
    with pytest.raises(FAILURES):
        obstore.put(impatient, "x", b"1")
    assert rule.hits == 1
    assert there(straight, "x")


@pytest.mark.parametrize("fault", [DropRequest(), DropAnswer()], ids=["request", "answer"])
def test_what_is_dropped_fails_before_the_deed_or_after_it(
    proxy: Proxy, store: S3Store, straight: S3Store, fault: Fault
) -> None:
    proxy.rule(fault, is_put)
    with pytest.raises(FAILURES):
        obstore.put(store, "x", os.urandom(3_000_000))
    assert there(straight, "x") == isinstance(fault, DropAnswer)
    obstore.put(store, "x", b"1")
    assert there(straight, "x")


@pytest.mark.parametrize("after", [0, 1, 1_500_000])
def test_an_answer_is_cut_after_so_many_bytes(proxy: Proxy, store: S3Store, after: int) -> None:
    obstore.put(store, "x", os.urandom(3_000_000))
    proxy.rule(CutAnswer(after), is_get)
    with pytest.raises(FAILURES):
        obstore.get(store, "x").bytes()
    assert proxy.down == after
    assert len(obstore.get(store, "x").bytes()) == 3_000_000


@pytest.mark.parametrize("at", [0, 999_998, 2_999_997, 1 << 20])
def test_bytes_of_an_answer_are_replaced(proxy: Proxy, store: S3Store, at: int) -> None:
    data = os.urandom(3_000_000)
    obstore.put(store, "x", data)
    new = bytes(byte ^ 255 for byte in data[at : at + 3])
    proxy.rule(ReplaceInAnswer(at, new), is_get)
    assert obstore.get(store, "x").bytes() == data[:at] + new + data[at + 3 :]
    assert obstore.get(store, "x").bytes() == data


@pytest.mark.parametrize("status", [500, 503, 403])
def test_the_proxy_answers_in_the_place_of_the_server(
    proxy: Proxy, store: S3Store, straight: S3Store, bucket_url: str, status: int
) -> None:
    rule = proxy.rule(Answer(status, b"<Error/>"), is_put, times=2)
    with pytest.raises(FAILURES, match=str(status)):
        obstore.put(store, "x", os.urandom(2_000_000))
    assert not there(straight, "x")
    if status >= 500:  # which a client tries again
        obstore.put(client(bucket_url, retries=3), "x", b"1")
        assert there(straight, "x")
        assert (rule.hits, proxy.requests["PUT"]) == (2, 3)


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


def test_a_function_is_called_before_the_request_or_before_its_answer(
    proxy: Proxy, store: S3Store, straight: S3Store
) -> None:
    seen: list[tuple[str, bool]] = []
    for late in (False, True):
        rule = proxy.rule(
            Call(lambda request: seen.append((request.method, there(straight, "x"))), late), is_put
        )
        obstore.put(store, "x", b"1")
        assert rule.fired.is_set()
        obstore.delete(straight, "x")
    assert seen == [("PUT", False), ("PUT", True)]


def test_a_rule_counts_the_requests_it_leaves_alone(
    proxy: Proxy, store: S3Store, straight: S3Store
) -> None:
    rule = proxy.rule(DropRequest(), is_put, times=1, skip=2)
    obstore.put(store, "0", b"0")
    obstore.put(store, "1", b"1")
    assert not rule.fired.is_set()
    with pytest.raises(FAILURES):
        obstore.put(store, "2", b"2")
    obstore.put(store, "3", b"3")
    assert [there(straight, key) for key in "0123"] == [True, True, False, True]
    proxy.rule(DropRequest(), times=None)
    for _ in range(2):
        with pytest.raises(FAILURES):
            obstore.get(store, "0")
    proxy.heal()
    assert obstore.get(store, "0").bytes() == b"0"


@pytest.mark.long
def test_a_server_that_is_killed_and_started_again_is_found_again(own_server: Server) -> None:
    with Proxy(own_server.port) as proxy:
        store = _through(proxy, own_server)
        obstore.put(store, "x", b"1")
        proxy.rule(Call(lambda request: own_server.kill()), is_put)
        with pytest.raises(FAILURES):
            obstore.put(store, "y", b"2")
        own_server.start()
        assert there(store, "x")
        assert not there(store, "y")


def test_the_proxy_ends_although_clients_wait(server: Server) -> None:
    proxy = Proxy(server.port)
    with proxy:
        rule = proxy.rule(HoldAnswer(600))
        store = _through(proxy, server)
        failures: list[BaseException] = []
        waiting = threading.Thread(target=lambda: failures.append(_failure(store)))
        waiting.start()
        assert rule.fired.wait(60)
    waiting.join(60)
    assert len(failures) == 1


def _through(proxy: Proxy, server: Server) -> S3Store:
    retries: Any = {"max_retries": 0, "retry_timeout": timedelta(seconds=20)}
    return server.client(endpoint=proxy.endpoint, retry_config=retries)


def _failure(store: S3Store) -> BaseException:
    with pytest.raises(FAILURES) as caught:
        obstore.put(store, "x", b"1")
    return caught.value
