"""Ranks agree on one state, and on who writes what of it.

What each rank says is small as long as the shapes stay: two digests and a size. The rest, which
boxes each rank holds, is told again only when it has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import compress, zip_longest
from operator import not_
from typing import TYPE_CHECKING, Any, Final

import msgspec
from blake3 import blake3

from standfast.errors import RanksDisagree, shortened
from standfast.parallel.assignment import packed, unpacked, writers
from standfast.parallel.communicator import Communicator
from standfast.store.load.filling import leaves_of
from standfast.store.save.held import OWN, Held, divided
from standfast.store.save.joining import Place, joined
from standfast.store.save.planning import Plan
from standfast.store.save.saving import Task
from standfast.store.save.shares import Share, write_share
from standfast.store.schema.record import Record
from standfast.store.tree import tree
from standfast.store.tree.tree import Ref
from standfast.tensors import Source

if TYPE_CHECKING:
    from standfast.store.run import Run

_SHOWN: Final = 3
_HEADER: Final = 256
"""What a tensor takes in a header, about, besides its name."""


class _Word(msgspec.Struct, frozen=True, array_like=True):
    """What a rank says of its state before each save."""

    shape: bytes
    """A digest of the tensors: names, kinds, dtypes, shapes."""
    values: bytes
    """A digest of the tree with its plain values."""
    holding: bytes
    """A digest of the boxes that this rank holds."""
    most: int
    remembered: bytes
    """A digest of what this rank knows of the save before; empty, if that is nothing."""


@dataclass(frozen=True)
class Shared:
    """What a rank has to do in a save."""

    held: Held
    written: Sequence[int]
    """The rows that it writes."""
    plan: Plan
    """Of these."""
    common: int
    """The bytes of all that is not one rank's own, which all ranks write together."""
    places: Sequence[Sequence[Place]]
    """Of each rank, what the rows of its share are."""
    others: Sequence[Sequence[Place]]
    """Of each rank, the rows that it has, and another one writes; both are for rank 0 alone."""
    most: int = 0
    """What all ranks write at most."""

    def write(self, run: Run, task: Task, check: Callable[[], None] = lambda: None) -> Share:
        """Write this rank's share in this process: see `write_share`."""
        run.store.index.refresh()
        compared = compared_in(self.held.plan, self.written)
        return write_share(run.assembler(), task, compared, check)

    def join(self, records: Sequence[Record], shares: Sequence[Share]) -> Record:
        """On rank 0: the record of all."""
        return joined(
            self.held.skeleton,
            records,
            self.places,
            [each.compared for each in shares],
            self.others,
        )


def compared_in(plan: Plan, written: Sequence[int]) -> list[Source]:
    """The rows of a rank that another one writes."""
    mine = {*written}
    return [t.source for n, t in enumerate(plan.tensors) if t.source and n not in mine]


class Sharing:
    """Remembers what the ranks have agreed on for the state before."""

    def __init__(self) -> None:
        self._held: Held | None = None
        self._digests: tuple[bytes, bytes] = (b"", b"")
        self._words: list[tuple[bytes, bytes]] = []
        self._shared: Shared | None = None
        self._rank = -1

    def share_out(self, comm: Communicator, held: Held) -> Shared:
        """Collective: who writes what; raises RanksDisagree if the states are not one."""
        shape, holding = self._digests_of(held)
        text = held.skeleton.text()
        rows = zip(held.items, held.plan.tensors, strict=True)
        most = sum(_HEADER + len(t.name) + (t.nbytes if n == OWN else 0) for n, t in rows)
        is_same_rank = self._shared is not None and self._rank == comm.rank
        remembered = _digest_of(self._words) if is_same_rank else b""
        word = _Word(shape, blake3(text).digest(), holding, most, remembered)
        words = [
            msgspec.msgpack.decode(each, type=_Word)
            for each in comm.all_gather(msgspec.msgpack.encode(word))
        ]
        if len({each.shape for each in words}) > 1:
            raise _other_shapes(comm, held)
        if len({each.values for each in words}) > 1:
            raise _other_values(comm, text)
        known = [(each.shape, each.holding) for each in words]
        before = self._shared
        # All or none: one that opened the run anew, or is another rank by now, knows nothing.
        agreed = _digest_of(known)
        if before is None or any(each.remembered != agreed for each in words):
            shared = _shared(comm, held)
        else:
            plan = divided(held.plan, before.written, comm.rank, before.plan)
            shared = replace(before, held=held, plan=plan)
        shared = replace(shared, most=shared.common + sum(each.most for each in words))
        self._words, self._rank = known, comm.rank
        # What is remembered must keep no tensor alive.
        bare = replace(held, plan=_without_sources(held.plan))
        self._shared = replace(shared, held=bare, plan=_without_sources(shared.plan))
        return shared

    def _digests_of(self, held: Held) -> tuple[bytes, bytes]:
        """Those of the tensors and of the boxes; made anew only if they are others."""
        before = self._held
        if before is None or not _is_like(before, held):
            self._digests = held.skeleton.shape_digest(), held.rows_digest()
            self._held = replace(held, plan=_without_sources(held.plan))
        return self._digests


def _is_like(one: Held, other: Held) -> bool:
    """Whether two states have the same tensors in the same boxes."""
    mine, its = one.skeleton, other.skeleton
    return (
        (mine.items is its.items or mine.items == its.items)
        and mine.own == its.own
        and one.items == other.items
        and one.boxes == other.boxes
        and one.plan.parts == other.plan.parts
        and len(one.plan.tensors) == len(other.plan.tensors)
        and all(
            a[:5] == b[:5] and a.view == b.view
            for a, b in zip(one.plan.tensors, other.plan.tensors, strict=True)
        )
    )


def _without_sources(plan: Plan) -> Plan:
    return replace(plan, tensors=[tensor._replace(source=None) for tensor in plan.tensors])


def _digest_of(words: Sequence[tuple[bytes, bytes]]) -> bytes:
    return blake3(b"".join(part for word in words for part in word)).digest()


class _Rows(msgspec.Struct, frozen=True, array_like=True):
    """What all ranks must know of one's rows."""

    holding: bytes
    items: list[int]
    """The item of each row."""
    offsets: list[tuple[int, ...]]
    shapes: list[tuple[int, ...]]


def _shared(comm: Communicator, held: Held) -> Shared:
    """Tell all ranks what this one holds, and share out what is written."""
    mine = _Rows(
        packed(held.holding()),
        [*held.items],
        [box.offsets for box in held.boxes],
        [box.shape for box in held.boxes],
    )
    told = [
        msgspec.msgpack.decode(each, type=_Rows)
        for each in comm.all_gather(msgspec.msgpack.encode(mine))
    ]
    holdings = [unpacked(each.holding) for each in told]
    masks = writers(holdings)
    pairs = zip(holdings, masks, strict=True)
    common = sum(int(each.nbytes[mask].sum()) for each, mask in pairs)
    written, places, others = [], [], []
    for each, mask in zip(told, masks, strict=True):
        writes = iter(mask.tolist())
        chosen = [item == OWN or next(writes) for item in each.items]
        rows = zip(each.items, each.offsets, each.shapes, strict=True)
        held_places = [Place(*row) for row in rows]
        written.append([row for row, is_written in enumerate(chosen) if is_written])
        places.append([*compress(held_places, chosen)])
        others.append([*compress(held_places, map(not_, chosen))])
    own = written[comm.rank]
    plan = divided(held.plan, own, comm.rank)
    if comm.rank != 0:
        places, others = [], []
    return Shared(held, own, plan, common, places, others)


def _other_shapes(comm: Communicator, held: Held) -> RanksDisagree:
    """Collective: the error that names the first tensor that is not the same on all ranks."""
    items = held.skeleton.items
    mine = [[item.name, item.kind, item.spec.dtype, list(item.spec.shape)] for item in items]
    told = [msgspec.msgpack.decode(each) for each in comm.all_gather(msgspec.msgpack.encode(mine))]
    for rank, theirs in enumerate(told):
        for one, other in zip_longest(told[0], theirs):
            if one != other:
                return RanksDisagree(
                    f"the states of the ranks are not one: rank 0 has {_tensor(one)}, and rank "
                    f"{rank} has {_tensor(other)}; what belongs to one rank alone is marked by "
                    "standfast.per_rank"
                )
    return RanksDisagree(
        "the ranks do not agree on which tensors share memory, or on what is per_rank"
    )


def _tensor(described: Any) -> str:
    if described is None:
        return "nothing in its place"
    name, kind, dtype, shape = described
    return f"{shortened(name)} ({kind}, {dtype}, {shape})"


def _other_values(comm: Communicator, text: bytes) -> RanksDisagree:
    """Collective: the error that names the first plain value that is not the same on all ranks."""
    texts = comm.all_gather(text)
    first = next(rank for rank, each in enumerate(texts) if each != texts[0])
    found = [*_differences(texts[0], texts[first])][:_SHOWN]
    what = "; ".join(
        f"{shortened(path)} is {shortened(repr(a))} on rank 0 and {shortened(repr(b))} on rank "
        f"{first}"
        for path, a, b in found
    )
    return RanksDisagree(
        "a plain value must be the same on all ranks, and is not: "
        f"{what or 'the order of their keys differs'}; give all the same, or mark it by "
        "standfast.per_rank"
    )


def _differences(one: bytes, other: bytes) -> Iterator[tuple[str, Any, Any]]:
    a, b = leaves_of(tree.parse(one)), leaves_of(tree.parse(other))
    for path in {**a, **b}:
        mine, its = a.get(path, "absent"), b.get(path, "absent")
        if not isinstance(mine, Ref) and not isinstance(its, Ref) and repr(mine) != repr(its):
            yield path, mine, its
