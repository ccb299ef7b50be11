"""Files on their way into an object store."""

import errno
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import S3Store

from standfast.errors import AlreadyExists, WriteFailed
from standfast.store.remote.backend import RemoteBackend
from standfast.store.remote.new_file import _unused
from tests.kit.object_store.faults import Answer, DropAnswer, HoldAnswer
from tests.kit.stores import MIB, random_bytes
from tests.store.remote.places import PART, is_completion, is_part, keys

NAME = "models/a/a.safetensors"
SIZE = 2 * PART + 3 * MIB


pytestmark = pytest.mark.usefixtures("small_parts")


@pytest.fixture
def backend(bucket_url: str) -> RemoteBackend:
    return RemoteBackend(f"{bucket_url}/checkpoints")


def placed(client: S3Store) -> list[str]:
    return [key for key in keys(client) if ".standfast" not in key]


def write(backend: RemoteBackend, data: np.ndarray, place: bool = True) -> None:  # type: ignore[type-arg]
    with backend.new(NAME) as new:
        new.reserve(data.size)
        for start in range(0, data.size, MIB):
            new.write(data[start : start + MIB], start)
        new.finish(data.size)
        if place:
            new.place()


def test_blocks_that_come_in_any_order_are_put_in_order(backend, client, unfinished):
    data = random_bytes(SIZE)
    starts = list(range(0, SIZE, MIB))
    np.random.default_rng(1).shuffle(starts)
    with backend.new(NAME) as new:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda start: new.write(data[start : start + MIB], start), starts))
        new.finish(SIZE)
        assert placed(client) == []
        new.place()
    assert bytes(obstore.get(client, NAME).bytes()) == data.tobytes()
    assert unfinished() == []


def test_a_file_that_is_not_placed_leaves_nothing(backend, client, unfinished):
    write(backend, random_bytes(SIZE), place=False)
    assert placed(client) == []
    assert unfinished() == []
    with backend.new(NAME) as new:
        for start in range(0, SIZE, MIB):
            new.write(random_bytes(MIB), start)
    assert placed(client) == []
    assert unfinished() == []


def test_a_hole_is_no_file(backend, client):
    with backend.new(NAME) as new:
        new.write(random_bytes(MIB), 0)
        new.write(random_bytes(MIB), 2 * MIB)
        for act in (lambda: new.finish(3 * MIB), new.place):
            with pytest.raises(WriteFailed) as caught:
                act()
            assert caught.value.errno == errno.EINVAL
    assert placed(client) == []


@pytest.mark.parametrize("size", [1000, SIZE], ids=["small", "large"])
def test_a_name_that_is_taken_stays_as_it_is(backend, client, size, unfinished):
    obstore.put(client, NAME, b"first")
    with pytest.raises(AlreadyExists):
        write(backend, random_bytes(size))
    assert bytes(obstore.get(client, NAME).bytes()) == b"first"
    assert unfinished() == []


def test_an_upload_that_is_refused_is_aborted_at_once(proxy, backend, client, unfinished):
    rule = proxy.rule(Answer(403, b"<Error><Code>AccessDenied</Code></Error>"), is_part, times=None)
    with pytest.raises(WriteFailed, match="AccessDenied"):
        write(backend, np.zeros(20 * PART, np.uint8))
    assert 0 < rule.hits < 20
    assert placed(client) == []
    assert unfinished() == []


@pytest.mark.parametrize(
    ("fault", "times"), [(DropAnswer(), 1), (DropAnswer(), 2), (HoldAnswer(600), None)], ids=str
)
def test_a_completion_whose_answer_is_lost_is_looked_for(
    proxy, bucket_url, client, fault, times, monkeypatch, unfinished
):
    if times is None:
        monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    backend, data = RemoteBackend(f"{bucket_url}/checkpoints"), random_bytes(SIZE)
    rule = proxy.rule(fault, is_completion, times)
    write(backend, data)
    assert rule.hits >= 1
    assert bytes(obstore.get(client, NAME).bytes()) == data.tobytes()
    proxy.heal()
    assert unfinished() == []


@pytest.mark.parametrize("is_over", [False, True], ids=["under way", "over"])
def test_an_upload_that_fails_hides_no_other_error(proxy, bucket_url, is_over, monkeypatch):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
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
def test_memory_is_used_again_only_when_no_part_of_it_is_held(name, seams):
    seams.system(sys, getrefcount=lambda *_: 1)  # Python 3.14 leaves some out: gh-130704
    size = (1 << 16) + 4096 * list(HOLDERS).index(name)  # of which no other test has a block
    lent = _unused(size)
    where = lent.ctypes.data
    held = HOLDERS[name](lent)
    del lent
    other = _unused(size)
    assert other.ctypes.data != where
    del held
    assert _unused(size).ctypes.data == where, "it was touched before"


@pytest.mark.parametrize("lengths", [[5, 3 << 20, 7, 9], [0, 1]])
def test_what_is_appended_is_there_in_its_order(bucket_url, lengths):
    pieces = [np.full(length, n + 1, np.uint8) for n, length in enumerate(lengths)]
    backend = RemoteBackend(bucket_url)
    with backend.new("a") as file:
        for piece in pieces:
            file.append(piece)
        file.finish(sum(lengths))
        file.place()
    assert backend.read("a") == b"".join(piece.tobytes() for piece in pieces)


def test_memory_that_is_lent_is_uploaded_as_it_was_filled(backend):
    sizes = [PART] * 14 + [700]  # more than wait for the server at once
    with backend.new(NAME) as file:
        for number, size in enumerate(sizes):
            block = file.block(PART)
            assert block.ctypes.data % 4096 == 0, "a disk reads into it without a copy"
            block[:size] = number
            file.append(block[:size])
        file.finish(sum(sizes))
        file.place()
    assert backend.read(NAME) == b"".join(bytes([n]) * size for n, size in enumerate(sizes))
