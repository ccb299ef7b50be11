"""What the state of a tree must satisfy, whoever saved it.

A dead block may name a slot that is free or in use again, and after a reorder a slot may be
neither named nor free. Its record is not looked at. Origins may lie too far out or between
blocks, as long as no two live blocks have the same key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from standfast.amr.mesh.arena import INVALID
from standfast.amr.mesh.frontends import Frontend
from standfast.amr.mesh.morton import Words, morton
from standfast.errors import BadField, BadRange, DamagedFile, DuplicateKey

Array = np.ndarray[Any, Any]


def check_state(
    frontend: Frontend,
    base_spacing: float,
    bits_per_dim: int,
    max_level: int,
    blocks: Array,
    field_slots: Words,
    free_slots: Words,
    free_count: int,
    max_blocks: int,
) -> None:
    """Raise what is wrong first, a DamagedFile with the section, the index and what was found."""
    for problem in header_problems(frontend.nd, base_spacing, bits_per_dim, max_level):
        raise problem
    for problem in state_problems(
        frontend.block_size,
        base_spacing,
        bits_per_dim,
        blocks,
        field_slots,
        free_slots,
        free_count,
        max_blocks,
    ):
        raise problem


def header_problems(
    nd: int, base_spacing: float, bits_per_dim: int, max_level: int
) -> Iterator[DamagedFile]:
    """What is wrong with the numbers of a tree."""
    if not (math.isfinite(base_spacing) and base_spacing > 0):
        yield BadField(f"base_spacing: expected a finite number above 0, found {base_spacing!r}")
    most = 64 // nd
    if not (bits_per_dim >= 0 and max_level >= 0 and bits_per_dim + max_level <= most):
        yield BadField(
            f"bits_per_dim and max_level: expected at most {most} together in {nd} dimensions, "
            f"found {bits_per_dim} and {max_level}"
        )


def state_problems(
    block_size: int,
    base_spacing: float,
    bits_per_dim: int,
    blocks: Array,
    field_slots: Words,
    free_slots: Words,
    free_count: int,
    max_blocks: int,
) -> Iterator[DamagedFile]:
    """What is wrong with a list of blocks and its slots: of each kind the first one."""
    if len(field_slots) != len(blocks):
        yield BadField(
            f"field_slots: expected one for each of the {len(blocks):,} blocks, found "
            f"{len(field_slots):,}"
        )
        return
    if len(free_slots) != max_blocks or not 0 <= free_count <= max_blocks:
        yield BadField(
            f"free_slots: expected a word for each of {max_blocks:,} slots and at most so many "
            f"free, found {len(free_slots):,} words and {free_count:,} free"
        )
        return
    live = np.flatnonzero(blocks["block_index"] != INVALID)
    yield from _record_problems(blocks, live, base_spacing, bits_per_dim)
    yield from _key_problems(blocks, live, block_size, bits_per_dim)
    yield from _slot_problems(field_slots, live, free_slots[:free_count], max_blocks)


def _record_problems(
    blocks: Array, live: Array, base_spacing: float, bits_per_dim: int
) -> Iterator[DamagedFile]:
    """Of live blocks: an index that is not the position, a level or a spacing that none has."""
    records = blocks[live]
    if (at := _first(records["block_index"] != live.astype(np.uint64))) is not None:
        yield BadField(
            f"section 'blocks', block {live[at]:,}: expected its position as block_index, or "
            f"2^64 - 1 for a dead block, found {records['block_index'][at]:,}"
        )
    levels = records["level"]
    most = 64 // blocks.dtype["origin"].shape[0] - bits_per_dim
    if (at := _first(levels > most)) is not None:
        yield BadField(
            f"section 'blocks', block {live[at]:,}: expected a level of at most {most}, because "
            f"bits_per_dim is {bits_per_dim}, found {levels[at]}"
        )
    expected = np.ldexp(base_spacing, -levels.astype(np.int32))
    if (at := _first(records["spacing"] != expected)) is not None:
        yield BadField(
            f"section 'blocks', block {live[at]:,}: expected the spacing {expected[at]!s}, for "
            f"base_spacing / 2^{levels[at]}, found {records['spacing'][at]!s}"
        )


def _key_problems(
    blocks: Array, live: Array, block_size: int, bits_per_dim: int
) -> Iterator[DamagedFile]:
    """Two live blocks of one key."""
    records = blocks[live]
    levels = records["level"]
    numbers = morton(records["origin"], levels, block_size, bits_per_dim)
    order = np.lexsort((levels, numbers))
    same = (np.diff(numbers[order]) == 0) & (np.diff(levels[order]) == 0)
    if (at := _first(same)) is not None:
        one, other = sorted((int(order[at]), int(order[at + 1])))
        yield DuplicateKey(
            f"section 'blocks', blocks {live[one]:,} and {live[other]:,}: expected one live block "
            f"at a place, found origins {records['origin'][one].tolist()} and "
            f"{records['origin'][other].tolist()}, both of level {levels[one]}, with one key"
        )


def _slot_problems(
    field_slots: Words, live: Array, free: Words, max_blocks: int
) -> Iterator[DamagedFile]:
    """Slots that are not there, that two have, or that are in use and free."""
    named = field_slots != INVALID
    if (at := _first(named & (field_slots >= max_blocks))) is not None:
        yield BadRange(
            f"section 'field_slots', block {at:,}: expected a slot below {max_blocks:,}, or "
            f"2^64 - 1 for none, found {field_slots[at]:,}"
        )
        return
    if (at := _first(free >= max_blocks)) is not None:
        yield BadRange(
            f"section 'free_slots', word {at:,}: expected a slot below {max_blocks:,}, found "
            f"{free[at]:,}"
        )
        return
    if (twice := _repeated(free)) is not None:
        yield BadRange(
            f"section 'free_slots', words {twice[0]:,} and {twice[1]:,}: expected each slot once, "
            f"found slot {free[twice[0]]:,} in both"
        )
    users = live[named[live]]
    if (twice := _repeated(field_slots[users])) is not None:
        one, other = users[twice[0]], users[twice[1]]
        yield BadRange(
            f"section 'field_slots', blocks {one:,} and {other:,}: expected a slot for each live "
            f"block, found slot {field_slots[one]:,} in both"
        )
    is_free = np.zeros(max_blocks, bool)
    is_free[free] = True
    if (at := _first(is_free[field_slots[users]])) is not None:
        yield BadRange(
            f"section 'field_slots', block {users[at]:,}: expected a slot that is not free, found "
            f"slot {field_slots[users[at]]:,}, which free_slots lists"
        )


def _first(wrong: Array) -> int | None:
    """Where the first True is."""
    return int(wrong.argmax()) if wrong.any() else None


def _repeated(words: Words) -> tuple[int, int] | None:
    """Where a word stands that stands twice, and where it stands again."""
    order = np.argsort(words, kind="stable")
    at = _first(np.diff(words[order]) == 0)
    return None if at is None else (int(order[at]), int(order[at + 1]))
