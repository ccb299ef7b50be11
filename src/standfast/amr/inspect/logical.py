"""One digest of a state that does not depend on how it is divided, nor on where it lies.

`docs/amr.md` has it down to the byte.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
from blake3 import blake3

from standfast.amr.inspect.description import check
from standfast.amr.inspect.items import Items
from standfast.amr.inspect.trees import SavedState, SavedTree, Source, opened
from standfast.amr.mesh.arena import INVALID
from standfast.errors import IncompatibleCheckpoint, RanksDisagree
from standfast.files.digests import DIGEST, worker_count
from standfast.files.reader import Progress
from standfast.files.threads import Threads
from standfast.formats.sunc.header import Header

MAGIC: Final = b"standfast logical 1\n"
_COMMON: Final = ("nd", "block_size", "field_bytes", "base_spacing")
"""What is the same in all files of one state."""
_NOTHING: Final = bytes(DIGEST)
"""In the place of the digest of a field or of links that a block does not have."""


def logical_digest(*sources: Source, progress: Progress | None = None) -> str:
    """64 hexadecimal digits over all that the live blocks of a state are.

    The sources are one snapshot of a store, or the `.sunc` files (or trees with their arenas) of
    all ranks. Slots, the order of lists, dead blocks, and which rank has which block do not count.
    Whatever is read is verified. A block that two ranks hold must be the same in both, and counts
    once; if it is not, RanksDisagree is raised.

    >>> standfast.amr.logical_digest("run_step100_rank0.sunc", "run_step100_rank1.sunc")
    """
    with opened(*sources) as state:
        return digest_of(state, progress)


def digest_of(state: SavedState, progress: Progress | None = None) -> str:
    """The logical digest of what is open already; raises a DamagedFile for an unsound tree."""
    first = state.trees[0]
    entries: dict[tuple[int, ...], tuple[bytes, str]] = {}
    for tree in state.trees:
        _check_common(first, tree)
        check(tree)
        for place, entry in _entries(tree, progress):
            found, label = entries.setdefault(place, (entry, tree.label))
            if found != entry:
                level, *origin = place
                raise RanksDisagree(
                    f"{label} and {tree.label} both have the block of level {level} at "
                    f"{tuple(origin)}, and not the same: give the files of one step, each once"
                )
    hasher = blake3(MAGIC + _head(first.header, first.group, len(entries)))
    for place in sorted(entries):
        hasher.update(entries[place][0])
    return hasher.hexdigest()


def _check_common(first: SavedTree, other: SavedTree) -> None:
    pairs = {name: (getattr(first.header, name), getattr(other.header, name)) for name in _COMMON}
    pairs["the N of its links"] = first.group, other.group
    for name, (a, b) in pairs.items():
        if a != b:
            raise IncompatibleCheckpoint(
                f"{other.label}: {name} is {b!r}, and {a!r} in {first.label}: they are not of one "
                "state"
            )


def _head(header: Header, group: int, blocks: int) -> bytes:
    return struct.pack(
        "<QQQQdQ",
        *(header.nd, header.block_size, header.field_bytes, group),
        header.base_spacing,
        blocks,
    )


def _entries(tree: SavedTree, progress: Progress | None) -> Iterator[tuple[tuple[int, ...], bytes]]:
    """The place of each live block, (level, origin…), and what the digest has of it."""
    live = np.flatnonzero(tree.is_live)
    slots = tree.field_slots[live]
    fields = _digests(tree.fields, slots[slots != INVALID].astype(np.int64), progress)
    links = {} if tree.links is None else _digests(tree.links, live, progress)
    blocks = tree.blocks[live]
    for index, slot, level, origin, spacing in zip(
        live.tolist(),
        slots.tolist(),
        blocks["level"].tolist(),
        blocks["origin"].tolist(),
        blocks["spacing"].tolist(),
        strict=True,
    ):
        place = (level, *origin)
        where = struct.pack(f"<{len(place)}Qd", *place, spacing)
        yield place, where + fields.get(slot, _NOTHING) + links.get(index, _NOTHING)


def _digests(items: Items, wanted: Any, progress: Progress | None) -> dict[int, bytes]:
    """The BLAKE3 digest of each item that is wanted, by its number; hashed on several threads."""
    wanted = np.sort(wanted)

    def hash_window(window: tuple[int, int, Any]) -> Sequence[tuple[int, bytes]]:
        start, stop, _ = window
        chosen = wanted[np.searchsorted(wanted, start) : np.searchsorted(wanted, stop)].tolist()
        if not chosen:
            return []
        first = chosen[0]
        rows = items.read(first, chosen[-1] + 1)
        found = [(number, blake3(rows[number - first].data).digest()) for number in chosen]
        if progress:
            progress(rows.nbytes)
        return found

    with Threads(worker_count()) as pool:
        return {
            number: digest
            for found in pool.map(hash_window, items.windows)
            for number, digest in found
        }
