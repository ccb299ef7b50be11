"""What has no stable form is refused, with its path, its type, and what to give instead."""

from __future__ import annotations

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

from standfast.errors import StandfastError, UnstableValue
from standfast.identity import identify
from tests.identity.values import Adam, Config, Net, schedule


def refusal(value: Any) -> str:
    with pytest.raises(UnstableValue) as raised:
        identify(hp=value)
    assert isinstance(raised.value, StandfastError | TypeError)
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


REFUSED: dict[str, tuple[Any, str, str]] = {
    "object": (object(), "is a object", "plain values"),
    "instance": (Net(), "tests.identity.values.Net", "its settings"),
    "date": (datetime.date(2026, 1, 1), "datetime.date", "text"),
    "generator": ((i for i in ()), "generator", "lists"),
    "range": (range(3), "range", "lists"),
    "lambda": (lambda: 0, "<lambda>", "its name as text"),
    "local function": (_local(), "_local.<locals>.inner", "top level of a module"),
    "local class": (_local_class(), "_local_class.<locals>.Inner", "top level of a module"),
    "bound method": (Net().forward, "method, tests.identity.values.Net.forward", "name as text"),
    "partial": (functools.partial(lambda: 0), ".function is a function", "its name as text"),
    "objects in an array": (np.array([object()]), "numpy.ndarray", "list of plain values"),
    "texts in an array": (np.array(["a"]), "numpy.ndarray", "list of plain values"),
    "masked array": (np.ma.masked_array([1]), "mask", "list of plain values"),
    "date of NumPy": (np.datetime64("2026-01-01"), "numpy.datetime64", "text"),
    "duration of NumPy": (np.timedelta64(5, "ns"), "numpy.timedelta64", "text"),
    "wide float": (np.longdouble(1), "numpy.longdouble", "give a float"),
    "dtype of records": (np.dtype([("a", "i4")]), "dtype", "text"),
    "model": (torch.nn.ReLU(), "torch.nn.modules.activation.ReLU", "class and its settings"),
    "sparse tensor": (torch.ones(2).to_sparse(), "torch.Tensor", "plain values"),
    "generator of torch": (torch.Generator(), "Generator", "plain values"),
    "field without a value": (Unset(), "'value'", "set it first"),
}


@pytest.mark.parametrize(("value", "what", "instead"), REFUSED.values(), ids=REFUSED)
def test_a_value_without_a_stable_form_is_refused(value: Any, what: str, instead: str) -> None:
    message = refusal({"optimizer": {"callback": value}})
    assert message.startswith("hp.optimizer.callback")
    assert what in message
    assert instead in message
    assert "0x" not in message


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
    ],
)
def test_the_path_is_named(value: Any, path: str) -> None:
    assert refusal(value).startswith(path)


def test_the_path_begins_with_the_part() -> None:
    for part in ("model", "data", "trial"):
        with pytest.raises(UnstableValue, match=rf"^{part}\.x\[1\] is a object"):
            identify(name="a", **{part: {"x": [0, object()]}})


def test_keys_that_are_written_the_same_are_refused() -> None:
    assert "hp.a has the same key" in refusal({Path("a"): 1, "a": 2})


def test_a_value_that_holds_itself_is_refused() -> None:
    list_: list[Any] = []
    list_.append({"again": list_})
    assert refusal(list_).startswith("hp[0].again is a list that holds itself")
    namespace = argparse.Namespace()
    namespace.again = namespace
    assert "holds itself" in refusal(namespace)
    config = Config(1)
    config.optimizer = [config]
    assert refusal(config).startswith("hp.optimizer[0] is a")


@pytest.mark.parametrize("around", [lambda inner: [inner], lambda inner: {"a": inner}])
def test_a_value_may_be_a_hundred_levels_deep_and_no_deeper(
    around: Callable[[Any], Any],
) -> None:
    value: Any = 1
    for _ in range(100):
        value = around(value)
    assert identify(hp=value).hp
    assert "more than 100 levels deep" in refusal(around(value))
    for _ in range(100_000):
        value = around(value)
    assert "more than 100 levels deep" in refusal(value)
