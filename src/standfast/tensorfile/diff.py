"""What differs between two files, or two checkpoints, tensor by tensor, and by how much."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

import numpy as np

from standfast.files.digests import DIGEST, worker_count
from standfast.files.threads import Threads
from standfast.tensorfile.distances import Apart, Measured, pieces_apart, put_together
from standfast.tensorfile.open import TensorFile
from standfast.tensors import TensorSpec

Array = np.ndarray[Any, Any]


class _Absent(Enum):
    ABSENT = "absent"

    def __repr__(self) -> str:
        return self.value


ABSENT: Final = _Absent.ABSENT
"""In the place of a metadata value that one of the two does not have."""


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that both have, and that differs."""

    name: str
    before: TensorSpec
    after: TensorSpec
    max: float | None
    """The largest difference of two elements; infinite where one is no number.

    None where elements cannot be compared: the shapes differ, or they are no numbers.
    """
    mean: float | None
    """The mean difference over all elements."""
    share: float | None
    """The share of elements that are not the same, bit for bit."""


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two files, or between two checkpoints."""

    added: Mapping[str, TensorSpec]
    """The tensors that only the second has."""
    removed: Mapping[str, TensorSpec]
    """The tensors that only the first has."""
    changed: Sequence[Change]
    """The worst first: other shapes, then by the largest difference."""
    same: int
    """How many tensors were read and are the same, bit for bit."""
    by_digests: int
    """How many have the same digests in both and were not read: `verify` finds their damage."""
    metadata: Mapping[str, tuple[Any, Any]]
    """What each key was and is, ABSENT where it is not there, for those that differ."""

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.metadata)


class Comparable(Protocol):
    """Tensors by name and plain values beside them: an open file, or a checkpoint of a store.

    It is asked for tensors from several threads.
    """

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The plain values."""
        ...

    def spec(self, name: str) -> TensorSpec:
        """A tensor's dtype and logical shape."""
        ...

    def stored_digests(self) -> Mapping[str, bytes]:
        """The chunk digests that are known without reading a tensor, by name."""
        ...

    def chunks(self, name: str) -> Callable[[int], Array] | None:
        """What gives the bytes of one chunk of a tensor, verified; None if it is read whole."""
        ...

    def reading(self, names: Iterable[str], /) -> AbstractContextManager[None]:
        """Have these ready to be read; while it lasts, many chunks cost no more than they must."""
        ...

    def __iter__(self) -> Iterator[str]: ...

    def __contains__(self, name: object, /) -> bool: ...

    def __getitem__(self, name: str, /) -> Array: ...


def diff(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    names: Sequence[str] | None = None,
    tensors_only: bool = False,
) -> Diff:
    """Compare two files, of any formats; true if they differ in anything.

    Tensors of another dtype are compared by their values. Tensors whose digests are equal in
    both files are not read, and count as `by_digests`: `verify` tells whether they are intact.

    >>> standfast.diff("step_100.safetensors", "step_200.pt").changed[0].name
    'embedding.weight'
    """
    with (
        TensorFile(before, names=names, tensors_only=tensors_only) as old,
        TensorFile(after, names=names, tensors_only=tensors_only) as new,
    ):
        return compare(old, new)


def compare(old: Comparable, new: Comparable) -> Diff:
    """Compare what is open already."""
    both = [name for name in old if name in new]
    differing = _differing(both, old, new)
    with old.reading(differing), new.reading(differing):
        measured = _measure_all(differing, old, new)
    changes = [
        Change(name, old.spec(name), new.spec(name), *measured[name])
        for name in differing
        if measured[name].share != 0 or old.spec(name) != new.spec(name)
    ]
    return Diff(
        added={name: new.spec(name) for name in new if name not in old},
        removed={name: old.spec(name) for name in old if name not in new},
        changed=sorted(changes, key=_badness, reverse=True),
        same=len(differing) - len(changes),
        by_digests=len(both) - len(differing),
        metadata=differences(old.metadata, new.metadata),
    )


def _differing(names: list[str], old: Comparable, new: Comparable) -> dict[str, list[int] | None]:
    """Those that the digests in both do not show to be equal, with the chunks that differ.

    None stands for all of a tensor: of another spec, or without digests.
    """
    before, after = old.stored_digests(), new.stored_digests()
    differing: dict[str, list[int] | None] = {}
    for name in names:
        a, b = before.get(name), after.get(name)
        if a is None or b is None or old.spec(name) != new.spec(name):
            differing[name] = None
        elif a != b:
            chunks = range(0, len(a), DIGEST)
            unequal = [at // DIGEST for at in chunks if a[at : at + DIGEST] != b[at : at + DIGEST]]
            differing[name] = unequal
    return differing


def _measure_all(
    differing: Mapping[str, list[int] | None], old: Comparable, new: Comparable
) -> dict[str, Measured]:
    """How far apart tensors are, on several threads, the chunks of one tensor too."""
    stop = threading.Event()
    readers = {name: _readers(name, old, new) for name, chunks in differing.items() if chunks}
    tasks = [
        (name, number)
        for name, chunks in differing.items()
        for number in (chunks if chunks and readers[name] else [None])
    ]

    def measure(task: tuple[str, int | None]) -> list[Apart] | None:
        name, number = task
        if number is None:
            return _measure_whole(name, old, new, stop)
        kind = old.spec(name).kind
        a, b = (read(number).view(kind.numpy) for read in readers[name])
        return pieces_apart(a, b, not kind.packed, stop)

    with Threads(worker_count()) as pool:
        try:
            found = list(pool.map(measure, tasks))
        except BaseException:  # Ctrl-C too: nobody waits for what is left
            stop.set()
            raise
    apart: dict[str, list[Apart] | None] = {name: [] for name in differing}
    for (name, _), pieces in zip(tasks, found, strict=True):
        so_far = apart[name]
        apart[name] = None if pieces is None or so_far is None else so_far + pieces
    return {name: put_together(pieces, old.spec(name)) for name, pieces in apart.items()}


def _readers(name: str, old: Comparable, new: Comparable) -> list[Callable[[int], Array]]:
    """What gives the chunks of a tensor in both; nothing if one of them gives it whole."""
    readers = [old.chunks(name), new.chunks(name)]
    return [read for read in readers if read] if all(readers) else []


def _measure_whole(
    name: str, old: Comparable, new: Comparable, stop: threading.Event
) -> list[Apart] | None:
    """A tensor that is read whole; None if its elements cannot be compared."""
    before, after = old.spec(name), new.spec(name)
    if before.shape != after.shape:
        return None
    a, b = old[name], new[name]
    if before.dtype != after.dtype and (before.kind.packed or after.kind.packed):
        return None
    numbers = not before.kind.packed and a.dtype.names is None
    return pieces_apart(a, b, numbers, stop)


def _badness(change: Change) -> tuple[bool, float, float]:
    return change.max is None, change.max or 0.0, change.share or 0.0


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What each key was and is, ABSENT where it is not there, for those that differ."""
    return {
        key: (old.get(key, ABSENT), new.get(key, ABSENT))
        for key in dict.fromkeys([*old, *new])
        if key not in old or key not in new or not _same(old[key], new[key])
    }


def _same(a: Any, b: Any) -> bool:
    """Equal, and of equal types all the way down: 1 is not True here, and nan is nan."""
    waiting = [(a, b)]
    while waiting:  # no recursion: a file may hold lists in lists as deep as it likes
        a, b = waiting.pop()
        if type(a) is not type(b):
            return False
        if isinstance(a, dict):
            if list(a) != list(b):
                return False
            waiting.extend((a[key], b[key]) for key in a)
        elif isinstance(a, list | tuple):
            if len(a) != len(b):
                return False
            waiting.extend(zip(a, b, strict=True))
        elif isinstance(a, np.ndarray):
            if a.dtype != b.dtype or not np.array_equal(a, b):
                return False
        elif not (a == b or (a != a and b != b)):
            return False
    return True
