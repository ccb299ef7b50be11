"""Tensors that are cut up over ranks, of a framework that is only here: for tests with threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from standfast.tensors import TensorSpec, frameworks, register_framework, source_of
from standfast.tensors.shards import Box, Shard, Shards


class Cut:
    """What a rank has of a tensor: some boxes of it."""

    def __init__(self, whole: np.ndarray[Any, Any], boxes: Sequence[Box], same: Any = None) -> None:
        self.spec = source_of(whole).spec
        self.shards = [Shard(box, whole[_slices(box)].copy()) for box in boxes]
        self.same = same

    def blank(self) -> Cut:
        """One that is to be filled."""
        empty = np.zeros(self.spec.shape, self.spec.kind.numpy)
        return Cut(empty, [shard.box for shard in self.shards])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Cut) and all(
            a.box == b.box and a.tensor.tobytes() == b.tensor.tobytes()
            for a, b in zip(self.shards, other.shards, strict=True)
        )

    __hash__ = None


def _slices(box: Box) -> tuple[slice, ...]:
    return tuple(slice(at, at + n) for at, n in zip(*box, strict=True))


def even(shape: Sequence[int], counts: Sequence[int]) -> list[Box]:
    """A tensor cut into so many boxes along each dimension, about evenly; empty ones left out."""
    cuts = [
        [length * n // count for n in range(count + 1)]
        for length, count in zip(shape, counts, strict=True)
    ]
    boxes = []
    for index in np.ndindex(*counts):
        begins = tuple(cuts[axis][i] for axis, i in enumerate(index))
        ends = tuple(cuts[axis][i + 1] for axis, i in enumerate(index))
        box = Box(begins, tuple(b - a for a, b in zip(begins, ends, strict=True)))
        if 0 not in box.shape:
            boxes.append(box)
    return boxes


# The adapter: what is asked of it is that a Cut is one.


def kind(value: Any) -> str:
    return "numpy"


def shards(value: Any) -> Shards | None:
    return Shards(value.spec, value.shards, value.same) if isinstance(value, Cut) else None


def source(value: Any) -> Any:
    raise AssertionError("nobody has all of it")


def why_not_fillable(value: Any) -> str | None:
    return None


def device_of(value: Any) -> None:
    return None


def random_states() -> dict[str, Any]:
    return {}


def spec(value: Cut) -> TensorSpec:
    return value.spec


@pytest.fixture
def cut_framework() -> Iterator[None]:
    register_framework("tests", "tests.store.save.cut")
    yield
    del frameworks._adapters["tests"]
    frameworks._framework_of.cache_clear()
