"""What data a run sees: the samples, which of them are discarded, and their tags.

A million samples are common, so what is done for each is little: their canonical bytes are put
together as Latin-1 text, which Python formats faster than bytes, and sorted in blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from itertools import chain
from typing import Any, Final, TypeGuard

import numpy as np

from standfast.errors import UnstableValue
from standfast.identity.canonical import Canonical, path_step
from standfast.identity.names import type_name
from standfast.identity.reduction import Encoded

_COLLECTIONS: Final = {list, tuple, set, frozenset}


def canonical_data(data: Any) -> bytes:
    """The canonical bytes of a data state, whatever its order, or of any plain value."""
    if not is_data_state(data):
        return Canonical("data").encode(data)
    uids = _texts(_items(data.get("uids"), "data.uids"), "data.uids")
    discarded = _texts(_items(data.get("discarded"), "data.discarded"), "data.discarded")
    parts = {
        "uids": Encoded(_unordered(uids)),
        "discarded": Encoded(_unordered(set(discarded))),
        "tags": Encoded(_tags(data.get("tags"))),
    }
    return Canonical("data").encode({**data, **parts})


def is_data_state(data: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Whether it says which samples there are: by `uids`, `discarded`, or a mapping of `tags`.

    The others of the three may be missing, and are empty then.
    """
    if not isinstance(data, Mapping):
        return False
    return "uids" in data or "discarded" in data or isinstance(data.get("tags"), Mapping)


def _tags(tags: Any) -> bytes:
    """A mapping of each uid that has tags to the set of them."""
    if tags is None:
        tags = {}
    if not isinstance(tags, Mapping):
        raise UnstableValue(
            f"data.tags is a {type_name(type(tags))}: give a mapping of uids to lists of tags"
        )
    lists = list(tags.values())
    if not set(map(type, lists)) <= _COLLECTIONS:
        lists = [_items(names, f"data.tags{path_step(uid)}") for uid, names in tags.items()]
    uids = _texts(list(tags), "data.tags")
    pairs = zip(uids, _tag_sets(lists), strict=True)
    entries = [uid + names for uid, names in pairs if names != "u0:"]
    return _ordered(b"m", entries)


def _tag_sets(lists: list[Collection[Any]]) -> list[str]:
    # Tags repeat, and text may be looked up; 1 and True, which are equal, may not.
    if set(map(type, chain.from_iterable(lists))) <= {str}:
        known = _KnownSets()
        return [known[tuple(names)] for names in lists]
    return [_tag_set(names) for names in lists]


class _KnownSets(dict[tuple[str, ...], str]):
    """Sets of tags, each encoded once."""

    def __missing__(self, names: tuple[str, ...]) -> str:
        self[names] = _tag_set(names)
        return self[names]


def _tag_set(names: Collection[Any]) -> str:
    return _latin(_unordered(set(_texts(names, "data.tags"))))


def _items(value: Any, path: str) -> Collection[Any]:
    if value is None:
        return ()
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype.kind in "iuSU":
        items: list[Any] = value.tolist()
        return items
    if isinstance(value, list | tuple | set | frozenset):
        return value
    raise UnstableValue(f"{path} is a {type_name(type(value))}: give a list")


def _texts(values: Collection[Any], path: str) -> list[str]:
    """The canonical bytes of each value, as Latin-1 text."""
    kinds = set(map(type, values))
    if kinds == {str}:
        if not "".join(values).isascii():
            values = [_latin(value.encode("utf-8", "surrogatepass")) for value in values]
        return [f"s{len(value)}:{value}" for value in values]
    if kinds == {int}:
        return [f"i{len(digits)}:{digits}" for digits in [f"{value:x}" for value in values]]
    return [_latin(Canonical(path).encode(value)) for value in values]


def _unordered(texts: Collection[str]) -> bytes:
    return _ordered(b"u", texts)


def _ordered(kind: bytes, texts: Collection[str]) -> bytes:
    """A container of this kind: its texts, the shorter first, those of one length sorted."""
    groups: dict[int, list[str]] = {length: [] for length in sorted(set(map(len, texts)))}
    for text in texts:
        groups[len(text)].append(text)
    blocks = [_block(group, length) for length, group in groups.items()]
    return b"".join([b"%b%d:" % (kind, len(texts)), *blocks])


def _block(texts: list[str], length: int) -> bytearray:
    """Sorted texts of one length; NumPy sorts them as they lie, three times as fast as Python."""
    block = bytearray("".join(texts), "latin-1")
    np.frombuffer(block, f"S{length}").sort()
    return block


def _latin(data: bytes) -> str:
    return data.decode("latin-1")
