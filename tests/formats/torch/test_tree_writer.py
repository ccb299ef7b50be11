"""A tree written as a torch pickle is what torch reads as the same tree, and our reader too."""

from __future__ import annotations

import io
import math
import struct
from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import pytest
from torch._weights_only_unpickler import Unpickler

from standfast.errors import RefusedState
from standfast.formats.torch.pickle import read_pickle
from standfast.formats.torch.tree_writer import TreeTensor, write_tree
from standfast.formats.torch.values import StoredTensor
from tests.kit.stores import same

TREES = {
    "scalars": [None, True, False, 0, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -(2**31)],
    "long integers": [-(2**31) - 1, 2**63, -(2**63), 2**2030, -(2**2030)],
    "floats": [0.0, -0.0, 1e-300, math.inf, -math.inf, 5e-324],
    "complex": [1 + 2j, complex(-0.0, math.inf)],
    "text": ["", "é", "😀", "\0\n", "a" * 300],
    "bytes": [b"", b"\0\xff", bytes(range(256))],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((),)],
    "empty containers": [{}, [], OrderedDict(), Counter()],
    "keys": {1: "a", "1": "b", 2.5: "c", None: "d", False: "e"},
    "nested": {"a": [{"b": (OrderedDict(x=[1]), Counter(y=2))}]},
}


def torch_reads(pickle: bytes) -> Any:
    return Unpickler(io.BytesIO(pickle)).load()


@pytest.mark.parametrize("name", TREES)
def test_torch_reads_the_same_tree_and_our_reader_an_equal_one(name: str) -> None:
    assert same(torch_reads(write_tree(TREES[name], [])), TREES[name])
    assert read_pickle(write_tree(TREES[name], [])) == TREES[name]


def test_every_bit_of_a_nan_is_kept() -> None:
    nan = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    assert struct.pack(">d", torch_reads(write_tree(nan, []))).hex() == "fff8000000000123"


def test_the_versions_of_a_state_dict_are_kept() -> None:
    tree: OrderedDict[str, Any] = OrderedDict(weight=1)
    tree._metadata = OrderedDict({"": {"version": 2}})  # type: ignore[attr-defined]
    for read in (torch_reads, read_pickle):
        back = read(write_tree({"model": tree}, []))["model"]
        assert back == tree
        assert back._metadata == OrderedDict({"": {"version": 2}})


def test_what_cannot_be_read_is_refused() -> None:
    for value in (np.float32(1), np.datetime64("2026-01-01"), {1, 2}, 2**2100, "\ud800"):
        with pytest.raises(RefusedState):
            write_tree({"a": [{"b": value}]}, [])
    with pytest.raises(RefusedState):
        write_tree({2**64: 1}, [])


def _tensor(**fields: Any) -> TreeTensor:
    stored = {"storage": "0", "storage_bytes": 16, "dtype": "float32", "offset": 0, "shape": (4,)}
    return TreeTensor(StoredTensor(**{**stored, "strides": (4,), **fields}))


def test_a_tensor_that_torch_has_not_is_refused() -> None:
    backwards = {"offset": 12, "strides": (-4,)}
    between_elements = {"offset": 2, "shape": (2,)}
    for fields in ({"dtype": "float6_e2m3fn"}, backwards, between_elements):
        tensor = _tensor(**fields)
        with pytest.raises(RefusedState):
            write_tree({"x": tensor}, [tensor])
    in_metadata: OrderedDict[str, Any] = OrderedDict()
    in_metadata._metadata = {"a": _tensor()}  # type: ignore[attr-defined]
    with pytest.raises(RefusedState):
        write_tree({"m": in_metadata}, [_tensor()])


def test_a_view_is_read_as_it_was_written() -> None:
    whole = _tensor()
    every_other = _tensor(offset=4, shape=(2,), strides=(8,))
    back = read_pickle(write_tree([whole, every_other], [whole, every_other]))
    assert back == [whole.stored, every_other.stored]
