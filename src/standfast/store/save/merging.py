"""One checkpoint of what several ranks wrote: their records become one.

What comes out is the record that one process would have made of the union of their states.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import msgspec

from standfast.store.save.planning import Unique, by_part, parts_of
from standfast.store.schema import names
from standfast.store.schema.extents import Columns, columns, extents_of
from standfast.store.schema.record import DataFile, Record
from standfast.store.tree import tree
from standfast.store.tree.aliases import View


def merged(records: Sequence[Record]) -> Record:
    """The record of all tensors and values of these, with the head of the first.

    The states that they were made of are dicts, none with a key that another one has.
    """
    tensors = [(record, n) for record in records for n in range(len(record.names))]
    firsts = [0, *accumulate(len(record.names) for record in records)]
    keys = [part.key for record in records for part in record.head.parts for _ in range(part.count)]
    order = by_part(keys)
    numbers = {item: number for number, item in enumerate(order)}
    unique = Unique()
    chosen = [tensors[item] for item in order]
    placed = columns([extents_of(record, n) for record, n in chosen], files_of_all(records))
    views = {
        numbers[first + n]: View(numbers[first + view.base], view.offset, view.strides)
        for first, record in zip(firsts, records, strict=False)
        for n, view in record.views.items()
    }
    return replace(
        records[0],
        head=msgspec.structs.replace(
            records[0].head,
            tensors=len(order),
            nbytes=sum(record.head.nbytes for record in records),
            parts=parts_of([keys[item] for item in order]),
            files=all_files(placed, records),
        ),
        tree=tree.encode(_union(records, firsts), numbers),
        names=[unique.name(record.names[n]) for record, n in chosen],
        kinds=[record.kinds[n] for record, n in chosen],
        specs=[record.specs[n] for record, n in chosen],
        counts=placed.counts,
        files=placed.files,
        starts=placed.starts,
        sizes=placed.sizes,
        digests=b"".join(record.chunk_digests(n) for record, n in chosen),
        views=dict(sorted(views.items())),
        boxes={
            numbers[first + n]: boxes
            for first, record in zip(firsts, records, strict=False)
            for n, boxes in record.boxes.items()
        },
    )


def distinct_labels(labels: Sequence[Sequence[str]]) -> list[list[str]]:
    """The labels of the ranks' files, none twice: the files of one save differ by them alone."""
    unique = Unique()
    return [[unique.label(names.label_of(label)) for label in each] for each in labels]


def files_of_all(records: Sequence[Record]) -> dict[str, DataFile]:
    """All files that records refer to, by name."""
    return {file.name: file for record in records for file in record.head.files}


def all_files(placed: Columns, records: Sequence[Record]) -> list[DataFile]:
    """The files that tensors lie in, and those with nothing but empty ones."""
    used = {file.name: file for file in placed.data_files}
    empty = {name: file for name, file in files_of_all(records).items() if name not in used}
    return [*used.values(), *empty.values()]


def _union(records: Sequence[Record], firsts: Sequence[int]) -> Any:
    """The nodes of all states as one, its tensors numbered through all records."""
    pairs = zip(records, firsts, strict=False)
    nodes = [tree.parse(record.tree, first) for record, first in pairs]
    if not any("$dict" in node for node in nodes):
        return {key: member for node in nodes for key, member in node.items()}
    # One with keys that JSON has not is written as pairs, and then all of it must be.
    return {
        "$dict": [
            pair for node in nodes for pair in (node["$dict"] if "$dict" in node else node.items())
        ]
    }
