"""Files on their way into an object store."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import S3Store

from standfast.errors import AlreadyExists, WriteFailed
from standfast.store.remote import new_file
from standfast.store.remote.backend import RemoteBackend
from standfast.store.remote.new_file import _copied, _unused
from tests.kit.object_store.faults import Answer, DropAnswer, HoldAnswer
from tests.kit.object_store.proxy import Proxy
from tests.kit.object_store.server import Server
from tests.kit.stores import MIB, random_bytes
from tests.store.remote.places import PART, is_completion, is_part, straight, use_small_parts

NAME = "models/a/a.safetensors"
SIZE = 2 * PART + 3 * MIB


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)


@pytest.fixture
def backend(bucket_url: str) -> RemoteBackend:
    return RemoteBackend(f"{bucket_url}/checkpoints")


@pytest.fixture
def client(server: Server, bucket_url: str) -> S3Store:
    return straight(server, bucket_url)


def keys(client: S3Store) -> list[str]:
    found = [meta["path"] for page in obstore.list(client) for meta in page]
    return [key for key in found if ".standfast" not in key]


def write(backend: RemoteBackend, data: np.ndarray, place: bool = True) -> None:  # type: ignore[type-arg]
    with backend.new(NAME) as new:
        new.reserve(data.size)
        for start in range(0, data.size, MIB):
            new.write(data[start : start + MIB], start)
        new.finish(data.size)
        if place:
            new.place()


def test_blocks_that_come_in_any_order_are_put_in_order(
    backend: RemoteBackend, client: S3Store
) -> None:
    data = random_bytes(SIZE)
    starts = list(range(0, SIZE, MIB))
    np.random.default_rng(1).shuffle(starts)
    with backend.new(NAME) as new:
        threads = [
            threading.Thread(target=new.write, args=(data[start : start + MIB], start))
            for start in starts
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        new.finish(SIZE)
        assert keys(client) == []
        new.place()
    assert bytes(obstore.get(client, NAME).bytes()) == data.tobytes()
    assert backend.unfinished() == []


def test_a_file_that_is_not_placed_leaves_nothing(backend: RemoteBackend, client: S3Store) -> None:
    write(backend, random_bytes(SIZE), place=False)
    assert keys(client) == []
    assert backend.unfinished() == []
    with backend.new(NAME) as new:
        for start in range(0, SIZE, MIB):
            new.write(random_bytes(MIB), start)
    assert keys(client) == []
    assert backend.unfinished() == []


def test_a_hole_is_no_file(backend: RemoteBackend, client: S3Store) -> None:
    with backend.new(NAME) as new:
        new.write(random_bytes(MIB), 0)
        new.write(random_bytes(MIB), 2 * MIB)
        with pytest.raises(WriteFailed, match="a part of it is missing"):
            new.finish(3 * MIB)
        with pytest.raises(WriteFailed, match="it is not finished"):
            new.place()
    assert keys(client) == []


@pytest.mark.parametrize("size", [1000, SIZE], ids=["small", "large"])
def test_a_name_that_is_taken_stays_as_it_is(
    backend: RemoteBackend, client: S3Store, size: int
) -> None:
    obstore.put(client, NAME, b"first")
    with pytest.raises(AlreadyExists):
        write(backend, random_bytes(size))
    assert bytes(obstore.get(client, NAME).bytes()) == b"first"
    assert backend.unfinished() == []


def test_an_upload_that_is_refused_ends_at_once_and_leaves_nothing(
    proxy: Proxy, backend: RemoteBackend, client: S3Store
) -> None:
    rule = proxy.rule(Answer(403, b"<Error><Code>AccessDenied</Code></Error>"), is_part, times=None)
    with pytest.raises(WriteFailed, match="do not allow it"):
        write(backend, random_bytes(20 * PART))
    assert 0 < rule.hits < 20
    assert keys(client) == []
    assert backend.unfinished() == []


@pytest.mark.parametrize("times", [1, 2])
def test_a_completion_that_was_done_is_done_though_nobody_said_so(
    proxy: Proxy, backend: RemoteBackend, client: S3Store, times: int
) -> None:
    data = random_bytes(SIZE)
    rule = proxy.rule(DropAnswer(), is_completion, times)
    write(backend, data)
    assert rule.hits >= 1
    assert bytes(obstore.get(client, NAME).bytes()) == data.tobytes()
    assert backend.unfinished() == []


def test_a_completion_that_nobody_hears_of_is_looked_for(
    proxy: Proxy, bucket_url: str, client: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "2")
    rule = proxy.rule(HoldAnswer(600), is_completion, times=None)
    data = random_bytes(SIZE)
    write(RemoteBackend(f"{bucket_url}/checkpoints"), data)
    assert rule.hits >= 1
    assert bytes(obstore.get(client, NAME).bytes()) == data.tobytes()


@pytest.mark.parametrize("is_over", [False, True], ids=["under way", "over"])
def test_an_upload_that_fails_hides_no_other_error(
    proxy: Proxy, bucket_url: str, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "2")
    backend = RemoteBackend(f"{bucket_url}/checkpoints")

    def fail() -> None:
        with backend.new(NAME) as new:
            new.write(random_bytes(MIB), 0)
            proxy.rule(HoldAnswer(600), times=None)
            with suppress(WriteFailed):
                for start in range(MIB, SIZE if is_over else 3 * MIB, MIB):
                    new.write(random_bytes(MIB), start)
            assert (new._upload is not None and new._upload._error is not None) == is_over
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


def test_memory_is_used_again_only_when_no_upload_holds_it() -> None:
    data = np.arange(1 << 16, dtype=np.uint8)
    first, second = _copied(data), _copied(data)
    assert not np.shares_memory(first, second)
    held = memoryview(first)  # as an upload holds it
    where = first.ctypes.data
    del first
    third = _copied(data)
    assert third.ctypes.data != where
    del held
    assert _copied(data).ctypes.data == where
    assert third.tobytes() == second.tobytes() == data.tobytes()


HOLDERS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda lent: lent,
    "slice of slice": lambda lent: lent[7:][5:9],
    "memoryview of slice": lambda lent: memoryview(lent[7:]),
    "slice of memoryview": lambda lent: memoryview(lent)[7:][5:9],
    "cast memoryview": lambda lent: memoryview(lent).cast("I").toreadonly(),
    "memoryview of memoryview": lambda lent: memoryview(memoryview(lent[7:])),
    "other type": lambda lent: lent.view(np.float32)[3:],
    "other shape": lambda lent: lent.reshape(2, -1).T[3:],
    "array of memoryview": lambda lent: np.frombuffer(memoryview(lent[7:]), np.uint8)[5:],
    "obstore": lambda lent: obstore.Bytes(lent[7:]),
    "iterator": lambda lent: iter([lent[7:]]),
}


@pytest.mark.parametrize("name", HOLDERS)
def test_whoever_holds_a_part_of_a_block_keeps_all_of_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "getrefcount", lambda _: 1)  # Python 3.14 leaves some out: gh-130704
    monkeypatch.setattr(new_file, "_blocks", [])
    size = 1 << 16
    lent = _unused(size)
    where = lent.ctypes.data
    held = HOLDERS[name](lent)
    del lent
    other = _unused(size)
    assert other.ctypes.data != where
    del held
    assert _unused(size).ctypes.data == where, "it was touched before"


@pytest.mark.parametrize("lengths", [[5, 3 << 20, 7, 9], [1 << 20] * 3, [0, 1], [20 << 20]])
def test_what_is_appended_is_there_in_its_order(bucket_url: str, lengths: list[int]) -> None:
    pieces = [np.full(length, n + 1, np.uint8) for n, length in enumerate(lengths)]
    backend = RemoteBackend(bucket_url)
    with backend.new("a") as file:
        for piece in pieces:
            file.append(piece)
        file.finish(sum(lengths))
        file.place()
    assert backend.read("a") == b"".join(piece.tobytes() for piece in pieces)


def test_memory_that_is_lent_is_uploaded_as_it_was_filled(backend: RemoteBackend) -> None:
    sizes = [PART] * 30 + [700]  # more than wait for the server at once
    with backend.new(NAME) as file:
        for number, size in enumerate(sizes):
            block = file.block(PART)
            assert block.ctypes.data % 4096 == 0, "a disk reads into it without a copy"
            block[:size] = number
            file.append(block[:size])
        file.finish(sum(sizes))
        file.place()
    assert backend.read(NAME) == b"".join(bytes([n]) * size for n, size in enumerate(sizes))
