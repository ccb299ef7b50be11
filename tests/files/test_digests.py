"""The digests in a file are those that the documentation describes."""

from __future__ import annotations

import base64
import json
import os
import sys
from pathlib import Path

import numpy as np
from blake3 import blake3

import standfast
from standfast.files.digests import CHUNK, batches, chunks_of, tensor_digest, worker_count


def test_the_digests_can_be_computed_by_hand(tmp_path: Path) -> None:
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


def test_the_digest_of_a_tensor_is_over_those_of_its_chunks() -> None:
    one, two = os.urandom(32), os.urandom(32)
    assert tensor_digest(one) == one
    assert tensor_digest(one + two) == blake3(one + two).digest()


def test_batches_hold_all_chunks_in_order_and_at_most_one_chunks_bytes() -> None:
    sizes = [0, 5, CHUNK + 1, CHUNK, 3, 0, 2 * CHUNK]
    chunks = [chunk for i, size in enumerate(sizes) for chunk in chunks_of(i, size)]
    found = list(batches(chunks))
    assert [chunk for batch in found for chunk in batch] == chunks
    assert all(sum(c.stop - c.start for c in batch) <= CHUNK for batch in found)
    assert len(found) < len(chunks)


def test_hashing_keeps_to_the_processors_it_was_given() -> None:
    given = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    assert worker_count() == min(8, given)
    assert worker_count(spare=100) == 1
