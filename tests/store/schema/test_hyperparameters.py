"""Hyperparameters come back with the values and types that they were given with."""

import math
from collections import OrderedDict, deque
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import DamagedFile, RefusedState
from standfast.identity import identify, recorded
from standfast.identity.reduction import Applied, Member, Named, Record
from standfast.store.schema.hyperparameters import exact_form, exact_value, yaml_value
from standfast.store.v3.yaml_writer import block
from standfast.tensors import Packed, TensorSpec
from tests.identity.values import Adam, Colour, Mode, schedule

VALUES_MODULE = "tests.identity.values"
EXACT: dict[str, Any] = {
    "plain": {"lr": 0.1, "layers": [8, 3], "on": True, "name": None},
    "keys": {"class_weight": {0: 1.0, 1: 3.5}, None: 1, 1.5: 2, True: 3, "0": 4, b"x": 5},
    "keys of other types": {(1, 2): "a", 2**70: "c", frozenset({1}): "d"},
    "floats": [math.inf, -math.inf, 5e-324, -0.0, 1e22],
    "large integers": [2**70, -(2**70), 2**63, 2**20000],
    "containers": {"set": {1, "a", (2, 3)}, "frozen": frozenset({1}), "tuple": (1, (2, [3]))},
    "bytes": [b"\x00\xff", bytearray(b"a")],
    "complex": 1 - 2j,
    "text": ["\ud800", "日本", "yes"],
    "tags of the encoding": {"$tuple": [1], "$int": "5"},
    "numpy": [np.float32(0.1), np.int64(3), np.bool_(True)],
    "dtypes": [np.dtype("float32"), torch.bfloat16],
    "places": [Path("a/b"), torch.device("cuda:1"), torch.channels_last],
    "specs": TensorSpec("float32", (2, 3)),
    "a number": 0.5,
    "nothing": None,
}


@pytest.mark.parametrize("name", EXACT)
def test_values_come_back_equal_and_of_the_same_type(name):
    given = EXACT[name]
    found = exact_value(recorded(given), exact_form(given))
    assert found == given
    assert typed(found) == typed(given)
    assert identify(hp={"x": found}) == identify(hp={"x": given})


def typed(value: Any) -> Any:
    """A value with the type of each part."""
    if isinstance(value, dict):
        return type(value), [(typed(key), typed(member)) for key, member in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [*map(typed, value)]
    return type(value), repr(value) if isinstance(value, float) else value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">i4").reshape(2, 3).T,
        np.array(3.5),
        np.zeros((0, 2), ml_dtypes.bfloat16),
        torch.tensor([1.5, math.nan], dtype=torch.bfloat16),
        torch.nn.Parameter(torch.ones(2)),
        Packed(np.arange(12, dtype=np.uint8), "float6_e2m3fn", (4, 4)),
    ],
    ids=["big-endian", "no dimension", "empty", "bfloat16", "a parameter", "packed"],
)
def test_arrays_come_back(array):
    found = exact_value(None, exact_form({"weights": array}))["weights"]
    assert type(found) is type(array)
    assert identify(hp=[found]) == identify(hp=[array])  # dtype, shape and every byte


def test_what_counts_as_a_dict_or_a_list_comes_back_as_one():
    """`docs/identity.md`: tuple, list, deque and any mapping are ways to hold the same settings."""
    given = {"a": SimpleNamespace(x=(1,)), "b": deque([2]), "c": OrderedDict(y=3)}
    found = exact_value(None, exact_form(given))
    assert found == {"a": {"x": (1,)}, "b": [2], "c": {"y": 3}}
    assert identify(hp=found) == identify(hp=given)
    assert math.isnan(exact_value(None, exact_form([math.nan]))[0])


OF_THE_PROGRAM: dict[str, tuple[Any, Any]] = {
    "class": (Adam, Named(f"{VALUES_MODULE}:Adam")),
    "function": (math.sqrt, Named("math:sqrt")),
    "member": (Colour.RED, Member(f"{VALUES_MODULE}:Colour", "RED")),
    "flags": (Mode.READ | Mode.WRITE, Member(f"{VALUES_MODULE}:Mode", 3)),
    "dataclass": (Adam(0.5), Record(f"{VALUES_MODULE}:Adam", {"lr": 0.5})),
    "partial": (partial(schedule, 1), Applied(Named(f"{VALUES_MODULE}:schedule"), [1], {})),
    "key": ({Colour.RED: 1}, {Member(f"{VALUES_MODULE}:Colour", "RED"): 1}),
}


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("name", OF_THE_PROGRAM)
def test_names_in_a_file_stay_names_and_keep_their_identity(name):
    given, expected = OF_THE_PROGRAM[name]
    found = exact_value(None, exact_form({"x": given}))["x"]
    assert found == expected
    assert identify(hp={"x": found}) == identify(hp={"x": given})
    assert exact_form({"x": found}) == exact_form({"x": given})


def test_nothing_more_is_stored_where_json_is_exact():
    assert exact_form({"lr": 0.1, "layers": [1, None, "a"], "opt": {"name": "adam"}}) is None
    assert exact_value({"lr": 0.1}, None) == {"lr": 0.1}


def test_what_does_not_count_may_be_anything_but_too_deep():
    loop: dict[str, Any] = {}
    loop["self"] = loop
    found = exact_value(None, exact_form({"lr": (1,), "volatile": [object(), lambda: 0, loop]}))
    assert found == {"lr": (1,), "volatile": ["<object>", "<function>", {"self": {"self": "…"}}]}
    deep: Any = 1
    for _ in range(101):
        deep = (deep,)
    with pytest.raises(RefusedState):
        exact_form({"deep": deep})


def test_a_form_that_cannot_be_is_refused():
    for form in (
        *(5, [[1]], [{"$tuple": 1}, []]),
        *([[1], [[[0], "unknown"]]], [[1], [[[], "pairs"]]], [[1], [[[], "record"]]]),
        [["float32", [1000], "numpy", {"$bytes": "AA=="}], [[[], "tensor"]]],
        ["no-such-dtype", [[[], "dtype"]]],
        [[[1]], [[[], "set"]]],
    ):
        with pytest.raises(DamagedFile):
            exact_value(None, form)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
    | st.complex_numbers(),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple)
    | st.dictionaries(st.text() | st.integers() | st.binary() | st.none(), inner)
    | st.frozensets(st.text() | st.integers() | st.tuples(st.integers())),
    max_leaves=20,
)  # fmt: skip


@given(VALUES)
def test_any_value_keeps_its_identity_and_can_be_read_as_yaml(value):
    found = exact_value(recorded(value), exact_form(value))
    assert identify(hp=[found]) == identify(hp=[value])
    text = "".join(block("hyperparameters", yaml_value(value)))
    found = yaml.safe_load(text)["hyperparameters"]
    assert identify(hp=[found]) == identify(hp=[yaml_value(value)])


YAML: dict[str, Any] = {
    "numbers": [math.inf, -math.inf, 2**70, 1e22, True, None],
    "keys": {0: 1.0, 1.5: 2, None: 3, True: 4, "0": 5, b"x": 6, math.inf: 7},
    "sets and bytes": {"set": {1, "a", None, b"b"}, "bytes": b"\x00\xff"},
}


@pytest.mark.parametrize("name", YAML)
def test_values_that_yaml_has_are_exact_in_yaml(name):
    text = "".join(block("hyperparameters", yaml_value(YAML[name])))
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        found = yaml.load(text, Loader=loader)["hyperparameters"]
        assert found == YAML[name]
        assert typed(found) == typed(YAML[name])
