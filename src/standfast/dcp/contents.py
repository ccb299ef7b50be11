"""A checkpoint of a store as DCP sees it: a flat state dict, and the paths of its names.

It does not matter who saved it. What DCP takes for one value here is what it takes for one in the
state dict of a program: all that is no tensor, and no dict, nor a list with any of these in it.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from functools import cache, cached_property
from typing import Any, Final

import numpy as np
import torch
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import ReadItem

from standfast.errors import RefNotFound, StateMismatch, shortened
from standfast.store.checkpoint import Checkpoint
from standfast.store.load.making import references
from standfast.store.load.needed import is_all_of
from standfast.store.load.reading import Data
from standfast.store.schema.boxes import whole_box
from standfast.store.schema.record import Record
from standfast.store.tree import tree
from standfast.store.tree.tree import Ranks, Ref
from standfast.tensors import TensorSpec, framework, tensor_of

Path = tuple[str | int, ...]
_TORCH: Final = "torch"


class Contents:
    """What is in a checkpoint, by the names that DCP has for it."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint: Final = checkpoint
        self.record: Final[Record] = checkpoint.record
        self.paths: Final[dict[str, Path]] = {}
        self.leaves: Final[dict[str, Any]] = {}
        """What is under each name: a Ref to a tensor of torch's, or a value of any other kind."""
        saved = tree.decode(self.record.tree, len(self.record.names))
        if not isinstance(saved, dict):
            raise StateMismatch(
                f"{checkpoint.ref} is a {type(saved).__name__}, and DCP fills dicts: load it with "
                "run.load"
            )
        for path, value in _leaves(saved, (), self._is_tensor):
            name = ".".join(map(str, path))
            if name in self.leaves:
                raise StateMismatch(
                    f"{checkpoint.ref}: two of its leaves are {shortened(name)!r} to DCP: load it "
                    "with run.load"
                )
            self.paths[name], self.leaves[name] = path, value

    def _is_tensor(self, value: Any) -> bool:
        return type(value) is Ref and self.record.kinds[value.tensor].partition(":")[0] == _TORCH

    @cached_property
    def tensors(self) -> dict[str, int]:
        """The numbers of those that DCP fills box by box; packed ones come as one value."""
        return {
            name: value.tensor
            for name, value in self.leaves.items()
            if self._is_tensor(value) and self.record.specs[value.tensor].kind.bits >= 8
        }

    def metadata(self) -> Metadata:
        """All of it as DCP's planners want it."""
        found: dict[str, STORAGE_TYPES] = {
            name: self._tensor(self.tensors[name]) if name in self.tensors else _VALUE
            for name in self.leaves
        }
        meta = StorageMeta(checkpoint_id=self.checkpoint.ref)
        return Metadata(found, planner_data={**self.paths}, storage_meta=meta)

    def _tensor(self, number: int) -> TensorStorageMetadata:
        record = self.record
        spec, view = record.specs[number], record.views.get(number)
        stored = view.base if view is not None and is_all_of(record, number) else number
        chunks = [
            ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.shape))
            for box in record.boxes.get(stored) or [whole_box(spec)]
        ]
        return TensorStorageMetadata(
            TensorProperties(dtype=_dtype(spec.dtype)), torch.Size(spec.shape), chunks
        )

    def number(self, item: ReadItem) -> int:
        """The tensor that is to be read."""
        name = item.storage_index.fqn
        if name not in self.tensors:
            raise self._changed(name)
        return self.tensors[name]

    def tensors_in(self, item: ReadItem) -> list[int]:
        """The tensors that are needed for what is to be read."""
        name = item.storage_index.fqn
        if name not in self.leaves:
            raise self._changed(name)
        return [number for _, number in references(self.leaves[name])]

    def _changed(self, name: str) -> RefNotFound:
        """The error of a rank that had another checkpoint in mind than the coordinator."""
        return RefNotFound(
            f"{self.checkpoint.ref} has no such {shortened(name)!r}: another checkpoint was saved "
            "or deleted while this one was chosen; load again"
        )

    def value(self, item: ReadItem, data: Data) -> io.BytesIO:
        """A value as planners take it: in the form of `torch.save`."""
        arrays = data.arrays(tensors=self.tensors_in(item))

        def made(number: int) -> Any:
            kind, spec = self.record.kinds[number], self.record.specs[number]
            known = kind.partition(":")[0] in (_TORCH, "numpy", "packed")
            return tensor_of(arrays[number], spec, kind) if known else arrays[number]

        buffer = io.BytesIO()
        torch.save(_plain(tree.build(self.leaves[item.storage_index.fqn], made)), buffer)
        buffer.seek(0)
        return buffer


_VALUE: Final = BytesStorageMetadata()


def _leaves(value: Any, path: Path, is_tensor: Callable[[Any], bool]) -> Iterator[tuple[Path, Any]]:
    """The leaves of a tree, and the paths that DCP has for them: keys of dicts become text."""
    if isinstance(value, dict):
        for key, member in value.items():
            yield from _leaves(member, (*path, str(key)), is_tensor)
    elif _is_opened(value, is_tensor):
        for position, member in enumerate(value):
            yield from _leaves(member, (*path, position), is_tensor)
    else:
        yield path, value


def _is_opened(value: Any, is_tensor: Callable[[Any], bool]) -> bool:
    """Whether DCP looks into a list: there is a tensor or a dict in it, however deep."""
    return isinstance(value, list) and any(
        isinstance(member, dict) or is_tensor(member) or _is_opened(member, is_tensor)
        for member in value
    )


def _plain(value: Any) -> Any:
    """A value without types of ours: what each rank had for itself is a list."""
    if isinstance(value, Ranks | list):
        return [_plain(member) for member in value]
    if isinstance(value, tuple):
        return tuple([_plain(member) for member in value])
    return value


@cache
def _dtype(name: str) -> torch.dtype:
    """The dtype that torch has for tensors of ours."""
    spec = TensorSpec(name, (0,))
    dtype: torch.dtype = framework(_TORCH).tensor(np.empty(0, spec.kind.numpy), spec).dtype
    return dtype
