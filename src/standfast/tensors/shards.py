"""Tensors of which a process has only some boxes: the others are with other processes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from standfast.tensors.spec import TensorSpec


class Box(NamedTuple):
    """A part of a tensor: the index that it begins at, and how far it goes, by dimension."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class Shard(NamedTuple):
    """A box of a tensor, and what this process has in it."""

    box: Box
    tensor: Any
    """A plain tensor of the same framework, or an array of NumPy, of the shape of the box."""


class Shards(NamedTuple):
    """What this process has of a tensor that is cut up."""

    spec: TensorSpec
    """That of the whole tensor."""
    shards: Sequence[Shard]
    """No box twice, and no two that overlap; none, if it has nothing of it."""
    same: Hashable = None
    """Equal for two that are one tensor under two names; None if that cannot be told."""
