"""The reader of `.tenzor` against malformed, cut and damaged files."""

from __future__ import annotations

import io
import re
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast.errors import DamagedFile, DigestMismatch, StandfastError, TruncatedFile
from tests.formats.tenzor.builders import (
    Case,
    entry,
    file_of,
    flipped_bits,
    index_of,
    opened,
    saved,
)
from tests.formats.tenzor.malformed import CASES, WITHOUT_MAGIC
from tests.fuzz.limits import memory_limit

all_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.tenzor"


@all_cases
def test_a_malformed_file_is_refused_by_the_right_error(case: Case) -> None:
    with pytest.raises(StandfastError, match=case.message) as refused:
        index_of(case.data)
    assert type(refused.value) is case.error
    assert len(str(refused.value)) < 1000


@all_cases
def test_a_malformed_stream_is_refused_too(case: Case) -> None:
    if not case.stream:
        assert opened(case.data).format == "tenzor"
        return
    with pytest.raises(StandfastError) as refused:
        opened(case.data)
    assert type(refused.value) is case.error


@all_cases
def test_only_digests_can_be_left_unchecked(case: Case) -> None:
    if case.unchecked:
        assert index_of(case.data, verify=False).digests is None
        return
    with pytest.raises(StandfastError) as refused:
        index_of(case.data, verify=False)
    assert type(refused.value) is case.error


@pytest.mark.parametrize("case", [*CASES[:3], *WITHOUT_MAGIC], ids=lambda case: case.name)
def test_a_malformed_file_on_disk_is_refused_with_its_path(case: Case, path: Path) -> None:
    path.write_bytes(case.data)
    with pytest.raises(
        StandfastError, match=f"^{re.escape(str(path))}: .*{case.message}"
    ) as refused:
        standfast.open(path)
    assert type(refused.value) is case.error


GREEDY = {
    "2^60 bytes": file_of(entries=[entry(shape=(2**30, 2**30), size=2**60)]),
    "2^62 bytes": file_of(entries=[entry(shape=(2**31, 2**31), size=2**62)]),
    "2^64 bytes in four": file_of(
        entries=[
            entry(name_hash=i, shape=(2**31, 2**31), size=2**62, offset=(i << 62) % 2**64)
            for i in range(4)
        ],
        data=b"",
    ),
    "16 million tensors": file_of(tensor_count=1 << 24, data_offset=805_310_464),
    "256 MiB of metadata": file_of(
        metadata_size=1 << 28, index_offset=64 + (1 << 28), data_offset=(1 << 28) + 4096
    ),
}


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "file"])
def test_a_small_file_that_claims_much_is_refused_at_once(
    name: str, stream: bool, path: Path
) -> None:
    path.write_bytes(GREEDY[name])
    tracemalloc.start()
    try:
        begun = time.process_time()
        with memory_limit(64 << 20), pytest.raises(TruncatedFile):
            standfast.open(io.BytesIO(GREEDY[name]) if stream else path)
        assert time.process_time() - begun < 0.5
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


# Files that were right once


def small() -> bytes:
    tensors = {"weight": np.arange(3, dtype=np.float32), "b": np.array(7, np.uint8)}
    return saved(tensors, {"step": 3})


def test_a_file_cut_anywhere_is_refused() -> None:
    whole = small()
    for extras_file in (whole, saved({"a": np.ones(3)}, extras=False)):
        for length in range(10, len(extras_file)):
            with pytest.raises(TruncatedFile):
                index_of(extras_file[:length])
            with pytest.raises(TruncatedFile):
                opened(extras_file[:length])
    assert opened(whole).metadata == {"step": 3}


def test_bytes_behind_a_file_are_refused_and_behind_a_stream_left_alone() -> None:
    with pytest.raises(standfast.errors.TrailingBytes, match="1 bytes follow the last tensor"):
        index_of(small() + b"\0")
    stream = io.BytesIO(small() + b"next")
    assert len(standfast.open(stream)) == 2
    assert stream.read() == b"next"


def found_by_verify(path: Path) -> bool:
    try:
        standfast.verify(path)
    except DamagedFile:
        return True
    except standfast.errors.UnsupportedFile:  # a bit of the version or the flags
        return True
    return False


def test_verify_finds_every_bit_flipped_outside_of_padding(path: Path) -> None:
    path.write_bytes(small())
    data = small()
    index_end = int.from_bytes(data[24:32], "little") + 48 * 2
    bits = [
        *range(8 * index_end),
        *range(8 * index_end, 8 * 4096, 13),
        *range(8 * 4096, 8 * len(data)),
    ]
    assert [bit for bit in flipped_bits(path, bits) if not found_by_verify(path)] == []
    assert standfast.verify(path).tensors == 2


@pytest.mark.long
def test_verify_finds_every_bit_flipped(path: Path) -> None:
    path.write_bytes(small())
    bits = range(8 * len(small()))
    assert [bit for bit in flipped_bits(path, bits) if not found_by_verify(path)] == []


def test_a_flipped_bit_of_a_tensor_is_told_by_its_name(path: Path) -> None:
    path.write_bytes(small())
    for bit, name in zip(
        flipped_bits(path, [8 * 4096 + 5, 8 * 4108]), ["weight", "b"], strict=True
    ):
        with pytest.raises(DigestMismatch) as found:
            standfast.verify(path)
        assert (bit > 0, found.value.tensors) == (True, (name,))
        with standfast.open(path, verify=False) as file:
            assert len(dict(file)) == 2
