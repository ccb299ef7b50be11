"""The readers of OXCK, `standfast.open` and `Checkpoint`, against malformed and damaged files."""

from __future__ import annotations

import io
import re
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast.errors import DamagedFile, DigestMismatch, StandfastError, TruncatedFile
from standfast.oxck import Checkpoint, TruncatedData
from tests.formats.oxck.builders import Case, file_of, index_of, saved, tensor
from tests.formats.oxck.malformed import CASES, WITHOUT_MAGIC
from tests.formats.tenzor.builders import flipped_bits
from tests.fuzz.limits import memory_limit

all_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
all_files = pytest.mark.parametrize("case", [*CASES, *WITHOUT_MAGIC], ids=lambda case: case.name)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.oxck"


@all_cases
def test_a_malformed_file_is_refused_by_the_right_error(case: Case) -> None:
    with pytest.raises(StandfastError, match=case.message) as refused:
        index_of(case.data)
    assert type(refused.value) is case.error
    assert len(str(refused.value)) < 1000


@all_cases
def test_a_malformed_stream_is_refused_too(case: Case) -> None:
    if not case.stream:
        assert standfast.open(io.BytesIO(case.data)).format == "oxck"
        return
    with pytest.raises(StandfastError) as refused:
        standfast.open(io.BytesIO(case.data))
    assert type(refused.value) is case.error


@all_files
def test_a_malformed_file_on_disk_is_refused_with_its_path(case: Case, path: Path) -> None:
    path.write_bytes(case.data)
    with pytest.raises(
        StandfastError, match=f"^{re.escape(str(path))}: .*{case.message}"
    ) as refused:
        standfast.open(path)
    assert type(refused.value) is case.error


@all_files
def test_checkpoint_refuses_it_by_its_own_errors(case: Case, path: Path) -> None:
    path.write_bytes(case.data)
    if case.checkpoint is None:
        assert Checkpoint.load(path).version == 1
        return
    with pytest.raises(StandfastError) as refused:
        Checkpoint.load(path)
    assert type(refused.value) is case.checkpoint


@all_files
def test_checkpoint_refuses_it_as_a_stream(case: Case) -> None:
    if case.checkpoint is None or not case.stream:
        assert Checkpoint.read_from(io.BytesIO(case.data)).version == 1
        return
    with pytest.raises(StandfastError) as refused:
        Checkpoint.read_from(io.BytesIO(case.data))
    assert type(refused.value) is case.checkpoint


# Small files that claim much


def claiming(elements: int, *shape: int) -> bytes:
    """A file of one tensor, of which there is nothing but its header."""
    return file_of("", tensor("", shape, b"", elements=elements))


GREEDY = {
    "2^60 elements": claiming(2**60, 2**60),
    "2^60 elements of a scalar": claiming(2**60),
    "2^60 elements of another shape": claiming(2**60, 2, 3),
    "2^62 - 1 elements": claiming(2**62 - 1, 2**62 - 1),
    "2^64 - 1 elements": claiming(2**64 - 1, 2**64 - 1),
    "2^33 elements": claiming(2**33, 2**33),
    "2^60 tensors": file_of("", tensor("", (), b""), count=2**60)[:40],
    "2^64 - 1 tensors": file_of("{}", tensor(), count=2**64 - 1),
    "256 MiB of metadata": file_of("{}", length=1 << 28),
    "a long name": file_of("{}", tensor("", name_length=65_535)),
}
READERS: dict[str, Callable[[Path], object]] = {
    "open": standfast.open,
    "open a stream": lambda path: standfast.open(io.BytesIO(path.read_bytes())),
    "Checkpoint.load": Checkpoint.load,
    "Checkpoint.read_from": lambda path: Checkpoint.read_from(io.BytesIO(path.read_bytes())),
}


@pytest.mark.parametrize("name", GREEDY)
@pytest.mark.parametrize("reader", READERS)
def test_a_small_file_that_claims_much_is_refused_at_once(
    name: str, reader: str, path: Path
) -> None:
    path.write_bytes(GREEDY[name])
    expected = TruncatedData if reader.startswith("Checkpoint") else TruncatedFile
    tracemalloc.start()
    try:
        begun = time.process_time()
        with memory_limit(64 << 20), pytest.raises(TruncatedFile) as refused:
            READERS[reader](path)
        assert time.process_time() - begun < 0.5
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert type(refused.value) is expected


def test_many_empty_tensors_take_time_by_their_number() -> None:
    data = file_of("{}", *[tensor("", (0,), b"")] * 50_000)
    begun = time.process_time()
    assert len(Checkpoint.read_from(io.BytesIO(data)).tensors) == 50_000
    assert time.process_time() - begun < 3


# Files that were right once


def small() -> bytes:
    tensors = {"weight": np.arange(3, dtype=np.float32), "b": np.array(7, np.float32)}
    return saved(tensors, {"step": 3})


@pytest.mark.parametrize("extras", [True, False])
def test_a_file_cut_anywhere_is_refused(extras: bool) -> None:
    tensors = {"weight": np.arange(3, dtype=np.float32), "b": np.array(7, np.float32)}
    data = saved(tensors, {"step": "3"}, extras=extras)
    for length in range(len(data)):
        if length >= 10:
            with pytest.raises(TruncatedFile):
                index_of(data[:length])
            with pytest.raises(TruncatedFile):
                standfast.open(io.BytesIO(data[:length]))
        with pytest.raises(TruncatedData) as refused:
            Checkpoint.read_from(io.BytesIO(data[:length]))
        assert 0 <= refused.value.got < refused.value.expected
    assert len(Checkpoint.read_from(io.BytesIO(data)).tensors) == 2


def is_found(use: Callable[[Path], object], path: Path) -> bool:
    try:
        use(path)
    except DamagedFile:
        return True
    except standfast.errors.UnsupportedFile:  # a bit of the version
        return True
    return False


@pytest.mark.parametrize("use", [standfast.verify, Checkpoint.load], ids=["verify", "Checkpoint"])
def test_every_bit_flipped_outside_of_padding_is_found(
    use: Callable[[Path], object], path: Path
) -> None:
    data = small()
    path.write_bytes(data)
    padding = data.index(b"}  ") + 2
    bits = [*range(8 * padding), *range(8 * padding, 8 * 4096, 13), *range(8 * 4096, 8 * len(data))]
    assert [bit for bit in flipped_bits(path, bits) if not is_found(use, path)] == []
    assert not is_found(use, path)


@pytest.mark.long
@pytest.mark.parametrize("use", [standfast.verify, Checkpoint.load], ids=["verify", "Checkpoint"])
def test_every_bit_flipped_is_found(use: Callable[[Path], object], path: Path) -> None:
    path.write_bytes(small())
    bits = range(8 * len(small()))
    assert [bit for bit in flipped_bits(path, bits) if not is_found(use, path)] == []


@pytest.mark.parametrize("use", [standfast.verify, Checkpoint.load], ids=["verify", "Checkpoint"])
def test_a_flipped_bit_of_a_tensor_is_told_by_its_name(
    use: Callable[[Path], object], path: Path
) -> None:
    data = small()
    path.write_bytes(data)
    for _, name in zip(
        flipped_bits(path, [8 * (len(data) - 1), 8 * (data.index(b"weight") + 26)]),
        ["b", "weight"],
        strict=True,
    ):
        with pytest.raises(DigestMismatch, match=f"'{name}'") as found:
            use(path)
        assert found.value.tensors == (name,)


def test_all_damaged_tensors_are_named(path: Path) -> None:
    tensors = [(f"t{i}", np.full(5, i, np.float32)) for i in range(4)]
    data = bytearray(saved(tensors))
    for name in (b"t1", b"t3"):
        data[data.index(name, 4096) + 30] ^= 1
    path.write_bytes(data)
    for use in (standfast.verify, Checkpoint.load):
        with pytest.raises(DigestMismatch, match="'t1' and 1 more") as found:
            use(path)
        assert found.value.tensors == ("t1", "t3")
