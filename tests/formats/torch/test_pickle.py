"""The pickle in torch's files: we read what torch writes, and torch reads what we write."""

import argparse
import enum
import io
import math
import re
import struct
import zipfile
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._weights_only_unpickler import Unpickler

from standfast import errors
from standfast.formats.torch.pickle import StoredTensor, Stub, read_pickle
from standfast.formats.torch.pickle_writer import write_pickle
from standfast.formats.torch.tree_writer import TreeTensor, write_tree
from standfast.formats.torch.values import STORAGE_OF, TORCH_DTYPES
from standfast.tensors import DTYPES, TensorSpec
from tests.kit import stores

DTYPE_OF = {
    ours: getattr(torch, name.removeprefix("torch.")) for name, ours in TORCH_DTYPES.items()
}
PROTOCOLS = [2, 3, 4, 5]


def archive_of(value: Any, protocol: int = 2) -> dict[str, bytes]:
    """The entries of what torch saves, without the name of the archive."""
    buffer = io.BytesIO()
    torch.save(value, buffer, pickle_protocol=protocol)
    with zipfile.ZipFile(buffer) as file:
        return {name.partition("/")[2]: file.read(name) for name in file.namelist()}


def pickle_in(value: Any, protocol: int = 2) -> bytes:
    return archive_of(value, protocol)["data.pkl"]


def rebuilt(value: Any, entries: Mapping[str, bytes]) -> Any:
    """A tree of ours with torch's tensors in it."""
    if isinstance(value, StoredTensor):
        return rebuilt_tensor(value, entries[f"data/{value.storage}"])
    if isinstance(value, dict):
        return type(value)((key, rebuilt(inner, entries)) for key, inner in value.items())
    if isinstance(value, list | tuple):
        return type(value)(rebuilt(inner, entries) for inner in value)
    return value


def rebuilt_tensor(stored: StoredTensor, storage: bytes) -> torch.Tensor:
    assert len(storage) == stored.storage_bytes
    spec = TensorSpec(stored.dtype, stored.shape)
    array: Any = np.ndarray(
        spec.array_shape, f"V{spec.kind.numpy.itemsize}", storage, stored.offset, stored.strides
    )
    flat = torch.frombuffer(bytearray(array.tobytes() or b"\0" * 16), dtype=torch.uint8)
    return flat[: array.nbytes].view(DTYPE_OF[stored.dtype]).reshape(spec.array_shape)


def same(a: Any, b: Any) -> bool:
    """Equal in types, order, and every bit of every tensor."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and (a.dtype, a.shape, raw(a)) == (
            *(b.dtype, b.shape, raw(b)),
        )
    if isinstance(a, dict):
        return type(a) is type(b) and same([*a.items()], [*b.items()])
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, complex):
        return type(a) is type(b) and same([a.real, a.imag], [b.real, b.imag])
    return stores.same(a, b)


def raw(tensor: torch.Tensor) -> bytes:
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def bits(dtype: str, *shape: int) -> torch.Tensor:
    """A tensor of random bits; of float4 the shape counts pairs."""
    width = DTYPE_OF[dtype].itemsize
    generator = torch.Generator().manual_seed(math.prod(shape))
    high = 2 if dtype == "bool" else 256
    flat = torch.randint(0, high, (math.prod(shape) * width,), generator=generator)
    return flat.to(torch.uint8).view(DTYPE_OF[dtype]).reshape(shape)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("dtype", DTYPE_OF)
def test_tensors_of_every_dtype_are_read(dtype, protocol):
    tensors = {"matrix": bits(dtype, 3, 4), "vector": bits(dtype, 5), "empty": bits(dtype, 2, 0)}
    entries = archive_of(tensors, protocol)
    tree = read_pickle(entries["data.pkl"])
    assert same(rebuilt(tree, entries), tensors)
    assert {stored.dtype for stored in tree.values()} == {dtype}


def test_float4_has_a_shape_of_elements():
    pairs = bits("float4_e2m1fn", 3, 4)
    assert read_pickle(pickle_in(pairs)) == StoredTensor(
        "0", 12, "float4_e2m1fn", 0, (3, 8), (4, 1)
    )
    with pytest.raises(errors.RefusedPickle):
        read_pickle(pickle_in(pairs[0, 0]))


BASE = torch.arange(60, dtype=torch.float32).reshape(3, 4, 5)
VIEWS = {
    "whole": BASE,
    "slice": BASE[1:, 2],
    "steps": BASE[::2, ::3, ::2],
    "transposed": BASE.permute(2, 0, 1),
    "diagonal": BASE.diagonal(),
    "expanded": BASE[:1].expand(7, 4, 5),
    "overlapping": BASE.reshape(-1).unfold(0, 5, 2),
    "scalar": BASE[2, 3, 4],
    "empty": BASE[3:],
    "empty inside": BASE[:, 2:2],
    "channels last": BASE.reshape(1, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "none of one": torch.zeros(0),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_read_as_they_lie(name):
    entries = archive_of(VIEWS[name])
    stored = read_pickle(entries["data.pkl"])
    assert same(rebuilt(stored, entries), VIEWS[name])
    assert stored.strides == tuple(4 * step for step in VIEWS[name].stride())
    assert stored.offset == (4 * VIEWS[name].storage_offset() if VIEWS[name].numel() else 0)


def with_attribute(tensor: torch.Tensor) -> torch.Tensor:
    tensor.note = "kept by torch"  # type: ignore[attr-defined]
    return tensor


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_parameters_and_tensors_with_attributes_are_their_tensors(protocol):
    values = {
        "parameter": torch.nn.Parameter(torch.ones(2, 3)),
        "frozen": torch.nn.Parameter(torch.ones(2, 3), requires_grad=False),
        "noted parameter": with_attribute(torch.nn.Parameter(torch.ones(2, 3))),
        "noted": with_attribute(torch.ones(2, 3)),
        "buffer": torch.nn.Buffer(torch.ones(2, 3)),
        "needs a gradient": torch.ones(2, 3, requires_grad=True),
    }
    tree = read_pickle(pickle_in(values, protocol))
    for i, name in enumerate(values):
        assert tree[name] == StoredTensor(str(i), 24, "float32", 0, (2, 3), (12, 4)), name


@pytest.mark.parametrize("rebuild", ["_rebuild_tensor", "_rebuild_tensor_v2"])
def test_older_forms_of_a_tensor_are_read(rebuild):
    data = pickle_in(torch.ones(2, 3))
    old = data.replace(b"_rebuild_tensor_v2", rebuild.encode())
    if rebuild == "_rebuild_tensor":
        old = re.sub(rb"\x89ccollections\nOrderedDict\nq.\)Rq.", b"", old, flags=re.DOTALL)
    # Torch 1.6 and older give a storage a sixth part, that it is no view.
    for form in (old, old.replace(b"K\x06tq", b"K\x06Ntq")):
        assert read_pickle(form) == StoredTensor("0", 24, "float32", 0, (2, 3), (12, 4))


def test_one_storage_may_be_typed_and_untyped():
    floats, untyped = pickle_in(torch.ones(2)), pickle_in(torch.ones(4, dtype=torch.uint16))
    both = b"\x80\x02](" + floats[2:-1] + untyped[2:-1] + b"e."
    assert [stored.dtype for stored in read_pickle(both)] == ["float32", "uint16"]


VALUES: dict[str, Any] = {
    "plain": [None, True, False, "", "ä😀\0", b"", b"\0\xff", bytearray(b"ab"), bytearray()],
    "long": ["x" * 300, b"x" * 300, "ä" * 70_000, b"\xff" * 70_000, bytearray(b"\xff" * 70_000)],
    "integers": [s * (2**n + d) for n in range(0, 2100, 7) for d in (-1, 0, 1) for s in (1, -1)],
    "floats": [0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, 5e-324, 1 / 3],
    "complex": [1 + 2j, complex(math.nan, -0.0)],
    "containers": [[], (), {}, [[[]]], ((1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)), {"a": {"b": [1]}}],
    "keys": {1: "a", -1: "b", 2.5: "c", None: "d", b"x": "e", (1, "a", (2, 3)): "f", False: "g"},
    "sets": [{1, "a", (1, 2)}, set(), frozenset([1, None]), frozenset()],
    "ordered": OrderedDict([("b", 1), ("a", OrderedDict())]),
    "wide": [list(range(3000)), {str(i): i for i in range(3000)}, tuple(range(3000))],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", VALUES)
def test_values_of_python_are_read(name, protocol):
    assert same(read_pickle(pickle_in(VALUES[name], protocol)), VALUES[name])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_values_of_torch_become_plain_ones(protocol):
    plain_of = {
        torch.Size([2, 3]): (2, 3),
        torch.float32: "torch.float32",
        torch.qint8: "torch.qint8",
        torch.strided: "torch.strided",
        torch.device("cuda:1"): "cuda:1",
        torch.device("cpu"): "cpu",
    }
    values = [*plain_of, defaultdict(list, {"a": 1}), defaultdict(int), Counter("aab")]
    plain = [*plain_of.values(), {"a": 1}, {}, {"a": 2, "b": 1}]
    tree = read_pickle(pickle_in(values, protocol))
    assert same(tree, plain)


ARRAYS = {
    "random state": np.random.RandomState(3).get_state()[1],
    "scalar array": np.array(2.5),
    "Fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "big-endian": np.arange(3, dtype=">i4"),
    "bool": np.array([True, False]),
    "half": np.arange(3, dtype=np.float16),
    "complex": np.array([1 + 2j]),
    "empty": np.zeros((0, 3)),
    "text": np.array(["ab", "ä"]),
    "bytes": np.array([b"ab", b"c"]),
    "strided": np.arange(10)[::3],
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_numpy_are_read(name, protocol):
    array = ARRAYS[name]
    one, two = read_pickle(pickle_in([array, array], protocol))
    assert one is two
    # NumPy itself turns big-endian elements around, except those of protocol 5.
    assert one.dtype.newbyteorder("=") == array.dtype.newbyteorder("=")
    assert np.array_equal(one, array)
    assert one.flags.writeable


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_scalars_and_dtypes_of_numpy_are_read(protocol):
    scalars = [np.float64(1.5), np.float32(2), np.int64(-4), np.uint8(7), np.bool_(True)]
    scalars += [np.str_("ab"), np.str_(""), np.complex64(1j), np.dtype(">f4"), np.dtype("f8")]
    assert same(read_pickle(pickle_in(scalars, protocol)), scalars)
    assert read_pickle(pickle_in({np.int64(3): 1}, protocol)) == {3: 1}


def test_files_from_before_numpy_2_are_read():
    data = pickle_in([np.float64(1.5), np.arange(3)]).replace(b"numpy._core", b"numpy.core")
    scalar, array = read_pickle(data)
    assert (scalar, array.tolist()) == (1.5, [0, 1, 2])


plain_keys = st.text(max_size=5) | st.integers(-(2**63), 2**63) | st.booleans() | st.none()
tensors = st.builds(bits, st.sampled_from(list(DTYPE_OF)), st.integers(0, 3), st.integers(1, 3))
numbers = st.integers(-(2**100), 2**100) | st.floats() | st.complex_numbers()
trees = st.recursive(
    st.none() | st.booleans() | numbers | st.text(max_size=8) | st.binary(max_size=8) | tensors,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(plain_keys, inner, max_size=4)
        | st.dictionaries(plain_keys, inner, max_size=4).map(OrderedDict)
        | inner.map(lambda value: [value, value])
    ),
    max_leaves=12,
)


@given(trees, st.sampled_from(PROTOCOLS), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_tree_is_read(tree, protocol, tensors_only):
    entries = archive_of(tree, protocol)
    read = read_pickle(entries["data.pkl"], tensors_only=tensors_only)
    assert same(rebuilt(read, entries), tree)


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Settings:
    rate: float
    inner: Any = None


class Attributes(dict[str, Any]):
    pass


STRANGE = {
    "namespace": argparse.Namespace(rate=0.1, inner=argparse.Namespace()),
    "dataclass": Settings(0.1, [Settings(0.2)]),
    "enum": Color.RED,
    "dict of its own": Attributes(a=1, weight=torch.ones(1)),
    "exception": ValueError("x"),
    "function": math.prod,
    "range": range(3),
    "objects": np.array([None, "x"], object),
    "date": np.datetime64("2020-01-01"),
    "sparse": torch.eye(2).to_sparse(),
    "meta": torch.ones(2, device="meta"),
    "storage": torch.ones(2).untyped_storage(),
    "conjugated": torch.ones(2, dtype=torch.complex64).conj(),
    "set of it": {Color.RED},
}


@pytest.mark.parametrize("protocol", [2, 5])
@pytest.mark.parametrize("name", STRANGE)
def test_a_value_that_is_no_data_is_refused_or_left_out(name, protocol):
    data = pickle_in({"strange": STRANGE[name], "weight": torch.ones(2)}, protocol)
    with pytest.raises(errors.RefusedPickle):
        read_pickle(data)
    tree = read_pickle(data, tensors_only=True)
    assert tree["weight"].shape == (2,)
    (stub,) = tree["strange"] if name == "set of it" else [tree["strange"]]
    assert isinstance(stub, Stub)


def test_a_stub_says_what_it_stands_for():
    tree = read_pickle(pickle_in([STRANGE["namespace"], Color.RED]), tensors_only=True)
    assert tree == [Stub("argparse.Namespace"), Stub(f"{__name__}.Color")]
    stub = read_pickle(pickle_in(torch.nn.Linear(1, 1)), tensors_only=True)
    assert stub == Stub("torch.nn.modules.linear.Linear")


def test_items_under_keys_that_are_no_data_are_kept():
    values = {Color.RED: torch.ones(1), Color.BLUE: torch.ones(2), (Color.RED, 1): 3, "a": 4}
    tree = read_pickle(pickle_in(values), tensors_only=True)
    first, second, *others = tree.values()
    assert (first.shape, second.shape, others) == ((1,), (2,), [3, 4])
    assert list(tree)[:2] == [Stub(f"{__name__}.Color#1"), Stub(f"{__name__}.Color#2")]


def test_torch_reads_tensors_of_many_gigabytes():
    shape = (3, 1 << 40)
    data = write_pickle([("large", TensorSpec("bfloat16", shape))])
    stored = read_pickle(data)["large"]
    assert (stored.shape, stored.strides, stored.storage_bytes) == (shape, (1 << 41, 2), 6 << 40)


def test_each_dtype_is_written_as_torch_writes_it():
    for dtype in DTYPE_OF:
        ours = write_pickle([("x", TensorSpec(dtype, (2,)))])
        theirs = pickle_in({"x": bits(dtype, 2)})
        names = rb"c([\w.]+\n\w+)\n"
        assert re.findall(names, ours) == re.findall(names, theirs)
        assert (b"_rebuild_tensor_v2" in ours) == (dtype in STORAGE_OF)


def test_what_torch_cannot_hold_is_not_written():
    floats = TensorSpec("float32", ())
    cases: list[tuple[type[Exception], list[tuple[str, TensorSpec]]]] = [
        *(
            (errors.UnsupportedDType, [("x", TensorSpec(dtype, (4,)))])
            for dtype in ("float6_e2m3fn", "float6_e3m2fn", "no such")
        ),
        (errors.UnsupportedShape, [("x", TensorSpec("float4_e2m1fn", (2, 3)))]),
        (errors.UnsupportedShape, [("x", TensorSpec("float4_e2m1fn", ()))]),
        (errors.UnsupportedShape, [("x", TensorSpec("float32", (1,) * 65))]),
        (errors.BadName, [("\ud800", floats)]),
        (errors.DuplicateName, [("x", floats), ("x", floats)]),
    ]
    for error, tensors in cases:
        with pytest.raises(error):
            write_pickle(tensors)


def test_every_dtype_of_torch_that_we_know_has_its_row():
    ours = {name for name in DTYPES if hasattr(torch, name)} | {"float4_e2m1fn"}
    assert set(DTYPE_OF) == ours
    typed = {str(dtype) for dtype in torch.storage._dtype_to_storage_type_map()}
    assert {f"torch.{dtype}" for dtype in STORAGE_OF} == typed - {
        f"torch.{name}" for name in ("qint8", "qint32", "quint8", "quint4x2", "quint2x4")
    }


TREES = {
    "integers": [0, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -(2**31), -(2**31) - 1, 2**2030],
    "floats": [0.0, -0.0, 1e-300, math.inf, -math.inf, 5e-324, 1 + 2j, complex(-0.0, math.inf)],
    "text": ["", "é", "😀", "\0\n", "a" * 300, b"", b"\0\xff", bytes(range(256))],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), ((),)],
    "keys": {1: "a", "1": "b", 2.5: "c", None: "d", False: "e"},
    "nested": {"a": [{"b": (OrderedDict(x=[1]), Counter(y=2))}, {}, [], OrderedDict(), Counter()]},
}


def torch_reads(pickle: bytes) -> Any:
    return Unpickler(io.BytesIO(pickle)).load()


@pytest.mark.parametrize("name", TREES)
def test_torch_reads_the_same_tree_and_our_reader_an_equal_one(name):
    assert stores.same(torch_reads(write_tree(TREES[name], [])), TREES[name])
    assert read_pickle(write_tree(TREES[name], [])) == TREES[name]


def test_every_bit_of_a_nan_is_kept():
    nan = struct.unpack(">d", bytes.fromhex("fff8000000000123"))[0]
    assert struct.pack(">d", torch_reads(write_tree(nan, []))).hex() == "fff8000000000123"


def test_the_versions_of_a_state_dict_are_kept():
    tree: OrderedDict[str, Any] = OrderedDict(weight=1)
    tree._metadata = OrderedDict({"": {"version": 2}})  # type: ignore[attr-defined]
    for read in (torch_reads, read_pickle):
        back = read(write_tree({"model": tree}, []))["model"]
        assert back == tree
        assert back._metadata == OrderedDict({"": {"version": 2}})


def test_what_cannot_be_read_is_refused():
    for value in (np.float32(1), np.datetime64("2026-01-01"), {1, 2}, 2**2100, "\ud800"):
        with pytest.raises(errors.RefusedState):
            write_tree({"a": [{"b": value}]}, [])
    with pytest.raises(errors.RefusedState):
        write_tree({2**64: 1}, [])


def _tensor(**fields: Any) -> TreeTensor:
    stored = {"storage": "0", "storage_bytes": 16, "dtype": "float32", "offset": 0, "shape": (4,)}
    return TreeTensor(StoredTensor(**{**stored, "strides": (4,), **fields}))


def test_a_tensor_that_torch_has_not_is_refused():
    backwards = {"offset": 12, "strides": (-4,)}
    between_elements = {"offset": 2, "shape": (2,)}
    for fields in ({"dtype": "float6_e2m3fn"}, backwards, between_elements):
        tensor = _tensor(**fields)
        with pytest.raises(errors.RefusedState):
            write_tree({"x": tensor}, [tensor])
    in_metadata: OrderedDict[str, Any] = OrderedDict()
    in_metadata._metadata = {"a": _tensor()}  # type: ignore[attr-defined]
    with pytest.raises(errors.RefusedState):
        write_tree({"m": in_metadata}, [_tensor()])


def test_a_view_is_read_as_it_was_written():
    whole = _tensor()
    every_other = _tensor(offset=4, shape=(2,), strides=(8,))
    back = read_pickle(write_tree([whole, every_other], [whole, every_other]))
    assert back == [whole.stored, every_other.stored]
