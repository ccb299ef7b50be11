"""Canonical bytes: one way to write a value, and no two values that are written the same."""

import argparse
import collections
import functools
import pathlib
import struct
import types
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from standfast.identity.canonical import Canonical
from standfast.tensors import Packed, TensorSpec
from tests.identity.values import Adam, Colour, Level, Mode, Net, schedule


def decoded(data: bytes) -> Any:
    """The value of these canonical bytes, lists for tuples; all bytes must be used."""
    value, end = _value(data, 0)
    assert end == len(data)
    return value


def typed(value: Any) -> Any:
    """A value in which 1, 1.0 and True are not equal, and a NaN is equal to itself."""
    if isinstance(value, list | tuple):
        return "list", tuple(typed(item) for item in value)
    if isinstance(value, set | frozenset):
        return "set", frozenset(typed(item) for item in value)
    if isinstance(value, dict):
        return "dict", frozenset((typed(key), typed(item)) for key, item in value.items())
    if isinstance(value, float):
        return "float", "nan" if value != value else struct.pack(">d", value)
    if isinstance(value, complex):
        return "complex", typed(value.real), typed(value.imag)
    return type(value).__name__, value


def _value(data: bytes, at: int) -> tuple[Any, int]:
    kind = data[at : at + 1]
    at += 1
    if kind in b"ntf":
        return {b"n": None, b"t": True, b"f": False}[kind], at
    if kind == b"d":
        return struct.unpack_from(">d", data, at)[0], at + 8
    if kind == b"c":
        return complex(*struct.unpack_from(">dd", data, at)), at + 16
    colon = data.index(b":", at)
    count = int(data[at:colon])
    at = colon + 1
    if kind in b"isb":
        payload = data[at : at + count]
        assert len(payload) == count
        return _LENGTHS[kind](payload), at + count
    items = []
    for _ in range(count * (2 if kind == b"m" else 1)):
        item, at = _value(data, at)
        items.append(item)
    if kind == b"l":
        return items, at
    if kind == b"u":
        return frozenset(map(_hashable, items)), at
    return dict(zip(map(_hashable, items[::2]), items[1::2], strict=True)), at


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


_LENGTHS: dict[bytes, Any] = {
    b"i": lambda payload: int(payload, 16),
    b"s": lambda payload: payload.decode("utf-8", "surrogatepass"),
    b"b": bytes,
}


MODULE = b"tests.identity.values"


def canonical(value: Any) -> bytes:
    return Canonical("hp").encode(value)


BYTES = {
    "none": (None, b"n"),
    "true": (True, b"t"),
    "false": (False, b"f"),
    "zero": (0, b"i1:0"),
    "integer": (255, b"i2:ff"),
    "negative": (-255, b"i3:-ff"),
    "huge": (1 << 100, b"i26:1" + b"0" * 25),
    "float": (1.0, b"d\x3f\xf0\0\0\0\0\0\0"),
    "negative zero": (-0.0, b"d\x80\0\0\0\0\0\0\0"),
    "nan": (float("nan"), b"d\x7f\xf8\0\0\0\0\0\0"),
    "negative nan": (-float("nan"), b"d\x7f\xf8\0\0\0\0\0\0"),
    "infinite": (float("-inf"), b"d\xff\xf0\0\0\0\0\0\0"),
    "complex": (1j, b"c\0\0\0\0\0\0\0\0\x3f\xf0\0\0\0\0\0\0"),
    "text": ("lr", b"s2:lr"),
    "umlaut": ("ä", b"s2:\xc3\xa4"),
    "surrogate": ("\udcff", b"s3:\xed\xb3\xbf"),
    "bytes": (b"\0\xff", b"b2:\0\xff"),
    "bytearray": (bytearray(b"a"), b"b1:a"),
    "list": ([1, "a"], b"l2:i1:1s1:a"),
    "tuple": ((1, "a"), b"l2:i1:1s1:a"),
    "set": ({"b", "aa", "a"}, b"u3:s1:as1:bs2:aa"),
    "frozenset": (frozenset([1]), b"u1:i1:1"),
    "dict": ({"lr": 1, "b": [], 3: None}, b"m3:i1:3ns1:bl0:s2:lri1:1"),
    "namespace": (types.SimpleNamespace(a=1), b"m1:s1:ai1:1"),
    "arguments": (argparse.Namespace(a=1), b"m1:s1:ai1:1"),
    "ordered dict": (collections.OrderedDict(a=1), b"m1:s1:ai1:1"),
    "view of a dict": (types.MappingProxyType({"a": 1}), b"m1:s1:ai1:1"),
    "deque": (collections.deque([1]), b"l1:i1:1"),
    "dataclass": (Adam(), b"os26:" + MODULE + b":Adamm1:s2:lrd\x3f\xb9" + b"\x99" * 5 + b"\x9a"),
    "member": (Colour.RED, b"es28:" + MODULE + b":Colours3:RED"),
    "integer member": (Level.LOW, b"es27:" + MODULE + b":Levels3:LOW"),
    "flags": (Mode.READ | Mode.WRITE, b"es26:" + MODULE + b":Modei1:3"),
    "path": (pathlib.PurePosixPath("a/b"), b"s3:a/b"),
    "path of another system": (pathlib.PureWindowsPath(r"a\b"), b"s3:a/b"),
    "class": (Net, b"qs25:" + MODULE + b":Net"),
    "function": (schedule, b"qs30:" + MODULE + b":schedule"),
    "method": (Net.forward, b"qs33:" + MODULE + b":Net.forward"),
    "built-in function": (len, b"qs12:builtins:len"),
    "torch function": (torch.relu, b"qs10:torch:relu"),
    "partial": (
        functools.partial(schedule, 1, rate=2),
        b"pqs30:" + MODULE + b":schedulel1:i1:1m1:s4:ratei1:2",
    ),
    "array": (
        np.array([[1, 2]], np.uint8),
        b"as5:uint8l2:i1:1i1:2" + blake3(b"\1\2").digest(),
    ),
    "tensor": (torch.tensor([1.0]), b"as7:float32l1:i1:1" + blake3(b"\0\0\x80\x3f").digest()),
    "packed": (
        Packed(np.array([7], np.uint8), "float4_e2m1fn", (2,)),
        b"as13:float4_e2m1fnl1:i1:2" + blake3(b"\7").digest(),
    ),
    "spec": (TensorSpec("float32", (16, 2)), b"ks7:float32l2:i2:10i1:2"),
    "NumPy dtype": (np.dtype("float32"), b"s7:float32"),
    "torch dtype": (torch.bfloat16, b"s14:torch.bfloat16"),
    "torch device": (torch.device("cuda:1"), b"s6:cuda:1"),
}


@pytest.mark.parametrize(("value", "expected"), BYTES.values(), ids=BYTES)
def test_every_kind_has_the_bytes_that_the_documentation_gives(value, expected):
    assert canonical(value) == expected
    assert canonical([value, value]) == b"l2:" + expected * 2


hashable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-3, 300)
    | st.integers()
    | st.floats()
    | st.complex_numbers()
    | st.text(st.characters(codec=None), max_size=4)
    | st.text("as12:", max_size=4)
    | st.binary(max_size=4),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=4,
)


def _has_one_nan_at_most(value: Any) -> bool:
    """Two NaNs are two keys in Python, and refused since they look the same."""
    return repr(value).count("nan") < 2


values = st.recursive(
    hashable,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
    ),
    max_leaves=8,
).filter(_has_one_nan_at_most)


@given(values)
def test_canonical_bytes_can_be_read_in_one_way_only(value):
    assert typed(decoded(canonical(value))) == typed(value)


@given(st.dictionaries(st.text(max_size=3), values, max_size=5), st.randoms())
def test_the_order_of_keys_never_matters(value, random):
    keys = list(value)
    random.shuffle(keys)
    assert canonical({key: value[key] for key in keys}) == canonical(value)


@given(st.lists(st.integers(0, 5), min_size=2, max_size=5), st.randoms())
def test_the_order_of_lists_matters_and_that_of_sets_does_not(items, random):
    shuffled = random.sample(items, len(items))
    assert (canonical(shuffled) == canonical(items)) == (shuffled == items)
    assert canonical(set(shuffled)) == canonical(set(items))


def test_values_that_python_takes_for_equal_differ():
    for group in ([1, 1.0, True, "1", b"1", 1 + 0j], [0, 0.0, -0.0, False, None, "", [], {}]):
        assert len(set(map(canonical, group))) == len(group)


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(-7), -7),
        (np.uint8(7), 7),
        (np.bool_(True), True),
        (np.complex64(1j), 1j),
        (np.str_("a"), "a"),
        (ml_dtypes.bfloat16(1.5), 1.5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numpy_scalars_are_the_numbers_they_equal(value, number):
    assert canonical(value) == canonical(number)


def test_arrays_differ_by_dtype_shape_and_values_and_not_by_strides_or_byte_order():
    array = np.arange(6, dtype=np.int32).reshape(2, 3)
    others = [array.astype(np.int64), array.reshape(3, 2), array + 1, array.tolist()]
    assert len({canonical(value) for value in [array, *others]}) == 5
    assert canonical(array) == canonical(np.asfortranarray(array))
    assert canonical(array) == canonical(array.astype(">i4"))
    assert canonical(array) == canonical(torch.from_numpy(array.copy()))
    large = np.arange(1 << 20).reshape(1 << 10, 1 << 10)
    assert canonical(large.T) == canonical(np.ascontiguousarray(large.T)) != canonical(large)
