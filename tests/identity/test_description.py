"""Hyperparameters as people read them: JSON, whatever they were."""

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given

from standfast.identity import identify, recorded
from standfast.tensors import TensorSpec
from tests.identity.test_canonical import values
from tests.identity.values import Adam, Colour, Config, Mode, schedule
from tests.kit.strategies import json_values


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ((1, [2.5, None]), [1, [2.5, None]]),
        (True, True),
        (1 << 64, "0x10000000000000000"),
        ((1 << 64) - 1, (1 << 64) - 1),
        (-(1 << 63) - 1, "-0x8000000000000001"),
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (1 + 2j, "(1+2j)"),
        ("a\udcff", "a\\udcff"),
        (b"\0\xff", "00ff"),
        ({10, 9, "b", "a", None}, [9, 10, "a", "b", None]),
        (np.float32(0.5), 0.5),
        (Path("a") / "b", "a/b"),
        (torch.float16, "torch.float16"),
        (Colour.RED, "tests.identity.values:Colour.RED"),
        (Mode.READ | Mode.WRITE, "tests.identity.values:Mode.3"),
        (schedule, "tests.identity.values:schedule"),
        (TensorSpec("int8", (2, 3)), "int8[2, 3]"),
        (argparse.Namespace(lr=0.1), {"lr": 0.1}),
        (
            {2: "a", None: "b", 0.5: "c", True: "d"},
            {"2": "a", "null": "b", "0.5": "c", "true": "d"},
        ),
        ({1: "a", "1": "b"}, [["1", "a"], ["1", "b"]]),
        ({(1, "a"): 2}, {'[1, "a"]': 2}),
        (object(), "<object>"),
        ({"f": lambda: 0}, {"f": "<function>"}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_json_lacks_becomes_text(value, expected):
    shown = recorded(value)
    assert shown == expected
    assert type(shown) is type(expected)


def test_an_array_is_shown_by_its_spec_and_digest():
    shown = recorded({"a": np.zeros((2, 3), np.int8)})["a"]
    assert shown.startswith("int8[2, 3] blake3:")
    assert shown == recorded(torch.zeros(2, 3, dtype=torch.int8))
    assert shown != recorded(np.ones((2, 3), np.int8))


def test_objects_are_shown_with_their_class():
    assert recorded(Config(3, Adam(0.1))) == {
        "class": "tests.identity.values:Config",
        "width": 3,
        "optimizer": {"class": "tests.identity.values:Adam", "lr": 0.1},
    }
    assert recorded(functools.partial(schedule, 1, rate=2.0)) == {
        "function": "tests.identity.values:schedule",
        "arguments": [1],
        "keywords": {"rate": 2.0},
    }


def test_a_value_without_end_is_cut():
    loop: list[Any] = [1]
    loop.append(loop)
    assert recorded(loop) == [1, "…"]
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert json.dumps(recorded(deep)).count("[") == 100


@given(json_values)
def test_a_json_value_is_recorded_as_it_is_and_keeps_its_identity(value):
    shown = recorded(value)
    if not _has_huge_integers(value):
        assert identify(hp=[shown]) == identify(hp=[value])


def _has_huge_integers(value: Any) -> bool:
    if isinstance(value, list | dict):
        return any(map(_has_huge_integers, value.values() if isinstance(value, dict) else value))
    return isinstance(value, int) and not -(1 << 63) <= value < 1 << 64


@given(values)
def test_whatever_is_recorded_can_be_written_as_json(value):
    shown = recorded(value)
    assert msgspec.json.decode(msgspec.json.encode(shown)) == shown
