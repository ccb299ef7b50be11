"""The reference library reads what we write, and we read what it writes, with equal bytes."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import NotVerified
from standfast.formats.safetensors.file import CODE_OF
from standfast.tensors import DTYPES
from tests.formats.builders import chunks
from tests.formats.safetensors.builders import (
    entry,
    file_of,
    holding,
    member,
    objects,
    one_tensor,
    saved_file,
    sealed_file,
    small_tensors,
    strings_file,
    tensor,
    typed_file,
    with_metadata,
)
from tests.kit.strategies import arrays, names, packed


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library")


@given(st.dictionaries(names, arrays() | packed(), max_size=6))
@settings(max_examples=60, deadline=None)
def test_the_library_reads_what_we_write(folder, tensors):
    path = folder / "ours.safetensors"
    standfast.save(path, tensors, {"step": 1})
    theirs = dict(safetensors.deserialize(path.read_bytes()))
    with standfast.open(path) as file:
        assert theirs.keys() == tensors.keys()
        for name, view in theirs.items():
            spec = file.spec(name)
            assert view["dtype"] == CODE_OF[spec.dtype]
            assert tuple(view["shape"]) == spec.shape
            assert bytes(view["data"]) == file[name].tobytes()


def test_we_read_what_the_library_writes(tmp_path):
    path = tmp_path / "theirs.safetensors"
    tensors = {"odd": torch.ones(3, dtype=torch.uint8)}
    for name in CODE_OF:
        if name == "float4_e2m1fn":
            bits = torch.arange(24, dtype=torch.uint8).reshape(4, 6)
            tensors[name] = bits.view(torch.float4_e2m1fn_x2)
        elif hasattr(torch, name):
            numbers = torch.arange(24) % (2 if name == "bool" else 24)
            tensors[name] = numbers.reshape(4, 6).to(getattr(torch, name))
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    with pytest.warns(NotVerified):
        loaded = standfast.load(path, framework="torch")
    assert standfast.open(path).metadata == {"format": "pt"}
    assert loaded.keys() == tensors.keys()
    for name, each in tensors.items():
        assert (loaded[name].dtype, loaded[name].shape) == (each.dtype, each.shape)
        assert torch.equal(loaded[name].view(torch.uint8), each.view(torch.uint8))


def test_all_dtypes_of_the_library_are_known():
    with pytest.raises(safetensors.SafetensorError) as refused:
        safetensors.deserialize(one_tensor(dtype='"?"'))
    listed = str(refused.value).partition("expected one of ")[2]
    codes = {word.strip(" `").split("`")[0] for word in listed.split(",")}
    assert codes == set(CODE_OF.values())


def test_our_tensors_start_on_a_page_and_each_is_aligned(tmp_path):
    kinds = [kind.numpy for name, kind in DTYPES.items() if name in CODE_OF and not kind.packed]
    tensors = {str(i): np.zeros(3, kind) for i, kind in enumerate(2 * kinds)}
    standfast.save(tmp_path / "state.safetensors", tensors)
    with standfast.open(tmp_path / "state.safetensors") as file:
        assert min(file[name].ctypes.data for name in file) % 4096 == 0
        assert all(file[name].ctypes.data % tensors[name].itemsize == 0 for name in file)


def test_transformers_would_take_our_files(tmp_path):
    """It asks for a framework wherever there is metadata; users never see ours."""
    for metadata, format in (({}, "pt"), ({"step": 1}, "pt"), ({"format": "mlx"}, "mlx")):
        standfast.save(tmp_path / "a.safetensors", {"w": np.ones(2)}, metadata)
        with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
            assert file.metadata()["format"] == format
        assert standfast.open(tmp_path / "a.safetensors").metadata == metadata
    standfast.save(tmp_path / "a.safetensors", {"w": np.ones(2)}, extras=False)
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert file.metadata() is None


@dataclass(frozen=True)
class Tensor:
    """What a file should hold: the format's name of the dtype, the shape and the bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


BYTE = Tensor("U8", (1,), b"x")


@dataclass(frozen=True)
class Legal:
    """A legal file, and what it holds."""

    name: str
    data: bytes
    tensors: Mapping[str, Tensor] = field(default_factory=lambda: {"a": BYTE})
    metadata: Mapping[str, Any] = field(default_factory=dict)


METADATA = member("__metadata__", '{"key":"value"}')
TENSOR = tensor()
FOUR_FLOATS = np.arange(4, dtype="<f8").tobytes()


def _floats(padding: int) -> Legal:
    """A file whose data starts at some offset that is not aligned."""
    file = file_of(objects(tensor("a", '"F64"', "[2,2]", "[0,32]")) + " " * padding, FOUR_FLOATS)
    return Legal(f"{padding} spaces of padding", file, {"a": Tensor("F64", (2, 2), FOUR_FLOATS)})


def _string(name: str, written: str) -> Legal:
    """A file with a metadata string that is written so."""
    value = json.loads(f'"{written}"')
    return Legal(name, with_metadata(f'{{"key":"{written}"}}'), metadata={"key": value})


def _by_dtype(dtype: str, bits: int) -> Legal:
    """Eight elements, which fill whole bytes in any dtype."""
    file = holding(tensor("a", f'"{dtype}"', "[2,4]", f"[0,{bits}]"), data=bytes(bits))
    return Legal(f"dtype {dtype}", file, {"a": Tensor(dtype, (2, 4), bytes(bits))})


NAMES = [
    *r"""\" \"dtype\" a\nb a\u0000b 😀 \ud83d\ude00 \u0061 a\/b \\ \\u0061""".split(),
    *("", "../../etc/passwd", "data_offsets", "__METADATA__", "standfast.digest", "n" * 65_535),
    *("\x7f", "e\u0301"),
]
"""As they are written in JSON."""

DTYPES_BY_BITS = {
    8: "BOOL U8 I8 F8_E4M3 F8_E4M3FNUZ F8_E5M2 F8_E5M2FNUZ F8_E8M0",
    16: "U16 I16 F16 BF16",
    32: "U32 I32 F32",
    64: "U64 I64 F64 C64",
    6: "F6_E2M3 F6_E3M2",
    4: "F4",
}

EMPTY = Tensor("F32", (0,), b"")
TWO = {"a": BYTE, "b": Tensor("U8", (1,), b"y")}


def _at(name: str, begin: int, end: int) -> str:
    dtype, shape = ('"F32"', "[0]") if begin == end else ('"U8"', f"[{end - begin}]")
    return tensor(name, dtype, shape, f"[{begin},{end}]")


KEY = {"key": "value"}
LIKE_TENSORS = {"dtype": entry(), "shape": "}{", "data_offsets": '"'}
ESCAPED = METADATA.replace("m", "\\u006d", 1)
SPACED = TENSOR.replace(",", "\t,\n")
NESTED = "[" * 50 + "]" * 50

LEGAL: tuple[Legal, ...] = (
    Legal("no tensors", file_of("{}"), {}),
    Legal("no tensors, padded", file_of("{}".ljust(100)), {}),
    Legal("no tensors, but metadata", holding(METADATA, data=b""), {}, KEY),
    Legal("metadata first", holding(METADATA, TENSOR), metadata=KEY),
    Legal("metadata last", holding(TENSOR, METADATA), metadata=KEY),
    Legal("metadata between", holding(TENSOR, METADATA, _at("b", 1, 2), data=b"xy"), TWO, KEY),
    Legal("metadata empty", with_metadata("{}")),
    Legal("metadata with a tensor's name as a key", strings_file({"a": "b"}), metadata={"a": "b"}),
    Legal("metadata called in escapes", holding(ESCAPED, TENSOR), metadata=KEY),
    Legal("metadata like tensors", strings_file(LIKE_TENSORS), metadata=LIKE_TENSORS),
    Legal(
        "whitespace everywhere",
        file_of("{\n\t" + METADATA.replace(":", " :\r\n ") + " , " + SPACED + "\r}", b"x"),
        metadata=KEY,
    ),
    Legal("all kinds of padding", file_of(objects(TENSOR) + " \t\r\n" * 9, b"x")),
    Legal("100,000 spaces of padding", file_of(objects(TENSOR).ljust(100_000), b"x")),
    Legal("fields in any order", holding('"a":{"data_offsets":[0,1],"dtype":"U8","shape":[1]}')),
    Legal("fields in escapes", holding(TENSOR.replace("dtype", "d\\u0074ype"))),
    Legal(
        "tensors in another order than their bytes",
        holding(_at("a", 2, 4), _at("b", 0, 2), data=b"wxyz"),
        {"a": Tensor("U8", (2,), b"yz"), "b": Tensor("U8", (2,), b"wx")},
    ),
    Legal("scalar", one_tensor(shape="[]"), {"a": Tensor("U8", (), b"x")}),
    Legal("64 dimensions", one_tensor(shape=str([1] * 64)), {"a": Tensor("U8", (1,) * 64, b"x")}),
    Legal(
        "empty tensors at the start, between, and at the end",
        holding(
            *(_at("end", 2, 2), _at("a", 0, 1), _at("between", 1, 1)),
            *(_at("start", 0, 0), _at("b", 1, 2), _at("end too", 2, 2)),
            data=b"xy",
        ),
        {
            "end": EMPTY,
            "a": BYTE,
            "between": EMPTY,
            "start": EMPTY,
            "b": TWO["b"],
            "end too": EMPTY,
        },
    ),
    Legal(
        "empty tensor with a large dimension",
        holding(tensor("a", '"F64"', "[0,1000000000000]", "[0,0]"), data=b""),
        {"a": Tensor("F64", (0, 10**12), b"")},
    ),
    Legal(
        "empty packed tensor whose rows end inside a byte",
        holding(tensor("a", '"F4"', "[0,3]", "[0,0]"), data=b""),
        {"a": Tensor("F4", (0, 3), b"")},
    ),
    Legal(
        "packed tensor whose rows end inside a byte",
        holding(tensor("a", '"F4"', "[2,3]", "[0,3]"), data=b"xyz"),
        {"a": Tensor("F4", (2, 3), b"xyz")},
    ),
    *(
        Legal(f"name {i}", holding(tensor(name)), {json.loads(f'"{name}"'): BYTE})
        for i, name in enumerate(NAMES)
    ),
    *(_by_dtype(each, bits) for bits, dtypes in DTYPES_BY_BITS.items() for each in dtypes.split()),
    *(_floats(padding) for padding in range(8)),
    _string("string of 200 backslashes before a quote", "\\" * 200 + '\\"'),
    _string("string of 202 backslashes at its end", "\\" * 202),
    _string("string of 62 backslashes and a quote", "\\" * 62 + '\\"'),
    _string("string of 64 backslashes and a quote", "\\" * 64 + '\\"},\\"a'),
    _string("string of braces", "}}}{{{"),
    _string("string that ends the metadata in it", '\\"},\\"a\\":{'),
    _string("string of all escapes", '\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00'),
    Legal("typed value", typed_file('{"x": [1, 2.5]}'), metadata={"key": {"x": [1, 2.5]}}),
    Legal("typed value of 4,300 digits", typed_file("9" * 4300), metadata={"key": 10**4300 - 1}),
    Legal("nested typed value", typed_file(NESTED), metadata={"key": json.loads(NESTED)}),
    Legal("no typed value", typed_file("3", "[]"), metadata={"key": "3"}),
    Legal("own key of a later version", strings_file({"standfast.later": "?"})),
    Legal(
        "saved by Standfast",
        saved_file(small_tensors(), {"step": 3, "name": "run"}),
        {
            "weight": Tensor("F32", (2, 3), np.arange(6, dtype="<f4").tobytes()),
            "bias": Tensor("F16", (3,), np.arange(3, dtype="<f2").tobytes()),
            "empty": Tensor("F64", (0, 4), b""),
            "mask": Tensor("BOOL", (3,), b"\1\0\1"),
        },
        {"step": 3, "name": "run"},
    ),
    Legal("sealed, not padded", sealed_file(member("standfast.chunks", json.dumps(chunks(b"x"))))),
)


@pytest.mark.parametrize("legal", LEGAL, ids=lambda legal: legal.name)
def test_it_opens_and_holds_what_it_should(legal, tmp_path):
    path = tmp_path / "file.safetensors"
    path.write_bytes(legal.data)
    theirs = dict(safetensors.deserialize(legal.data))
    assert theirs.keys() == legal.tensors.keys()
    for mapped in (True, False):
        with standfast.open(path, mapped=mapped) as file:
            assert file.metadata == legal.metadata
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", NotVerified)
                loaded = standfast.load(path, mapped=mapped)
            assert list(file) == list(loaded) == list(legal.tensors)
            for name, tensor in legal.tensors.items():
                spec, view = file.spec(name), theirs[name]
                assert CODE_OF[spec.dtype] == view["dtype"] == tensor.dtype
                assert spec.shape == tuple(view["shape"]) == tensor.shape
                assert bytes(view["data"]) == tensor.data
                for array in (file[name], file.slice(name)[...], loaded[name]):
                    assert array.shape == spec.array_shape
                    assert array.tobytes() == tensor.data
                    assert array.flags.aligned
