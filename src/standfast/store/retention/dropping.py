"""A checkpoint without some of its parts: its record is committed again, and speaks of the rest."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from standfast.store.schema import names
from standfast.store.schema.boxes import renumbered
from standfast.store.schema.extents import columns, extents_of
from standfast.store.schema.record import Part, Record
from standfast.store.tree import tree
from standfast.store.tree.aliases import View


def without_parts(record: Record, keys: Collection[str]) -> Record | None:
    """The record without these parts; None if it has none of them, or what is left needs them.

    Tensors of another part may lie in the memory of one that would go.
    """
    gone = [part for part in record.head.parts if part.key in keys]
    if not gone:
        return None
    lost = {n for part in gone for n in range(part.first, part.first + part.count)}
    kept = [n for n in range(len(record.names)) if n not in lost]
    numbers = {old: new for new, old in enumerate(kept)}
    if any(n in numbers and view.base in lost for n, view in record.views.items()):
        return None
    node = _without(tree.parse(record.tree), {str(p.key) for p in gone})
    try:
        text = tree.encode(node, numbers)
    except KeyError:  # a tensor of a lost part stands in another one too
        return None
    tree.decode(text, len(kept))  # what cannot be read must not be written
    return _record(record, gone, kept, numbers, text)


def _record(
    record: Record, gone: list[Part], kept: list[int], numbers: Mapping[int, int], text: bytes
) -> Record:
    files = {file.name: file for file in record.head.files}
    placed = columns([extents_of(record, n) for n in kept], files)
    parts, first = [], 0
    for part in record.head.parts:
        if part not in gone:
            parts.append(Part(part.key, part.label, first, part.count))
            first += part.count
    head = msgspec.structs.replace(
        record.head,
        tensors=len(kept),
        nbytes=int(record.nbytes[kept].sum()) if kept else 0,
        parts=parts,
        files=placed.data_files,
        dropped=[*record.head.dropped, *(str(part.key) for part in gone)],
    )
    return replace(
        record,
        head=head,
        tree=text,
        names=[record.names[n] for n in kept],
        kinds=[record.kinds[n] for n in kept],
        specs=[record.specs[n] for n in kept],
        counts=placed.counts,
        files=placed.files,
        starts=placed.starts,
        sizes=placed.sizes,
        digests=b"".join(record.chunk_digests(n) for n in kept if n not in record.views),
        views={
            numbers[n]: View(numbers[view.base], view.offset, view.strides)
            for n, view in record.views.items()
            if n in numbers
        },
        boxes=renumbered(record.boxes, numbers),
    )


def _without(node: Any, keys: Collection[str]) -> Any:
    """The node of a whole state, a dict in one of its three forms, without some entries."""
    for form in ("$dict", "$ordered"):
        if form in node:
            pairs = [pair for pair in node[form] if _text_of(pair[0]) not in keys]
            return {**node, form: pairs}
    return {key: value for key, value in node.items() if key not in keys}


def _text_of(key: Any) -> str:
    """A key of the tree as the record's parts have it."""
    return names.key_text(tree.decode(json.dumps(key).encode(), 0))
