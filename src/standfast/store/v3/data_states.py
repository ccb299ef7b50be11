"""The samples of a run as text: a line each for `uids`, `discarded` and `tags`.

A line is `key: JSON`, so that a million samples are read in a second, and the file is YAML, which
is what programs for layout V3 read.
"""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final

import msgspec
import numpy as np

from standfast.errors import BadField
from standfast.files.yaml_text import read_yaml
from standfast.identity import is_data_state, recorded
from standfast.store.v3.yaml_writer import block, escaped, flow

Scalar = str | int | float | bool | None

_SHORT: Final = 160
"""No key of so few characters becomes too long by being escaped."""
_NUMBER_KEY: Final = re.compile(rb"([{,])(-?[0-9]+): ")
_LISTS: Final = ("uids", "discarded")
_KEYS: Final = (*_LISTS, "tags")
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def lines_of(data: Any) -> Iterator[str]:
    """The text of a data state, or of whatever else stands for the data of a run."""
    if not is_data_state(data):
        yield from ("uids: []\n", "discarded: []\n", "tags: {}\n")
        if data is not None:
            yield from block("data", recorded(data))
        return
    yield f"uids: {_list(data.get('uids'))}\n"
    yield f"discarded: {_list(data.get('discarded'))}\n"
    yield f"tags: {_tags(data.get('tags') or {})}\n"
    for key, value in data.items():
        if key not in _KEYS:
            yield from block(str(recorded(key)), recorded(value))


def _list(values: Any) -> str:
    return _fast(items := _items(values), items) or flow([_scalar(item) for item in items])


def _tags(tags: Mapping[Any, Any]) -> str:
    lists = tags
    if not set(map(type, tags.values())) <= {list, tuple}:
        lists = {uid: _items(names) for uid, names in tags.items()}
    kinds = set(map(type, lists))
    if kinds == {str} and max(map(len, lists)) <= _SHORT:
        text = _fast(lists, chain.from_iterable(lists.values()))
        if text is not None:
            return text
    elif kinds == {int}:
        texts = _Texts()
        return f"{{{','.join([f'{uid}: {texts.of(names)}' for uid, names in lists.items()])}}}"
    return flow({_scalar(uid): [*map(_scalar, names)] for uid, names in lists.items()})


def _fast(value: Any, scalars: Iterable[Any]) -> str | None:
    """A value in one go, if these, all that is in it, are none that YAML and JSON write apart."""
    if not set(map(type, scalars)) <= {str, int, bool, type(None)}:
        return None
    try:
        return escaped(msgspec.json.encode(value).decode())
    except (ValueError, OverflowError):  # half a character, or an integer beyond 64 bits
        return None


class _Texts:
    """Lists as text, each made once: tags repeat."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[Any, ...], tuple[type, ...]], str] = {}

    def of(self, names: Sequence[Any]) -> str:
        key = (tuple(names), tuple(map(type, names)))  # 1 and True are equal
        if key not in self._known:
            self._known[key] = _list(names)
        return self._known[key]


def _items(values: Any) -> list[Any]:
    if values is None:
        return []
    if isinstance(values, set | frozenset):
        return sorted(values, key=lambda value: (type(value).__name__, str(value)))
    return values.tolist() if isinstance(values, np.ndarray) else list(values)


def _scalar(value: Any) -> Scalar:
    """A uid or a tag as YAML has it: what is none of its scalars becomes text."""
    shown = recorded(value)
    return flow(shown) if isinstance(shown, list | dict) else shown


# Reading


def parse(text: bytes, what: str) -> dict[str, Any]:
    """What such a text says: `uids`, `discarded`, `tags`, and whatever else there is.

    `what` names the file in messages. Raises BadField, DuplicateKey or LimitExceeded.
    """
    try:
        with _uncollected():
            found = dict(_member(line) for line in text.removesuffix(b"\n").split(b"\n"))
    except (ValueError, RecursionError):  # no JSON: by hand, by V3, or with a key that is very long
        found = read_yaml(text, what)
        if not isinstance(found, dict):
            raise BadField(f"{what}: expected a mapping, found a {type(found).__name__}") from None
    for key in _LISTS:
        found[key] = _checked(found.get(key), what, key)
    tags = {} if found.get("tags") is None else found["tags"]
    if not isinstance(tags, dict):
        raise BadField(f"{what}: field tags: expected a mapping, found a {type(tags).__name__}")
    if not set(map(type, tags.values())) <= {list}:
        tags = {uid: _checked(names, what, f"tags[{uid!r:.80}]") for uid, names in tags.items()}
    if not set(map(type, chain.from_iterable(tags.values()))) <= _SCALARS:
        raise BadField(f"{what}: field tags: expected lists of text and numbers")
    return {**found, "tags": tags}


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without the collector, which would go through a million new lists again and again."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _checked(values: Any, what: str, field: str) -> list[Scalar]:
    """A list of scalars; nothing at all is an empty one."""
    if values is None:
        return []
    if not isinstance(values, list):
        raise BadField(f"{what}: field {field}: expected a list, found a {type(values).__name__}")
    if not set(map(type, values)) <= _SCALARS:
        raise BadField(f"{what}: field {field}: expected text and numbers in the list")
    return values


def _member(line: bytes) -> tuple[str, Any]:
    """A line of ours; raises ValueError for any other."""
    name, sign, text = line.partition(b": ")
    key = name.decode()
    if not sign or key not in _KEYS:
        raise ValueError("no line of a data state")
    if key != "tags":
        return key, msgspec.json.decode(text, type=list[Scalar])
    if text.startswith((b'{"', b"{}")):
        return key, msgspec.json.decode(text, type=dict[str, list[Scalar]])
    # A mapping of integers is YAML and no JSON, but for the quotes. Such a sign within a text is
    # torn in two by them, which no JSON is: it is refused here, and read as YAML.
    quoted, count = _NUMBER_KEY.subn(rb'\1"\2":', text)
    numbers = msgspec.json.decode(quoted, type=dict[int, list[Scalar]])
    if len(numbers) != count or b'":' in text:
        raise ValueError("keys that are text, too, or that stand twice")
    return key, numbers
