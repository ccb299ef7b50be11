"""The `.tenzor` format: golden files, what is written and read back, names, what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import (
    BadName,
    DuplicateName,
    NotVerified,
    RefusedMetadata,
    UnsupportedDType,
    UnsupportedShape,
)
from standfast.formats.tenzor import file as tenzor
from standfast.formats.tenzor.file import checkpoint_metadata
from standfast.formats.tenzor.names import hash_names
from standfast.tensors import DTYPES, TensorSpec
from tests import GOLDEN
from tests.formats.builders import Array, chunks, opened
from tests.formats.tenzor.builders import (
    CODES,
    entry,
    file_of,
    fnv,
    index_of,
    lookup,
    metadata_text,
    own_text,
    reseal,
    saved,
)
from tests.kit.strategies import arrays, metadata, names, same_bytes

FIRST = GOLDEN / "tenzor_checkpoint.tenzor"
NAMES = ["conv1_weight", "conv1_bias", "optim/conv1_weight/v", "optim/conv1_bias/v"]
HASHES = [0xC0713D87C613C5C3, 0x9502FA3BC070167E, 0x2ADE9A9EAA75D0CA, 0x4A7A9950BB56BA33]
METADATA = {
    "epoch": 5,
    "global_step": 4685,
    "best_val_loss": 0.198,
    "best_val_acc": 0.963,
    "best_epoch": 3,
    "learning_rate": 0.0087,
    "model_name": "lenet",
    "timestamp": 1700000000,
}


def golden_tensors() -> dict[str, Array]:
    """What the golden file holds, by its description."""
    steps = np.arange(150, dtype=np.float32)
    weight = (steps * np.float32(0.01) - np.float32(0.5)).reshape(6, 1, 5, 5)
    bias = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], np.float32)
    return dict(zip(NAMES, [weight, bias, weight, bias], strict=True))


# The golden file


def test_the_golden_file_holds_what_was_saved() -> None:
    with standfast.open(FIRST, names=NAMES) as file:
        assert (file.format, list(file), file.metadata) == ("tenzor", NAMES, METADATA)
        assert not file.has_digests
        for name, expected in golden_tensors().items():
            assert same_bytes(file[name], expected)


def test_the_golden_file_without_names_shows_hashes() -> None:
    with standfast.open(FIRST) as file:
        assert list(file) == [f"{value:#018x}" for value in HASHES]
    assert [tenzor.hash_name(name) for name in NAMES] == HASHES


def test_the_golden_file_is_saved_again_byte_for_byte(tmp_path: Path) -> None:
    text = checkpoint_metadata(**METADATA)  # type: ignore[arg-type]
    standfast.save(tmp_path / "again.tenzor", golden_tensors(), text, extras=False)
    assert (tmp_path / "again.tenzor").read_bytes() == FIRST.read_bytes()


# Written and read back


def test_the_original_reads_a_file_with_extras(tmp_path: Path) -> None:
    standfast.convert(FIRST, tmp_path / "full.tenzor", names=NAMES)
    data = (tmp_path / "full.tenzor").read_bytes()
    for name, expected in golden_tensors().items():
        found = lookup(data, name)
        assert found is not None
        assert same_bytes(found, expected)
    assert lookup(data, "conv2_weight") is None
    assert metadata_text(data).endswith(metadata_text(FIRST.read_bytes())[1:])


@settings(deadline=None)
@given(st.dictionaries(names, arrays(list(tenzor.CODES)), max_size=4), metadata, st.booleans())
def test_tensors_come_back_as_they_were_saved(
    tensors: dict[str, Array], metadata: dict[str, Any], extras: bool
) -> None:
    data = saved(tensors, metadata, extras=extras)
    file = opened(data, names=None if extras else list(tensors))
    order = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    assert (list(file), file.metadata) == (order, metadata)
    assert file.has_digests is extras
    for name, array in tensors.items():
        found = lookup(data, name)
        assert found is not None
        assert same_bytes(file[name], array)
        assert same_bytes(found, array)
        assert file[name].flags.aligned
    assert saved(dict(file), file.metadata, extras=extras) == data


@pytest.mark.parametrize("code", range(12), ids=lambda code: tenzor.CODES[code])
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 3), (1, 2, 3, 1, 2)], ids=str)
def test_each_dtype_has_its_code(code: int, shape: tuple[int, ...]) -> None:
    array = np.arange(np.prod(shape, dtype=int)).astype(CODES[code]).reshape(shape)
    data = saved({"x": array}, extras=False)
    assert data[72 + 8 : 72 + 10] == bytes([code, len(shape)])
    assert data[72 + 12 : 72 + 32] == np.array([*shape, *[0] * (5 - len(shape))], "<u4").tobytes()
    assert len(data) == 4096 + array.nbytes
    assert same_bytes(opened(data, names=["x"])["x"], array)


def test_our_members_have_the_bytes_of_their_page() -> None:
    expected = file_of(own_text(of=chunks(b"x"), more=',"step":3'))
    assert saved({"a": np.frombuffer(b"x", np.uint8)}, {"step": 3}) == reseal(expected)


def test_no_tensors_end_at_the_data_section() -> None:
    data = saved({}, extras=False)
    assert data == file_of(entries=[], data=b"")
    assert len(data) == 4096
    assert len(opened(saved({}))) == 0


@pytest.mark.parametrize("mapped", [True, False])
def test_tensors_after_an_odd_one_come_back_aligned(mapped: bool, tmp_path: Path) -> None:
    """Files of other writers, which keep their order, may have misaligned tensors."""
    tensors: dict[str, Array] = {
        "odd": np.arange(3, dtype=np.uint8),
        "float": np.arange(4, dtype=np.float64),
        "again": np.arange(5, dtype=np.int8),
        "half": np.arange(6, dtype=np.float16),
    }
    path = tmp_path / "odd.tenzor"
    path.write_bytes(as_given(tensors))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotVerified)
        loaded = standfast.load(path, mapped=mapped, names=list(tensors))
    with standfast.open(path, mapped=mapped, names=list(tensors)) as file:
        assert list(file) == list(tensors)
        for name, array in tensors.items():
            for found in (loaded[name], file[name], file.slice(name)[1:]):
                assert found.flags.aligned
            assert same_bytes(loaded[name], array)
            assert same_bytes(file.slice(name)[1:], array[1:])


def as_given(tensors: dict[str, Array]) -> bytes:
    """A file with the tensors in the order given, as the original writes it."""
    entries, data = [], b""
    for name, array in tensors.items():
        code, at = CODES.index(array.dtype.str[1:]), len(data)
        place = {"name_hash": fnv(name.encode()), "offset": at, "size": array.nbytes}
        entries.append(entry(dtype=code, shape=array.shape, **place))
        data += array.tobytes()
    return file_of("{}", entries, data)


def test_chunks_of_a_large_tensor_are_verified_each(tmp_path: Path) -> None:
    path = tmp_path / "large.tenzor"
    standfast.save(path, {"x": np.ones((16 << 20) + 7, np.uint8), "y": np.ones(2, np.uint8)})
    assert standfast.verify(path).nbytes == (16 << 20) + 9
    data = bytearray(path.read_bytes())
    data[-4] ^= 1
    path.write_bytes(data)
    with standfast.open(path) as file:
        assert file.slice("x")[:1000].all()
        assert file["y"].all()
        with pytest.raises(standfast.errors.DigestMismatch, match="'x'"):
            file.slice("x")[-1:]


# Alignment

WORST: list[str] = ["uint8", "int8", "float16", "bfloat16", "int16", "uint16"]
WORST += ["float32", "int32", "uint32", "float64", "int64", "uint64"]
"""Every dtype, the narrowest first: with odd counts of items, each misaligns the next."""


@pytest.mark.parametrize("extras", [True, False])
@pytest.mark.parametrize("order", [WORST, WORST[::-1], WORST[::2] + WORST[1::2]], ids=len)
def test_every_tensor_is_aligned_in_the_mapping(order: list[str], extras: bool) -> None:
    """`tenzor-checkpointing.md`: "Save and resume training state using the `.tenzor` format for
    fast mmap-based loading." The original maps the file, and panics at a misaligned tensor."""
    tensors = {
        f"{copy}/{dtype}": np.arange(3).astype(CODES[tenzor.CODES.index(dtype)])
        for copy in ("a", "b")
        for dtype in order
    }
    data = saved(tensors, {"epoch": 5}, extras=extras)
    index = index_of(data, names=list(tensors))
    widths = {name: array.itemsize for name, array in tensors.items()}
    assert [(name, start % widths[name]) for name, start in _starts(index)] == [
        (name, 0) for name in sorted(tensors, key=lambda name: -widths[name])
    ]
    file = opened(data, names=list(tensors))
    for name, array in tensors.items():
        assert same_bytes(file[name], array)


def _starts(index: Any) -> list[tuple[str, int]]:
    return [(name, int(index.starts[row])) for name, row in index.rows.items()]


def test_chunk_digests_follow_their_tensors(tmp_path: Path) -> None:
    large = np.ones((16 << 20) + 8, np.uint8)
    standfast.save(tmp_path / "a.tenzor", {"bytes": large, "wide": np.ones(2), "half": np.ones(1)})
    assert list(standfast.open(tmp_path / "a.tenzor")) == ["wide", "half", "bytes"]
    assert standfast.verify(tmp_path / "a.tenzor").tensors == 3


# Names


def bare(**tensors: Sequence[int]) -> bytes:
    return saved({name: np.array(value) for name, value in tensors.items()}, extras=False)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ["0xaf63dc4c8601ec8c", "0xaf63df4c8601f1a5"]),
        ([], ["0xaf63dc4c8601ec8c", "0xaf63df4c8601f1a5"]),
        (["b"], ["0xaf63dc4c8601ec8c", "b"]),
        (["b", "a"], ["a", "b"]),
        (["c", "b", "d", "a", "b", ""], ["a", "b"]),
        (["0xaf63dc4c8601ec8c", "b"], ["0xaf63dc4c8601ec8c", "b"]),
    ],
)
def test_names_are_found_by_their_hashes(given: list[str] | None, expected: list[str]) -> None:
    file = opened(bare(a=[1], b=[2]), names=given)
    assert list(file) == expected
    assert [int(file[name][0]) for name in expected] == [1, 2]


def test_names_in_the_file_need_no_others() -> None:
    data = saved({"a": np.ones(1), "": np.ones(1), "重み": np.ones(1)})
    assert list(opened(data, names=["unrelated"])) == ["a", "", "重み"]


def test_names_without_digests_are_read() -> None:
    assert list(opened(file_of('{"standfast.names":["a"],"x":1}'))) == ["a"]
    assert list(opened(file_of('{"x":1,"standfast.names":["a"]}'), names=["b"])) == ["a"]


@pytest.mark.parametrize("name", [3, b"a", None, "\ud800"])
def test_names_that_are_no_text_are_refused(name: Any) -> None:
    with pytest.raises(BadName):
        opened(bare(a=[1]), names=["a", name])


def test_a_name_that_is_the_hash_of_another_tensor_is_refused() -> None:
    name = f"{fnv(b'a'):#018x}"
    with pytest.raises(DuplicateName):
        saved({"a": np.ones(1), name: np.ones(1)}, extras=False)
    data = saved({"a": np.ones(1)}, extras=False)
    with pytest.raises(DuplicateName):
        opened(data, names=[name, "a"])


@pytest.mark.parametrize("extras", [True, False])
def test_a_file_without_names_keeps_its_hashes_when_it_is_written_again(
    extras: bool, tmp_path: Path
) -> None:
    state = {"conv1_weight": np.ones(2), "conv1_bias": np.zeros(3)}
    standfast.save(tmp_path / "a.tenzor", state, extras=False)
    standfast.convert(tmp_path / "a.tenzor", tmp_path / "b.safetensors")
    for source in ("a.tenzor", "b.safetensors"):
        standfast.convert(tmp_path / source, tmp_path / "c.tenzor", extras=extras, replace=True)
        with standfast.open(tmp_path / "c.tenzor") as file:
            assert list(file) == [f"{tenzor.hash_name(name):#018x}" for name in state]
    if not extras:
        assert (tmp_path / "c.tenzor").read_bytes() == (tmp_path / "a.tenzor").read_bytes()
        assert list(standfast.open(tmp_path / "c.tenzor", names=list(state))) == list(state)


def collide(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give names that are equal but for their case one hash."""
    honest = hash_names
    monkeypatch.setattr(tenzor, "hash_names", lambda names: honest([n.lower() for n in names]))


def test_two_names_of_one_hash_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    collide(monkeypatch)
    with pytest.raises(DuplicateName, match="'bias' and 'Bias': both names have the hash 0x"):
        saved({"weight": np.ones(1), "bias": np.ones(1), "Bias": np.ones(1)})


def test_two_given_names_of_one_hash_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bare(bias=[1])
    collide(monkeypatch)
    with pytest.raises(DuplicateName, match="'bias' and 'Bias': both have the hash 0x"):
        opened(data, names=["bias", "Bias"])


# What the format cannot hold


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - set(tenzor.CODES)))
def test_a_dtype_that_the_format_lacks_is_refused_by_name(dtype: str) -> None:
    specs = [("fine", TensorSpec("float32", (2,))), ("odd one", TensorSpec(dtype, (8,)))]
    with pytest.raises(UnsupportedDType, match="'odd one'"):
        tenzor.layout(specs, {}, extras=True)


def test_six_dimensions_are_refused_by_name_and_joined_on_demand() -> None:
    deep = np.arange(64, dtype=np.float32).reshape(2, 2, 2, 2, 2, 2)
    with pytest.raises(UnsupportedShape, match="'deep': 6 dimensions, but tenzor has at most 5"):
        saved({"fine": np.ones(1), "deep": deep})
    assert same_bytes(opened(saved({"deep": deep}, cast=True))["deep"], deep.reshape(4, 2, 2, 2, 2))


def test_a_dimension_over_32_bits_is_refused_by_name() -> None:
    with pytest.raises(UnsupportedShape, match=r"'huge': .*4294967296.* over 2\^32-1"):
        tenzor.layout([("huge", TensorSpec("uint8", (0, 2**32)))], {}, extras=True)
    layout = tenzor.layout([("large", TensorSpec("uint8", (2**32 - 1,)))], {}, extras=False)
    assert layout.size == 4096 + 2**32 - 1


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        ([("n" * 65_536, np.ones(1))], BadName),
        ([("a", np.ones(1)), ("a", np.ones(1))], DuplicateName),
        ([("\ud800", np.ones(1))], BadName),
    ],
)
def test_names_that_cannot_be_written_are_refused(
    tensors: list[tuple[str, Array]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        saved(tensors)


def test_the_longest_name_is_written_and_read() -> None:
    name = "é" * 32_767 + "n"
    assert list(opened(saved({name: np.ones(1)}))) == [name]


def test_metadata_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tenzor, "MAX_METADATA", 1000)
    with pytest.raises(RefusedMetadata):
        saved({"a": np.ones(1)}, {"text": "x" * 1000})


# Many
