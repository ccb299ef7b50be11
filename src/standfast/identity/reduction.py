"""Values of all kinds, reduced to the few that have canonical bytes."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import functools
import pathlib
import types
from collections.abc import Callable, Mapping, MutableSequence
from typing import Any

import numpy as np
from blake3 import blake3

from standfast.errors import UnstableValue, UnsupportedDType, UnsupportedTensor
from standfast.identity.names import has_name, lookup_name, qualified_name, type_name
from standfast.tensors import Packed, Source, TensorSpec, source_of
from standfast.tensors.dtypes import BY_NUMPY
from standfast.tensors.frameworks import plain
from standfast.tensors.sources import PIECE


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A class or function, by its name."""

    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Member:
    """A member of an enumeration: its name, or the value of a set of flags."""

    kind: str
    name: str | int


@dataclasses.dataclass(frozen=True, slots=True)
class Record:
    """An object that is no more than its class and its fields."""

    kind: str
    fields: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Applied:
    """A function with arguments given in advance."""

    function: Any
    arguments: list[Any]
    keywords: dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """A part whose canonical bytes are there already."""

    data: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Content:
    """A tensor and the digest of its bytes."""

    spec: TensorSpec
    digest: bytes


def reduced(value: Any) -> Any:
    """The value as a plain one, a list, set or dict of any values, or a class of this module.

    Raises UnstableValue with a reason that wants the value's path before it.
    """
    for kinds, reduce in _RULES:
        if isinstance(value, kinds):
            return reduce(value)
    if dataclasses.is_dataclass(value):
        return _record(value)
    if (name := plain(value)) is not None:
        return name
    if has_name(value):
        return Named(lookup_name(value))
    return _foreign(value)


def _member(value: enum.Enum) -> Member:
    # The name of several flags at once is not the same in every version of Python.
    name = int(value.value) if isinstance(value, enum.Flag) else value.name
    return Member(qualified_name(type(value)), name)


def _numpy_scalar(value: np.generic) -> Any:
    if value.dtype not in BY_NUMPY:  # a date, a record, a float wider than Python's
        raise UnstableValue(
            f"is a {type_name(type(value))}, which equals no Python number: "
            "give a float or an int, or its text"
        )
    return value.item()


def _numpy_dtype(value: np.dtype[Any]) -> str:
    if value not in BY_NUMPY:
        raise UnstableValue(f"is the dtype {value}, which no tensor has: give its name as text")
    return BY_NUMPY[value].name


def _record(value: Any) -> Record:
    fields = {}
    for field in dataclasses.fields(value):
        if not hasattr(value, field.name):
            raise UnstableValue(f"has no value yet in its field {field.name!r}: set it first")
        fields[field.name] = getattr(value, field.name)
    return Record(qualified_name(type(value)), fields)


def _applied(value: functools.partial[Any]) -> Applied:
    return Applied(value.func, list(value.args), dict(value.keywords))


def _content(value: Any) -> Content:
    try:
        source = source_of(value)
    except (UnsupportedTensor, UnsupportedDType) as error:
        raise UnstableValue(
            f"is a {type_name(type(value))} that has no plain bytes ({error}): "
            "give a list of plain values instead"
        ) from error
    return Content(source.spec, _digest(source))


def _digest(source: Source) -> bytes:
    data = source.contiguous()
    if data is not None:
        return blake3(data.data).digest()
    hasher = blake3()
    for start in range(0, source.spec.nbytes, PIECE):
        piece = np.empty(min(PIECE, source.spec.nbytes - start), np.uint8)
        source.copy_to(piece, start)
        hasher.update(piece.data)
    return hasher.digest()


def _foreign(value: Any) -> Content:
    """A tensor of a framework; all else is refused."""
    try:
        source = source_of(value)
    except (UnsupportedTensor, UnsupportedDType) as error:
        raise UnstableValue(
            f"is a {type_name(type(value))}, which may look different in every process: give plain "
            "values (numbers, text, lists, dicts) instead, such as its class and its settings, or "
            "leave it out"
        ) from error
    return Content(source.spec, _digest(source))


_RULES: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (type, lambda value: Named(lookup_name(value))),
    (enum.Enum, _member),
    # Subclasses of plain values count as these; the methods are the base's own.
    (str, str.__str__),
    (int, int.__int__),
    (float, float.__float__),
    (complex, complex.__complex__),
    (bytes | bytearray, bytes),
    (np.generic, _numpy_scalar),
    (np.dtype, _numpy_dtype),
    (np.ndarray | Packed, _content),
    (TensorSpec | Named | Member | Record | Applied, lambda value: value),
    (pathlib.PurePath, pathlib.PurePath.as_posix),
    (functools.partial, _applied),
    (argparse.Namespace | types.SimpleNamespace, lambda value: dict(vars(value))),
    (Mapping, dict),
    (tuple | MutableSequence, list),
    (set | frozenset, set),
)
"""What a value of these types is reduced to; the first that fits counts."""
