"""A checkpoint as an open file: its tensors by name, its plain values by path."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from standfast.errors import DamagedFile, RefNotFound, RefusedMetadata, TensorNotFound
from standfast.files.reader import Progress
from standfast.formats.metadata import check_metadata
from standfast.store.load.needed import is_all_of
from standfast.store.schema import names
from standfast.store.schema.record import STORAGE, Head, Part, Record
from standfast.store.tree import tree
from standfast.store.tree.tree import Path, Ranks, Ref
from standfast.tensorfile.diff import Diff, compare, differences
from standfast.tensors import TensorSpec

if TYPE_CHECKING:
    from standfast.store.checkpoint import Checkpoint
    from standfast.store.load.reading import Data
    from standfast.store.run import Run

Array = np.ndarray[Any, Any]


class CheckpointView:
    """The tensors of a checkpoint, or of one part of it under the names they have there.

    A tensor is read, and every byte of it verified, when it is asked for.
    """

    def __init__(self, checkpoint: Checkpoint, part: str | Part | None = None) -> None:
        self._checkpoint = checkpoint
        self._record = checkpoint.record
        self._part = find_part(self._record.head, part) if isinstance(part, str) else part
        self._numbers = _numbers(self._record, self._part)
        self._data: Data | None = None

    @property
    def head(self) -> Head:
        """What the record says before anything else."""
        return self._record.head

    @cached_property
    def values(self) -> dict[str, Any]:
        """The plain values of the state, by their paths."""
        saved = tree.decode(self._record.tree, len(self._record.names))
        if self._part is not None:
            saved = _within(saved, self._part.key)
        return named_leaves(saved)

    @cached_property
    def metadata(self) -> dict[str, Any]:
        """What a file of the checkpoint says besides its tensors: all that is JSON."""
        head = self.head
        return {
            "run": head.run,
            "step": head.step,
            "epoch": head.epoch,
            "metrics": _fitting(self._checkpoint.metrics),
            "state": _fitting(self.values),
        }

    def spec(self, name: str) -> TensorSpec:
        """A tensor's dtype and logical shape."""
        return self._record.specs[self._number(name)]

    def stored_digests(self) -> dict[str, bytes]:
        """The chunk digests in the record, of all tensors that are the whole of what is stored."""
        digests = {}
        for name, number in self._numbers.items():
            stored = _stored(self._record, number)
            if stored is not None:
                digests[name] = self._record.chunk_digests(stored)
        return digests

    def chunks(self, name: str) -> Callable[[int], Array] | None:
        """What gives the bytes of one chunk of a tensor, verified; None if it is read whole."""
        stored = _stored(self._record, self._number(name))
        if stored is None:
            return None

        def chunk(number: int) -> Array:
            if self._data is not None:
                return self._data.chunk(stored, number)
            with self._checkpoint.data(tensors=[stored]) as data:
                return data.chunk(stored, number)

        return chunk

    @contextmanager
    def reading(self, names: Iterable[str]) -> Iterator[None]:
        """Have the files of these tensors open, for chunks that are asked for meanwhile."""
        stored = {_stored(self._record, self._number(name)) for name in names}
        tensors = sorted(number for number in stored if number is not None)
        with self._checkpoint.data(tensors=tensors) as self._data:
            try:
                yield
            finally:
                self._data = None

    def arrays(self, progress: Progress | None = None) -> dict[str, Array]:
        """All tensors at once, read on several threads."""
        with self._checkpoint.data(tensors=self._numbers.values()) as data:
            arrays = data.arrays(progress)
        return {name: arrays[number] for name, number in self._numbers.items()}

    def __getitem__(self, name: str) -> Array:
        number = self._number(name)
        with self._checkpoint.data(tensors=[number]) as data:
            return data.arrays()[number]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            raise TensorNotFound(f"{self._checkpoint.ref}: there is no tensor {name!r}")
        return number


def diff_checkpoints(before: Checkpoint, after: Checkpoint) -> Diff:
    """Compare two checkpoints; true if they differ in anything but their place in the store.

    Beside the tensors, its `metadata` has the epoch, metrics and plain values that differ, and
    of two runs the hyperparameters. Tensors whose digests are equal are not read.
    """
    old, new = CheckpointView(before), CheckpointView(after)
    beside = differences(_beside(before, old), _beside(after, new))
    return replace(compare(old, new), metadata=beside)


def _beside(checkpoint: Checkpoint, view: CheckpointView) -> dict[str, Any]:
    run = run_of(checkpoint)
    return {
        "hyperparameters": run.file.hyperparameters if run else None,
        "epoch": checkpoint.epoch,
        "metrics": checkpoint.metrics,
        "state": view.values,
    }


def run_of(checkpoint: Checkpoint) -> Run | None:
    """The run of a checkpoint; None if the file that describes it is damaged."""
    try:
        return checkpoint.run
    except DamagedFile:
        return None


def find_part(head: Head, name: str) -> Part:
    """The part of a checkpoint that goes by a key or a label."""
    for part in head.parts:
        if part.key == name:
            return part
    for part in head.parts:
        if part.label == name:
            return part
    there = ", ".join(part.label if part.key is None else part.key for part in head.parts)
    raise RefNotFound(
        f"{head.run}@{head.step} has no part {name!r}; it has {there or 'no tensors'}"
    )


def plain_leaves(node: Any) -> Iterator[tuple[Path, Any]]:
    """The plain values of a decoded tree with their paths, in its order.

    A list or tuple of nothing but plain values is one itself, and so is what is empty. What each
    rank had for itself goes by `rank0`, `rank1`, … as in the names of tensors.
    """
    waiting: list[tuple[Path, Any]] = [((), node)]
    while waiting:
        path, node = waiting.pop()
        if isinstance(node, dict) and node:
            waiting.extend(((*path, key), node[key]) for key in reversed(node))
        elif type(node) is Ranks:
            waiting.extend(((*path, f"rank{i}"), node[i]) for i in reversed(range(len(node))))
        elif isinstance(node, list | tuple) and any(map(_is_more, node)):
            waiting.extend(((*path, i), node[i]) for i in reversed(range(len(node))))
        elif type(node) is not Ref:
            yield path, node


def named_leaves(node: Any) -> dict[str, Any]:
    """The plain values of a decoded tree by their paths as text."""
    return _by_name(plain_leaves(node))


def _is_more(member: Any) -> bool:
    """Whether it is anything but a plain value."""
    return isinstance(member, dict | list | tuple | Ref)


def _by_name(leaves: Iterator[tuple[Path, Any]]) -> dict[str, Any]:
    """The values by paths as text; where two give one text, the second ends in `~2`."""
    named: dict[str, Any] = {}
    counts: dict[str, int] = {}
    for path, value in leaves:
        text = name = names.dotted(path)
        while name in named:
            counts[text] = counts.get(text, 1) + 1
            name = f"{text}~{counts[text]}"
        named[name] = value
    return named


def _within(saved: Any, key: str | None) -> Any:
    """What of a tree belongs to a part; to the part of loose tensors, all that is in no other."""
    if not isinstance(saved, dict):
        return saved
    if key is None:
        return {k: value for k, value in saved.items() if not isinstance(value, dict | Ranks)}
    found = (value for k, value in saved.items() if names.key_text(k) == key)
    return next((value for value in found if isinstance(value, dict | Ranks)), {})


def _fitting(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the values that JSON has, as it has them."""
    kept = {}
    for key, value in values.items():
        try:
            check_metadata({"state": {key: value}})
        except RefusedMetadata:
            continue
        kept[key] = value
    return kept


def _numbers(record: Record, part: Part | None) -> dict[str, int]:
    """The tensors that are leaves of the state, by their names."""
    first, count, prefix = 0, len(record.names), ""
    if part is not None:
        first, count = part.first, part.count
        prefix = "" if part.key is None else f"{part.key}."
    return {
        record.names[number].removeprefix(prefix): number
        for number in range(first, first + count)
        if record.kinds[number] != STORAGE
    }


def _stored(record: Record, number: int) -> int | None:
    """The tensor whose stored bytes are just those of this one; None if there is none."""
    view = record.views.get(number)
    if number in record.boxes or (view is not None and view.base in record.boxes):
        return None  # cut up otherwise, the same tensor has other chunks
    if view is None:
        return number
    return view.base if is_all_of(record, number) else None
