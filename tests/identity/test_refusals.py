"""What has no stable form is refused, with its path, its type, and what to give instead."""

import argparse
import datetime
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from standfast.errors import UnstableValue
from standfast.identity import identify
from tests.identity.values import Adam, Config, Net, schedule


def refusal(value: Any) -> str:
    with pytest.raises(UnstableValue) as raised:
        identify(hp=value)
    return str(raised.value)


@dataclass
class Unset:
    value: int = field(init=False)


def _local() -> Callable[[], None]:
    def inner() -> None: ...

    return inner


def _local_class() -> type:
    class Inner: ...

    return Inner


REFUSED: dict[str, Any] = {
    "object": object(),
    "instance": Net(),
    "date": datetime.date(2026, 1, 1),
    "generator": (i for i in ()),
    "range": range(3),
    "lambda": lambda: 0,
    "local function": _local(),
    "local class": _local_class(),
    "bound method": Net().forward,
    "partial": functools.partial(lambda: 0),
    "objects in an array": np.array([object()]),
    "texts in an array": np.array(["a"]),
    "masked array": np.ma.masked_array([1]),
    "date of NumPy": np.datetime64("2026-01-01"),
    "duration of NumPy": np.timedelta64(5, "ns"),
    "wide float": np.longdouble(1),
    "dtype of records": np.dtype([("a", "i4")]),
    "model": torch.nn.ReLU(),
    "sparse tensor": torch.ones(2).to_sparse(),
    "generator of torch": torch.Generator(),
    "field without a value": Unset(),
}


@pytest.mark.parametrize("value", REFUSED.values(), ids=REFUSED)
def test_a_value_without_a_stable_form_is_refused(value):
    message = refusal({"optimizer": {"callback": value}})
    assert message.startswith("hp.optimizer.callback")
    assert "0x" not in message, "an address is another one each time"


def of_itself() -> dict[str, Any]:
    loop: dict[str, Any] = {}
    loop["again"] = [loop]
    return loop


def namespace_of_itself() -> argparse.Namespace:
    namespace = argparse.Namespace()
    namespace.again = namespace
    return namespace


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (object(), "hp is"),
        ([0, [object()]], "hp[1][0] is"),
        ({"a b": object()}, "hp['a b'] is"),
        ({3: {None: object()}}, "hp[3][None] is"),
        ({"a": {(1, object): object()}}, "hp.a[a tuple] is"),
        ({"s": {object()}}, "hp.s{…} is"),
        ({object(): 1}, "hp[a object] is"),
        (Config(1, Adam(object())), "hp.optimizer.lr is"),  # type: ignore[arg-type]
        (argparse.Namespace(a=object()), "hp.a is"),
        (functools.partial(schedule, object()), "hp.arguments[0] is"),
        (functools.partial(schedule, rate=object()), "hp.keywords.rate is"),
        ({"\x1b[2J": object()}, r"hp['\\x1b[2J'] is"),
        ({Path("a"): 1, "a": 2}, "hp.a has"),  # which are written the same
        (of_itself(), "hp.again[0] is"),
        (namespace_of_itself(), "hp.again is"),
    ],
)
def test_the_path_is_named(value, path):
    assert refusal(value).startswith(path)


def test_the_path_begins_with_the_part():
    for part in ("model", "data", "trial"):
        with pytest.raises(UnstableValue, match=rf"^{part}\.x\[1\]"):
            identify(name="a", **{part: {"x": [0, object()]}})


@pytest.mark.parametrize("around", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_a_value_may_be_a_hundred_levels_deep_and_no_deeper(around):
    value: Any = 1
    for _ in range(100):
        value = around(value)
    assert identify(hp=value).hp
    assert "100" in refusal(around(value))
    for _ in range(100_000):
        value = around(value)
    assert "100" in refusal(value)
