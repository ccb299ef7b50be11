"""Saves share blocks, take little memory, and write the digests that are documented."""

import base64
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import standfast
from standfast.files import ring
from standfast.files.digests import CHUNK, tensor_digest, worker_count
from standfast.files.ring import Ring
from standfast.tensors import source_of
from tests.kit.peak_memory import peaks


def test_the_blocks_of_a_save_serve_the_next_one(tmp_path):
    standfast.save(tmp_path / "state.safetensors", {"x": np.ones(10)})
    kept = [id(block) for block in ring._spare]
    assert len(kept) == ring.BLOCKS
    standfast.save(tmp_path / "state.safetensors", {"x": np.ones(10)})
    assert sorted(id(block) for block in ring._spare) == sorted(kept)


def test_saves_on_many_threads_do_not_mix(tmp_path):
    def saved(i: int) -> bool:
        path = tmp_path / f"{i}.safetensors"
        for _ in range(5):
            standfast.save(path, {"x": np.full(500_000, i)})
        return bool((standfast.load(path)["x"] == i).all())

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(saved, range(6)))


def test_however_often_it_is_interrupted_no_write_is_left_behind():
    under_way = set()

    def write(data: Any, offset: int) -> None:
        under_way.add(offset)
        time.sleep(0.2)
        under_way.discard(offset)

    each = Ring(write)
    each.put(source_of(np.ones(100)))
    shutdown = each._pool.shutdown
    presses = iter([KeyboardInterrupt] * 2)

    def interrupted(**options: Any) -> None:
        for press in presses:
            raise press
        shutdown(**options)

    each._pool.shutdown = interrupted  # type: ignore[method-assign]
    each._flush()
    with pytest.raises(KeyboardInterrupt):
        each.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
    assert not under_way


PROGRAM = """
count = (48 << 20) // 4
standfast.save(sys.argv[1], {"warm": np.ones(10)})
for make in (
    lambda: np.ones(count, np.float32),
    lambda: np.ones((count // 1000, 1000), np.float32).T,
    lambda: np.ones(count, ">f4"),
):
    state = {f"x{i}": make() for i in range(4)}
    measure(lambda: standfast.save(sys.argv[1], state))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_save_takes_at_most_64_mib_beyond_the_state(tmp_path):
    """Whether its tensors are contiguous, transposed or of another byte order."""
    contiguous, transposed, swapped = peaks(PROGRAM, tmp_path / "state.safetensors")
    assert 8 << 10 < contiguous <= 64 << 10, "KiB"
    assert max(transposed, swapped) <= 64 << 10, "KiB"


def test_the_digests_can_be_computed_by_hand(tmp_path):
    path = tmp_path / "state.safetensors"
    big = np.frombuffer(os.urandom(2 * CHUNK + 5), np.uint8)
    tensors = {"empty": np.ones((0, 3)), "big": big, "few": np.arange(3.0)}
    standfast.save(path, tensors)
    data = path.read_bytes()
    size = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:size])
    strings = header["__metadata__"]
    tag, chunk, text = strings["standfast.chunks"].split(":")
    assert (tag, int(chunk)) == ("blake3", CHUNK)
    digests = []
    for name in tensors:  # in the order of the header
        begin, end = (size + at for at in header[name]["data_offsets"])
        for start in range(begin, max(end, begin + 1), CHUNK):
            digests.append(blake3(data[start : min(start + CHUNK, end)]).digest())
    assert base64.b64decode(text) == b"".join(digests)
    assert len(digests) == 5
    own = strings["standfast.digest"].encode()
    assert data.count(own) == 1
    assert blake3(data[:size].replace(own, b"0" * 64)).hexdigest().encode() == own


def test_the_digest_of_a_tensor_is_over_those_of_its_chunks():
    one, two = os.urandom(32), os.urandom(32)
    assert tensor_digest(one) == one
    assert tensor_digest(one + two) == blake3(one + two).digest()


def test_hashing_keeps_to_the_processors_it_was_given():
    given = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    assert worker_count() == min(8, given)
    assert worker_count(spare=100) == 1
