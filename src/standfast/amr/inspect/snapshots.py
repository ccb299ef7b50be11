"""Snapshots in a store as they were saved, to be looked at without restoring them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import numpy as np

from standfast.amr.inspect.items import SlabItems
from standfast.amr.inspect.trees import SavedState, SavedTree, group_of, link_bytes
from standfast.amr.snapshot.parts import SIMULATION, SavedParts, SavedRank
from standfast.amr.sunc.checkpoint import header_of
from standfast.errors import BadField
from standfast.formats.sunc.file import block_dtype
from standfast.store import Checkpoint
from standfast.store.load.reading import Data
from standfast.store.tree.tree import build, decode

FAMILY: Final = "standfast snapshot "
"""What the format of a snapshot begins with, of whatever version it is."""
SECTIONS: Final = ("blocks", "field_slots", "free_slots", "storage", "links")
"""The tensors of a rank's tree."""


def is_snapshot(checkpoint: Checkpoint) -> bool:
    """Whether a checkpoint says that it is a snapshot of a simulation."""
    saved = _described(checkpoint)
    found = saved.get(SIMULATION) if isinstance(saved, dict) else None
    kind = found.get("format") if isinstance(found, dict) else None
    return isinstance(kind, str) and kind.startswith(FAMILY)


@contextmanager
def opened_snapshot(checkpoint: Checkpoint) -> Iterator[SavedState]:
    """A snapshot to be looked at; raises BadOption for a checkpoint that is none."""
    parts = SavedParts(checkpoint)
    ranks = [parts.rank(number) for number in range(parts.ranks)]
    described = _described(checkpoint)
    wanted = [
        tensor
        for rank in ranks
        for tensor in (
            *(rank.blocks, rank.field_slots, rank.free_slots),
            *(*rank.storage, *rank.links),
        )
    ]
    with checkpoint.data(tensors=wanted) as data:

        def check_rest() -> None:
            data.check()
            _check_beside(checkpoint, wanted)

        yield SavedState(
            label=checkpoint.ref,
            trees=[_tree(parts, rank, data, f"rank {n}") for n, rank in enumerate(ranks)],
            has_digests=True,
            check_rest=check_rest,
            simulation=described[SIMULATION],
            random=[described[f"rank{n}"]["random"] for n in range(parts.ranks)],
        )


def _described(checkpoint: Checkpoint) -> Any:
    """The state, with a text in the place of each tensor."""
    record = checkpoint.record
    specs = record.specs

    def text(tensor: int) -> str:
        return f"a tensor of {specs[tensor].dtype}, {list(specs[tensor].shape)}"

    return build(decode(record.tree, len(record.names)), text)


def _check_beside(checkpoint: Checkpoint, tree: Sequence[int]) -> None:
    """Verify the headers of all files, and all tensors but those of the tree."""
    record = checkpoint.record
    for file in record.head.files:
        checkpoint.check_header(file)
    rest = set(range(len(record.names))) - set(tree)
    with checkpoint.data(tensors=sorted(rest)) as data:
        data.check()


def _tree(parts: SavedParts, rank: SavedRank, data: Data, label: str) -> SavedTree:
    frontend = parts.frontend
    header = header_of(
        frontend,
        blocks=rank.block_count,
        max_blocks=rank.max_blocks,
        free_count=rank.free_count,
        base_spacing=rank.base_spacing,
        bits_per_dim=rank.bits_per_dim,
        max_level=rank.max_level,
    )
    try:
        header.validate()
    except BadField as error:
        raise BadField(f"{label}: header: {error}") from error
    records = np.ascontiguousarray(data.array(rank.blocks)).reshape(-1)
    return SavedTree(
        label=label,
        header=header,
        group=group_of(frontend) if parts.is_gauge else 0,
        number=frontend.dtype,
        blocks=records.view(block_dtype(frontend.nd)),
        field_slots=data.array(rank.field_slots),
        free_slots=data.array(rank.free_slots),
        fields=SlabItems(data, rank.storage, header.block_volume * header.field_bytes),
        links=SlabItems(data, rank.links, link_bytes(frontend)) if parts.is_gauge else None,
    )
