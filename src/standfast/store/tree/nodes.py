"""What trees have besides plain values and containers: tensors by reference, and paths."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.errors import printable, shortened
from standfast.tensors.shards import Shards

MAX_DEPTH: Final = 100
"""More containers than this around one leaf are taken for a mistake."""

Path = tuple[Any, ...]
"""The keys and positions on the way from the root."""


class Leaf(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A tensor of a state, and its kind as `tensor_of` wants it."""

    path: Path
    value: Any
    kind: str
    shards: Shards | None = None
    """What this process has of it, if it is cut up."""


class Ranks(list[Any]):
    """What each rank had for itself, in the order of the ranks."""


class Own(msgspec.Struct, frozen=True, gc=False):
    """Stands in a tree for what each rank has for itself, the one of this number."""

    number: int


class Ref(msgspec.Struct, frozen=True, gc=False):
    """Stands in a tree for the tensor of this number."""

    tensor: int


def path_text(path: Path) -> str:
    """A path for people: `optimizer.state.0.exp_avg`; the root is `state`."""
    return shortened(".".join(map(_key_text, path))) if path else "state"


def _key_text(key: Any) -> str:
    if type(key) is int and key.bit_length() > 256:
        return shortened(hex(key))
    return printable(shortened(str(key)))
