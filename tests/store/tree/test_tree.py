"""States go into JSON and come back with the same types, the same bits and the same order."""

import enum
import json
import math
import struct
import warnings
from collections import Counter, OrderedDict, defaultdict, namedtuple
from dataclasses import make_dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast import errors
from standfast.store.tree.tree import Ref, build, decode, encode, flatten, path_text
from standfast.tensors import Packed

with warnings.catch_warnings():  # NumPy 2.5 deprecates times without a unit
    warnings.simplefilter("ignore", DeprecationWarning)
    TIMES = [np.datetime64("NaT"), np.timedelta64(5)]
SCALARS = [
    *(getattr(np, name)(1) for name in ("bool", "int8", "uint16", "int32", "uint64", "float16")),
    *(getattr(np, name)(3) for name in ("intc", "long", "longlong", "ulonglong", "uint8")),
    *(np.float64(0.1), np.float32(-0.0), np.complex64(1 - 2j), np.complex128(1j)),
    *(np.longdouble(1) / 3, np.clongdouble(1j) / 3),
    *(np.datetime64("2024-02-29", "D"), np.datetime64(7, "25s")),
    *(np.timedelta64(5, "ns"), np.timedelta64("NaT", "ms"), *TIMES),
    *(np.str_("grün"), np.str_(""), np.str_("a\0"), np.str_("\udc80")),
    *(np.bytes_(b"\xff"), np.bytes_(b""), np.bytes_(b"a\0")),
    *(ml_dtypes.bfloat16(1.5), ml_dtypes.int4(-3), ml_dtypes.float8_e4m3fn("nan")),
    np.frombuffer(b"\x01\x00\xa0\x7f", "<f4")[0],  # a NaN with a payload
]


def _nan(bits: int) -> float:
    number: float = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return number


def _same(a: Any, b: Any) -> bool:
    """Equal in type and in every bit, all the way down."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        same = len(a) == len(b) and all(map(_same, a.items(), b.items()))
        return same and _same(getattr(a, "__dict__", None), getattr(b, "__dict__", None))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, np.longdouble | np.clongdouble):
        return bool(a == b)  # some of their bytes mean nothing
    if isinstance(a, np.str_ | np.bytes_):
        return len(a) == len(b) and bool(a == b)
    if isinstance(a, np.generic):
        return a.dtype == b.dtype and a.tobytes() == b.tobytes()
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, complex):
        return _same(a.real, b.real) and _same(a.imag, b.imag)
    return a is b if isinstance(a, np.ndarray | torch.Tensor | Packed) else bool(a == b)


def _round_trip(state: Any) -> Any:
    node, leaves = flatten(state)
    text = encode(node, range(len(leaves)))
    assert b"\n" not in text
    return build(decode(text, len(leaves)), lambda number: leaves[number].value)


def _with_metadata(members: list[tuple[Any, Any]], metadata: Any) -> OrderedDict[Any, Any]:
    ordered = OrderedDict(members)
    if metadata is not ...:
        ordered._metadata = metadata
    return ordered


text = st.text(st.characters(exclude_categories=[]), max_size=6)
floats = st.floats() | st.integers(0, 2**64 - 1).map(_nan)
integers = st.integers() | st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 1 << 9999])
keys = text | st.just("$tensor") | integers | floats | st.booleans() | st.none()
plain = (
    keys
    | st.builds(complex, floats, floats)
    | st.binary(max_size=8)
    | st.integers(0, len(SCALARS) - 1).map(SCALARS.__getitem__)
    | st.booleans().map(lambda torches: torch.ones(1) if torches else np.ones(1))
)
states = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(text, inner, max_size=4)
        | st.builds(
            _with_metadata, st.lists(st.tuples(keys, inner), max_size=3), st.just(...) | inner
        )
        | st.dictionaries(keys, inner, max_size=3).map(Counter)
    ),
    max_leaves=12,
)


@given(states)
@settings(max_examples=400, deadline=None)
def test_every_state_comes_back_in_type_order_and_bits(state):
    assert _same(_round_trip(state), state)


@pytest.mark.parametrize("scalar", SCALARS, ids=lambda s: f"{type(s).__name__}-{s!r}")
def test_every_numpy_scalar_comes_back(scalar):
    assert _same(_round_trip({"x": scalar}), {"x": scalar})


def test_keys_keep_their_types():
    for key in (1, 1.0, True, 0, 0.0, -0.0, False, None, "1", "$", "\ud800", math.nan, 2**64):
        (back,) = _round_trip({key: "x"})
        assert _same(back, key)
    assert list(_round_trip({float("nan"): 1, float("nan"): 2}).values()) == [1, 2]


def test_the_tags():
    state = {
        "ordered": _with_metadata([("a", 1)], {"": {"version": 1}}),
        "keys": {1: "x", "$y": None},
        "counter": Counter({30: 1, 20: 2}),
        "tuple": (1, ()),
        "large": [2**63, -(10**22), 1 << 2048],
        "not finite": [math.inf, _nan(0x7FF8000000000001)],
        "complex": complex(1, math.inf),
        "bytes": b"\0\xff",
        "surrogate": "a\ud800",
        "numpy": np.float32(1),
        "tensor": np.zeros(1),
    }
    assert json.loads(encode(flatten(state)[0], [17])) == {
        "ordered": {"$ordered": [["a", 1]], "$metadata": {"": {"version": 1}}},
        "keys": {"$dict": [[1, "x"], ["$y", None]]},
        "counter": {"$counter": [[30, 1], [20, 2]]},
        "tuple": {"$tuple": [1, {"$tuple": []}]},
        "large": [
            {"$int": "9223372036854775808"},
            {"$int": "-10000000000000000000000"},
            {"$int": "0x1" + 512 * "0"},
        ],
        "not finite": [{"$float": "7ff0000000000000"}, {"$float": "7ff8000000000001"}],
        "complex": {"$complex": [1.0, {"$float": "7ff0000000000000"}]},
        "bytes": {"$bytes": "AP8="},
        "surrogate": {"$str": "Ye2ggA=="},
        "numpy": {"$numpy": ["float32", "AACAPw=="]},
        "tensor": {"$tensor": 17},
    }


def test_tensors_come_in_the_order_of_the_tree_with_paths_and_kinds():
    a, b, c = np.zeros(1), torch.nn.Parameter(torch.ones(1)), np.ones(1)
    node, leaves = flatten({"m": {"w": a}, 3: [None, (b, 1)], "again": a, "c": c})
    assert [leaf.value for leaf in leaves] == [a, b, a, c]
    assert [path_text(leaf.path) for leaf in leaves] == ["m.w", "3.1.0", "again", "c"]
    assert [leaf.kind for leaf in leaves] == ["numpy", "torch:Parameter", "numpy", "numpy"]
    tree = decode(encode(node, [5, 6, 5, 0]), 7)
    assert tree == {"m": {"w": Ref(5)}, 3: [None, (Ref(6), 1)], "again": Ref(5), "c": Ref(0)}
    assert build(tree, lambda number: -number)[3] == [None, (-6, 1)]


Color = enum.IntEnum("Color", "RED")
Mode = enum.StrEnum("Mode", "FAST")
Config = make_dataclass("Config", ["width"])
Model = type("Model", (), {"state_dict": dict})
Text = type("Text", (str,), {})
Tally = type("Tally", (Counter,), {})
Point = namedtuple("Point", "x y")


REFUSED = [
    (Point(1, 2), "tuple(value)"),
    (defaultdict(list), "dict(value)"),
    (Tally("a"), "Counter(value)"),
    (Color.RED, ".value"),
    (Mode.FAST, ".value"),
    (Text("a"), "str(value)"),
    (torch.Size([1]), "tuple(value)"),
    (torch.float32, "str(value)"),
    (np.zeros((1, 1)).view(np.matrix), "numpy.asarray(value)"),
    (np.ma.masked_array([1]), ".mask"),
    (np.zeros(1, "i4,f4")[0], "numpy.void"),
    ({1, 2}, "sorted(value)"),
    (range(3), "list(value)"),
    (bytearray(b"a"), "bytes(value)"),
    (Config(1), "dataclasses.asdict(value)"),
    (Model(), "value.state_dict()"),
    (torch.nn.Linear(1, 1), "value.state_dict()"),
    (len, "builtin_function_or_method"),
    (int, "type"),
    (object(), "str(value)"),
    (torch.ones(1).as_subclass(type("Mine", (torch.Tensor,), {})), "as_subclass"),
]


@pytest.mark.parametrize(("value", "advice"), REFUSED, ids=lambda v: type(v).__name__)
def test_what_would_not_come_back_is_refused_with_its_path(value, advice):
    with pytest.raises(errors.RefusedState, match=r"^optimizer\.param_groups\.0\.lr:") as caught:
        flatten({"optimizer": {"param_groups": [{"lr": value}]}})
    assert advice in str(caught.value)
    assert type(value).__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("key", "advice"),
    [((1, 2), "str(key)"), (np.int64(1), "int(key)"), (Color.RED, "value"), (b"a", "str(key)")],
    ids=str,
)
def test_keys_of_other_types_are_refused(key, advice):
    for state, path in (
        ({"model": [{key: 1}]}, "model.0"),
        (OrderedDict([(key, 1)]), "state"),
        (Counter([key]), "state"),
    ):
        with pytest.raises(errors.RefusedState, match=f"^{path}:") as caught:
            flatten(state)
        assert advice in str(caught.value)


@pytest.mark.parametrize("kind", [OrderedDict, Counter])
def test_a_dict_with_other_attributes_is_refused(kind):
    members = kind(a=1)
    members.note = "x"
    with pytest.raises(errors.RefusedState, match="'note'"):
        flatten({"model": members})


def test_a_counter_keeps_its_order_and_counts_of_every_sign_and_type():
    milestones = Counter({30: 2, "$a": 0, None: -1, 10: 0.5})
    back = _round_trip(milestones)
    assert _same(back, milestones)
    assert list(back) == [30, "$a", None, 10]
    assert back["never seen"] == 0


def test_what_a_container_was_declared_to_hold_is_no_attribute():
    for declared, plain in ((Counter[str](), Counter()), (OrderedDict[str, int](), OrderedDict())):
        assert "__orig_class__" in vars(declared)
        assert _same(_round_trip(declared), plain)


def test_a_counter_in_a_given_tree_is_filled_where_it_lies(tmp_path):
    run = standfast.Store(tmp_path).run("counters")
    run.save(1, {"seen": Counter(b=2, a=1)})
    mine = Counter(a=7, b=8)
    assert run.load(1, into={"seen": mine})["seen"] is mine
    assert mine == Counter(a=1, b=2)
    with pytest.raises(errors.StateMismatch, match="seen"):
        run.load(1, into={"seen": Counter(a=7, b=8, c=9)})


WRAPS = {
    "list": lambda inner: [inner],
    "tuple": lambda inner: (inner,),
    "dict": lambda inner: {0: inner},
    "ordered": lambda inner: _with_metadata([("a", 1)], inner),
    "counter": lambda inner: Counter({"a": inner}),
}


@pytest.mark.parametrize("wrap", WRAPS)
def test_a_hundred_levels_come_back_and_one_more_is_refused(wrap):
    deep: Any = complex(1, math.inf)
    for _ in range(100):
        deep = WRAPS[wrap](deep)
    assert _same(_round_trip(deep), deep)
    with pytest.raises(errors.RefusedState, match="100"):
        flatten([deep])


def test_a_cycle_is_refused_at_once_and_a_container_in_two_places_is_none():
    state: dict[str, Any] = {"wide": list(range(1000)), "a": {}}
    state["a"]["self"] = state
    with pytest.raises(errors.RefusedState, match=r"^a\.self:"):
        flatten(state)
    betas = [0.9]
    assert _round_trip([betas, betas]) == [[0.9], [0.9]]


def test_paths_are_printable_and_short():
    assert path_text(()) == "state"
    assert path_text(("a", 0, None, 1.5)) == "a.0.None.1.5"
    assert path_text(("\x1b[1m\ud800",)) == "\\x1b[1m\\ud800"
    assert len(path_text(("x" * 10**6, 1 << 10**6))) < 300
