"""One digest of a state that does not depend on how many ranks saved it, nor in which boxes.

`docs/format.md` has it down to the byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from blake3 import blake3

from standfast.errors import LimitExceeded
from standfast.files.digests import digest_all, tensor_digest
from standfast.files.reader import Progress
from standfast.store.load.needed import bases_of, is_all_of
from standfast.store.query.view import named_leaves
from standfast.store.schema.record import Record
from standfast.store.tree import tree
from standfast.store.tree.aliases import View, c_order
from standfast.store.tree.tree import Ref
from standfast.tensors import source_of

if TYPE_CHECKING:
    from standfast.store.checkpoint import Checkpoint
    from standfast.store.load.reading import Data

MAGIC: Final = b"standfast state 1\n"
_BATCH: Final = 256 << 20
"""So many bytes are verified between two reports of progress."""
_LONGEST: Final = 1024
"""A view has so many times the bytes of its base at most."""
_SMALL: Final = 1 << 20
"""A base of fewer bytes counts as so many there."""

Tie = tuple[int, int, tuple[int, ...]]
"""The first tensor that shares the memory, the bytes from its first element to that of this one,
and this one's strides."""


class TensorState(NamedTuple):
    """What of a tensor counts."""

    dtype: str
    shape: tuple[int, ...]
    tie: Tie | None
    digest: str


@dataclass(frozen=True)
class Logical:
    """What a checkpoint holds, apart from how it lies on the disk."""

    digest: str
    """64 hexadecimal digits over all but what each rank has for itself."""
    own: str | None
    """The same over what each rank has for itself, if there is any."""
    ranks: int
    """How many ranks had something for themselves."""
    tensors: Mapping[str, TensorState]
    values: Mapping[str, Any]
    """Tensors and plain values by their paths, without what is the ranks' own."""


class Difference(NamedTuple):
    """Where two states differ, and how."""

    name: str
    what: str


def logical_digest(checkpoint: Checkpoint, progress: Progress | None = None) -> str:
    """64 hexadecimal digits over a state: its tree, plain values and tensors.

    Boxes, files and the number of ranks do not count, nor does what each rank has for itself:
    `logical` has a digest of that too. Whatever is read is verified.

    >>> logical_digest(store.resolve("gpt@100")) == logical_digest(store.resolve("gpt@200"))
    """
    return logical(checkpoint, progress).digest


def logical(checkpoint: Checkpoint, progress: Progress | None = None) -> Logical:
    """The digests of a state, of all its tensors, and of what is the ranks' own.

    Every byte is read, and verified; there is one tensor in memory at a time, besides the one
    that it is a view of.
    """
    record = checkpoint.record
    tree.decode(record.tree, len(record.names))  # refuses what no writer writes
    shared = _Part()
    shared.put(tree.parse(record.tree))
    own = _Part(is_own=True)
    own.put(shared.own)
    with checkpoint.data() as data:
        digests = dict(_digests(data, [*shared.leaves, *own.leaves], progress))
    text, states = shared.text(), shared.states(record, digests)
    return Logical(
        digest=_digest(text, states),
        own=_digest(own.text(), own.states(record, digests)) if shared.own else None,
        ranks=max(map(len, shared.own), default=0),
        tensors={record.names[n]: state for n, state in zip(shared.leaves, states, strict=True)},
        values=named_leaves(tree.decode(text, len(shared.leaves))),
    )


def differences(one: Logical, other: Logical) -> Iterator[Difference]:
    """What differs between two states: tensors, then plain values, then their containers."""
    count = 0
    for name in {**one.tensors, **other.tensors}:
        what = _tensor_difference(one.tensors.get(name), other.tensors.get(name))
        if what:
            count += 1
            yield Difference(name, what)
    for name in {**one.values, **other.values}:
        before, after = (
            _value_text(each.values[name]) if name in each.values else None for each in (one, other)
        )
        if before != after:
            count += 1
            yield Difference(name, _only_in(before, after) or f"{before} → {after}")
    if not count and one.digest != other.digest:
        yield Difference("state", "the same leaves, in other containers or in another order")


def _tensor_difference(before: TensorState | None, after: TensorState | None) -> str:
    if before is None or after is None:
        return _only_in(before, after)
    if before[:2] != after[:2]:
        texts = (f"{each.dtype} {list(each.shape)}" for each in (before, after))
        return " → ".join(texts)
    if before.digest != after.digest:
        return "other bytes"
    return "" if before.tie == after.tie else "it shares its memory with others"


def _only_in(before: Any, after: Any) -> str:
    if before is None:
        return "only in the second"
    return "only in the first" if after is None else ""


def _value_text(value: Any) -> str:
    """A plain value in the form of the tree, in which every bit shows."""
    return tree.encode(tree.flatten(value)[0], ()).decode()


class _Part:
    """A part of a tree: all that the ranks have in common, or all that is their own.

    Its tensors are numbered as they come in it.
    """

    def __init__(self, is_own: bool = False) -> None:
        self.leaves: list[int] = []
        """The tensor that each leaf is, by its number in the record."""
        self.own: list[Any] = []
        """What the ranks have for themselves at each place, unless this is it."""
        self._is_own = is_own
        self._node: Any = None

    def put(self, node: Any) -> None:
        """Take what `tree.parse` gives."""
        self._node = self._put(node)

    def _put(self, node: Any) -> Any:
        if type(node) is list:
            return [*map(self._put, node)]
        if type(node) is Ref:
            self.leaves.append(node.tensor)
            return Ref(len(self.leaves) - 1)
        if type(node) is not dict:
            return node
        if "$ranks" in node and not self._is_own:
            self.own.append(node["$ranks"])
            return {"$ranks": [None]}
        return dict(zip(node, map(self._put, node.values()), strict=True))

    def text(self) -> bytes:
        """It as the line of a record."""
        return tree.encode(self._node, range(len(self.leaves)))

    def states(self, record: Record, digests: Mapping[int, bytes]) -> list[TensorState]:
        """What counts of each leaf."""
        specs = [record.specs[number] for number in self.leaves]
        return [
            TensorState(spec.dtype, spec.shape, tie, digests[number].hex())
            for spec, tie, number in zip(specs, self._ties(record), self.leaves, strict=True)
        ]

    def _ties(self, record: Record) -> Iterator[Tie | None]:
        """How each leaf lies in memory that another one shares; None, if none does."""
        views = [_view(record, number) for number in self.leaves]
        sharing: dict[int, list[int]] = {}
        for leaf, view in enumerate(views):
            sharing.setdefault(view.base, []).append(leaf)
        for number, view in zip(self.leaves, views, strict=True):
            first, *others = sharing[view.base]
            if not others:
                yield None
                continue
            shape = record.specs[number].array_shape
            # Of a dimension of one it does not matter how far it would be to the next.
            steps = zip(shape, view.strides, strict=True)
            strides = tuple(stride if length > 1 else 0 for length, stride in steps)
            yield first, view.offset - views[first].offset, strides


def _view(record: Record, number: int) -> View:
    """Where a tensor lies in what is stored; one that is no view is all of it."""
    return record.views.get(number) or View(number, 0, c_order(record.specs[number]))


def _digest(text: bytes, states: Iterable[TensorState]) -> str:
    hasher = blake3(MAGIC + text + b"\n")
    for state in states:
        hasher.update(msgspec.json.encode(state) + b"\n")
    return hasher.hexdigest()


def _digests(
    data: Data, numbers: Sequence[int], progress: Progress | None
) -> Iterator[tuple[int, bytes]]:
    """The digest of each tensor, once all of its bytes are verified."""
    record = data.record
    stored = {number for number in numbers if _is_stored(record, number)}
    # What shares its memory is read one after the other.
    read = sorted({*numbers} - stored, key=lambda number: _view(record, number).base)
    rest = sorted({*range(len(record.names))} - record.views.keys() - {*bases_of(record, read)})
    for batch in _batches(record, rest):
        data.check_pieces(batch)
        if progress:
            progress(int(record.nbytes[batch].sum()))
    for number in stored:
        yield number, tensor_digest(record.chunk_digests(_view(record, number).base))
    last = None
    for number in read:
        _check_length(record, number)
        yield number, tensor_digest(digest_all([source_of(data.array(number))]))
        base = _view(record, number).base
        if progress and base != last:
            progress(int(record.nbytes[base]))
        last = base


def _is_stored(record: Record, number: int) -> bool:
    """Whether the digests of a tensor stand in the record, by the chunks of all of it."""
    base = _view(record, number).base
    return base not in record.boxes and (base == number or is_all_of(record, number))


def _batches(record: Record, numbers: Sequence[int]) -> Iterator[list[int]]:
    """Tensors of about so many bytes together."""
    batch: list[int] = []
    size = 0
    for number in numbers:
        batch.append(number)
        size += int(record.nbytes[number])
        if size >= _BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _check_length(record: Record, number: int) -> None:
    """Refuse a view that makes so much of so little that nobody could read to its end."""
    base = _view(record, number).base
    if record.specs[number].nbytes > _LONGEST * max(record.specs[base].nbytes, _SMALL):
        raise LimitExceeded(
            f"tensor {record.names[number]!r:.100}: {record.specs[number].nbytes:,} bytes out of "
            f"{record.specs[base].nbytes:,}"
        )
