"""On rank 0: the shares of all ranks become the one record of the state.

What comes out is what one process with the whole state would have saved, but that a tensor may
lie in several boxes, each written by another rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Final, NamedTuple

import msgspec
import numpy as np

from standfast.errors import BadField, LimitExceeded, RanksDisagree, shortened
from standfast.files.digests import digest
from standfast.store.save.held import OWN, Skeleton
from standfast.store.save.merging import all_files, files_of_all
from standfast.store.save.planning import PlannedTensor, Unique, by_part, parts_of
from standfast.store.schema.boxes import check_boxes, whole_box
from standfast.store.schema.extents import Extent, columns, extents_of
from standfast.store.schema.record import Record
from standfast.store.tree import tree
from standfast.store.tree.aliases import View
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box

_NAMED: Final = 5


class Place(NamedTuple):
    """What a row of a rank is: a box of an item of the skeleton, or the rank's own."""

    item: int
    offsets: tuple[int, ...]
    shape: tuple[int, ...]


class _Piece(NamedTuple):
    """A box of an item, and the row of a record that has it."""

    box: Box
    record: Record
    row: int


def joined(
    skeleton: Skeleton,
    records: Sequence[Record],
    places: Sequence[Sequence[Place]],
    compared: Sequence[bytes],
    others: Sequence[Sequence[Place]],
) -> Record:
    """The record of all; raises RanksDisagree if the ranks do not have one state.

    `places` says what the rows of each rank's record are, and `compared` has the digests of what
    each of them has besides, which are `others`.
    """
    pieces: dict[int, list[_Piece]] = {}
    for record, each in zip(records, places, strict=True):
        for row, (item, offsets, shape) in enumerate(each):
            if item != OWN:
                pieces.setdefault(item, []).append(_Piece(Box(offsets, shape), record, row))
    for found in pieces.values():
        found.sort(key=lambda piece: piece.box)
    _compare(skeleton, pieces, compared, others)
    rows = [_row(item, pieces.get(n, ())) for n, item in enumerate(skeleton.items)]
    own = [*_own_rows(records, places)]
    return _record(skeleton, records, rows, own)


class _Row(NamedTuple):
    """A tensor of the record to be."""

    name: str
    kind: str
    spec: TensorSpec
    extents: list[Extent]
    digests: bytes
    boxes: Sequence[Box]
    """None, if it lies in one piece."""


def _row(item: PlannedTensor, pieces: Sequence[_Piece]) -> _Row:
    if item.view:
        return _Row(item.name, item.kind, item.spec, [], b"", ())
    if not pieces and not item.spec.nbytes:
        return _Row(item.name, item.kind, item.spec, [], digest(np.empty(0, np.uint8)), ())
    boxes = [piece.box for piece in pieces]
    if boxes == [whole_box(item.spec)]:
        boxes = []
    else:
        try:
            check_boxes(item.spec, boxes)
        except (BadField, LimitExceeded) as error:
            raise RanksDisagree(
                f"{shortened(item.name)}: what the ranks have does not make up the tensor: {error}"
            ) from error
    return _Row(
        item.name,
        item.kind,
        item.spec,
        [extent for piece in pieces for extent in extents_of(piece.record, piece.row)],
        b"".join(piece.record.chunk_digests(piece.row) for piece in pieces),
        boxes,
    )


def _compare(
    skeleton: Skeleton,
    pieces: Mapping[int, Sequence[_Piece]],
    compared: Sequence[bytes],
    others: Sequence[Sequence[Place]],
) -> None:
    """Raise RanksDisagree unless all that several ranks have is the same on each of them."""
    found: dict[str, list[int]] = {}
    by_box = {item: {piece.box: piece for piece in each} for item, each in pieces.items()}
    for rank, (digests, places) in enumerate(zip(compared, others, strict=True)):
        at = 0
        for item, offsets, shape in places:
            box = Box(offsets, shape)
            piece = by_box[item][box]
            expected = piece.record.chunk_digests(piece.row)
            if digests[at : at + len(expected)] != expected:
                found.setdefault(skeleton.items[item].name, []).append(rank)
            at += len(expected)
    if not found:
        return
    shown = "; ".join(
        f"{shortened(name)} on rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
        for name, ranks in [*found.items()][:_NAMED]
    )
    more = f"; and {len(found) - _NAMED:,} more" if len(found) > _NAMED else ""
    raise RanksDisagree(
        "a tensor that is not shared out must be the same on all ranks, and these have other bytes "
        f"than the rank that writes them: {shown}{more}; make them the same, or mark what belongs "
        "to one rank alone by standfast.per_rank"
    )


def _own_rows(
    records: Sequence[Record], places: Sequence[Sequence[Place]]
) -> Iterator[tuple[int, int]]:
    """The rows that are the ranks' own: each rank, and the row in its record."""
    for rank, each in enumerate(places):
        assert len(each) == len(records[rank].names)
        yield from ((rank, row) for row, place in enumerate(each) if place.item == OWN)


def _record(
    skeleton: Skeleton,
    records: Sequence[Record],
    rows: list[_Row],
    own: Sequence[tuple[int, int]],
) -> Record:
    """All rows, sorted by part, as one record with the head of the first rank's."""
    leaves, items = len(skeleton.numbers), len(skeleton.items)
    own_numbers = {place: items + n for n, place in enumerate(own)}
    keys = [*skeleton.keys, *(_key(records[rank], row) for rank, row in own)]
    rows = [*rows, *(_own_row(records[rank], row) for rank, row in own)]
    order = by_part(keys)
    number_of = {row: number for number, row in enumerate(order)}
    # In the tree, the leaves of the skeleton come first, and then the rows of each rank.
    firsts = [leaves, *accumulate((len(each.names) for each in records), initial=leaves)][1:]
    numbers = {leaf: number_of[item] for leaf, item in enumerate(skeleton.numbers)}
    numbers |= {firsts[rank] + row: number_of[n] for (rank, row), n in own_numbers.items()}
    nodes = [tree.parse(each.tree, first) for each, first in zip(records, firsts, strict=False)]
    chosen = [rows[n] for n in order]
    placed = columns([row.extents for row in chosen], files_of_all(records))
    unique = Unique()
    return replace(
        records[0],
        head=msgspec.structs.replace(
            records[0].head,
            tensors=len(chosen),
            nbytes=sum(row.spec.nbytes for row in chosen if row.digests),
            parts=parts_of([keys[n] for n in order]),
            files=all_files(placed, records),
        ),
        tree=tree.encode(skeleton.node, numbers, [[*each] for each in zip(*nodes, strict=True)]),
        names=[unique.name(row.name) for row in chosen],
        kinds=[row.kind for row in chosen],
        specs=[row.spec for row in chosen],
        counts=placed.counts,
        files=placed.files,
        starts=placed.starts,
        sizes=placed.sizes,
        digests=b"".join(row.digests for row in chosen),
        views=dict(sorted(_views(skeleton, records, own_numbers, number_of))),
        boxes={number: row.boxes for number, row in enumerate(chosen) if row.boxes},
    )


def _views(
    skeleton: Skeleton,
    records: Sequence[Record],
    own: Mapping[tuple[int, int], int],
    number_of: Mapping[int, int],
) -> Iterator[tuple[int, View]]:
    for n, item in enumerate(skeleton.items):
        if item.view:
            yield number_of[n], replace(item.view, base=number_of[item.view.base])
    for (rank, row), n in own.items():
        if view := records[rank].views.get(row):
            yield number_of[n], replace(view, base=number_of[own[rank, view.base]])


def _key(record: Record, row: int) -> str | None:
    """The part that a row is in."""
    return next(p.key for p in record.head.parts if p.first <= row < p.first + p.count)


def _own_row(record: Record, row: int) -> _Row:
    digests = b"" if row in record.views else record.chunk_digests(row)
    extents = extents_of(record, row)
    return _Row(record.names[row], record.kinds[row], record.specs[row], extents, digests, ())
