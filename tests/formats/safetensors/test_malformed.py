"""The reader of safetensors against malformed, damaged, hostile and merely odd files."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors

import standfast
from standfast.errors import (
    DamagedFile,
    DigestMismatch,
    IndexMismatch,
    NothingToVerify,
    NotVerified,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnknownFormat,
)
from standfast.formats.safetensors.file import CODE_OF
from tests.formats.safetensors.builders import (
    Case,
    entry,
    file_of,
    header_end,
    index_of,
    member,
    objects,
    saved_file,
    small_tensors,
)
from tests.formats.safetensors.legal import LEGAL, Legal
from tests.formats.safetensors.malformed import CASES

LONGEST_MESSAGE = 4000
"""Room for a path, a shortened name and a shape of 64 dimensions."""

all_cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
all_legal = pytest.mark.parametrize("legal", LEGAL, ids=lambda legal: legal.name)
mapped_and_not = pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.safetensors"


@contextmanager
def quietly() -> Iterator[None]:
    """Without the warning that a file holds no digests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotVerified)
        yield


def refusal(data: bytes, verify: bool = True) -> type[DamagedFile] | None:
    """How a file is refused; None if it opens."""
    try:
        index_of(data, verify)
    except DamagedFile as error:
        return type(error)
    return None


def library_opens(data: bytes) -> bool:
    try:
        safetensors.deserialize(data)
    except safetensors.SafetensorError:
        return False
    return True


# Malformed files


@all_cases
def test_each_verb_refuses_it_by_its_own_error(case: Case, path: Path) -> None:
    path.write_bytes(case.data)
    for verb in (standfast.open, standfast.load, standfast.verify):
        with pytest.raises(StandfastError) as refused:
            verb(path)
        assert type(refused.value) is case.error
        message = str(refused.value)
        assert message.startswith(f"{path}: ")
        assert re.search(case.message, message.removeprefix(f"{path}: "), re.DOTALL)
        assert len(message) < LONGEST_MESSAGE
        assert message.isprintable()


def test_only_digests_can_be_left_unchecked() -> None:
    checked = [
        case
        for case in CASES
        if case.error is not IndexMismatch and "standfast.chunks" not in case.message
    ]
    assert [
        case.name for case in checked if refusal(case.data, verify=False) is not case.error
    ] == []


def test_the_library_refuses_it_too_unless_we_are_stricter() -> None:
    assert [case.name for case in CASES if library_opens(case.data) != bool(case.stricter)] == []


def test_each_case_has_a_name_of_its_own() -> None:
    assert len({case.name for case in CASES}) == len(CASES) >= 70


def test_a_refused_file_is_closed(path: Path) -> None:
    path.write_bytes(CASES[-1].data)
    before = os.listdir("/dev/fd")
    for _ in range(20):
        with pytest.raises(DamagedFile):
            standfast.open(path)
    assert os.listdir("/dev/fd") == before


@pytest.mark.parametrize("start", [b"[]", b" {}", b"", b"\x80\x04}."])
def test_a_foreign_suffix_and_no_brace_are_of_no_format(start: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file.bin"
    path.write_bytes(file_of(start))
    with pytest.raises(UnknownFormat, match=re.escape(str(path))):
        standfast.open(path)


# Legal files that look odd


def check_legal(legal: Legal, tensors: dict[str, Any]) -> None:
    assert list(tensors) == list(legal.tensors)
    for name, array in tensors.items():
        assert array.tobytes() == legal.tensors[name].data
        assert array.flags.aligned


@all_legal
@mapped_and_not
def test_it_opens_and_holds_what_it_should(legal: Legal, mapped: bool, path: Path) -> None:
    path.write_bytes(legal.data)
    with standfast.open(path, mapped=mapped) as file:
        assert file.metadata == legal.metadata
        for name, tensor in legal.tensors.items():
            spec = file.spec(name)
            assert CODE_OF[spec.dtype] == tensor.dtype
            assert spec.shape == tensor.shape
            assert file[name].shape == spec.array_shape
        check_legal(legal, dict(file))
        check_legal(legal, {name: file.slice(name)[...] for name in file})


@all_legal
@mapped_and_not
def test_it_loads(legal: Legal, mapped: bool, path: Path) -> None:
    path.write_bytes(legal.data)
    with quietly():
        check_legal(legal, standfast.load(path, mapped=mapped))


@all_legal
def test_the_library_sees_the_same_in_it(legal: Legal) -> None:
    theirs = dict(safetensors.deserialize(legal.data))
    assert theirs.keys() == legal.tensors.keys()
    for name, tensor in legal.tensors.items():
        assert theirs[name]["dtype"] == tensor.dtype
        assert tuple(theirs[name]["shape"]) == tensor.shape
        assert bytes(theirs[name]["data"]) == tensor.data


# Damage to a file that Standfast saved


@pytest.fixture(scope="module")
def saved() -> bytes:
    return saved_file(small_tensors(), {"step": 3, "name": "run"})


def test_each_flipped_bit_of_the_header_is_found(saved: bytes) -> None:
    file = bytearray(saved)
    end_of_text = len(saved[: header_end(saved)].rstrip())
    missed = []
    for at in range(header_end(saved)):
        # All spaces of the padding are alike: a bit of each is enough.
        for bit in range(8) if at < end_of_text else [at % 8]:
            file[at] ^= 1 << bit
            if refusal(bytes(file)) is None:
                missed.append((at, bit))
            file[at] ^= 1 << bit
    assert missed == []


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_a_flipped_bit_in_each_byte_of_the_header_is_found_by_open(
    suffix: str, saved: bytes, tmp_path: Path
) -> None:
    path = tmp_path / f"file{suffix}"
    path.write_bytes(saved)
    with path.open("r+b", buffering=0) as out:
        for at in range(header_end(saved)):
            os.pwrite(out.fileno(), bytes([saved[at] ^ 1 << at % 8]), at)
            # Without its first brace, a file of a foreign suffix might be anything.
            expected = UnknownFormat if at == 8 and suffix == ".bin" else DamagedFile
            with pytest.raises(expected, match=re.escape(str(path))):
                standfast.open(path)
            os.pwrite(out.fileno(), saved[at : at + 1], at)


@mapped_and_not
@pytest.mark.parametrize("name", ["weight", "bias", "mask"])
def test_each_flipped_bit_of_a_tensor_is_found_and_named(
    name: str, mapped: bool, saved: bytes, path: Path
) -> None:
    index = index_of(saved)
    row = index.rows[name]
    start, stop = int(index.starts[row]), int(index.starts[row] + index.sizes[row])
    for at in range(start, stop):
        path.write_bytes(saved[:at] + bytes([saved[at] ^ 1 << at % 8]) + saved[at + 1 :])
        with pytest.raises(DigestMismatch, match=re.escape(f"{path}: tensor '{name}'")) as found:
            standfast.load(path, mapped=mapped)
        assert found.value.tensors == (name,)
        with pytest.raises(DigestMismatch) as found:
            standfast.verify(path)
        assert found.value.tensors == (name,)


@mapped_and_not
def test_the_other_tensors_of_a_damaged_file_can_be_read(
    mapped: bool, saved: bytes, path: Path
) -> None:
    path.write_bytes(saved[:-1] + bytes([saved[-1] ^ 1]))
    with standfast.open(path, mapped=mapped) as file:
        for name, array in small_tensors().items():
            if name == "mask":
                for read in (lambda: file["mask"], lambda: file.slice("mask")[:1]):
                    with pytest.raises(DigestMismatch, match="'mask'"):
                        read()
            else:
                assert np.array_equal(file[name], array)
        # A second look at it must not find it checked.
        with pytest.raises(DigestMismatch, match="'mask'"):
            file["mask"]


def test_all_damaged_tensors_are_named_in_the_order_of_the_file(saved: bytes, path: Path) -> None:
    start = header_end(saved)
    path.write_bytes(saved[:start] + bytes(byte ^ 0xFF for byte in saved[start:]))
    with pytest.raises(DigestMismatch) as found:
        standfast.verify(path)
    assert found.value.tensors == ("weight", "bias", "mask")


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_cut_at_any_length_is_refused(verify: bool, saved: bytes, path: Path) -> None:
    path.write_bytes(saved)
    for size in range(len(saved) - 1, -1, -1):
        os.truncate(path, size)
        with pytest.raises(TruncatedFile, match=re.escape(str(path))):
            standfast.open(path, verify=verify)


@pytest.mark.parametrize("verify", [True, False])
def test_a_file_grown_by_a_byte_is_refused(verify: bool, saved: bytes, path: Path) -> None:
    path.write_bytes(saved + b"\0")
    with pytest.raises(TrailingBytes, match=re.escape(f"{path}: 1 bytes")):
        standfast.open(path, verify=verify)


def test_a_file_of_another_writer_can_be_loaded_but_not_verified(path: Path) -> None:
    path.write_bytes(file_of(objects(member("a", entry())), b"x"))
    with pytest.warns(NotVerified, match=re.escape(str(path))):
        assert standfast.load(path)["a"].tobytes() == b"x"
    with pytest.raises(NothingToVerify, match=re.escape(str(path))):
        standfast.verify(path)
