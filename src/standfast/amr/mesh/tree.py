"""The tree: blocks of several levels, which are inserted, refined, coarsened and reordered."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from standfast.amr.mesh.arena import INVALID, FieldArena
from standfast.amr.mesh.block_list import BlockList, Indices, Records
from standfast.amr.mesh.frontends import Frontend, check_savable
from standfast.amr.mesh.morton import Key, Words, key_of
from standfast.amr.mesh.origins import (
    Origin,
    check_origin,
    child_origins,
    in_child_order,
    whole_numbers,
)
from standfast.amr.mesh.restriction import restrict
from standfast.errors import (
    BadBlock,
    BadOption,
    BlockAlreadyExists,
    BlockNotFound,
    GhostsInUse,
    MaxRefinementExceeded,
)

if TYPE_CHECKING:
    from standfast.amr.ghosts.fields import Ghosts
    from standfast.amr.mesh.apply import Outside, Patch
    from standfast.amr.regrid.adapt import Adapted
    from standfast.amr.shard import ShardContext


class AMRTree:
    """Blocks of several levels, each twice as fine as the one below it.

    The list of blocks is a part of the state: its order decides on the order of work. A block
    that dies stays in it, with its slot, until `reorder`. Whatever is refused changes nothing.

    >>> tree = AMRTree(frontend, base_spacing=0.5, bits_per_dim=4, max_level=6)
    >>> block = tree.insert_block_with_field((0, 0), 0, arena)
    """

    def __init__(
        self, frontend: Frontend, base_spacing: float, bits_per_dim: int, max_level: int
    ) -> None:
        check_savable(frontend)
        spacing = float(base_spacing)
        if not 0 < spacing < float("inf"):
            raise BadOption(f"base_spacing={base_spacing!r}: it is a finite number above 0")
        self.frontend: Final = frontend
        self.base_spacing: Final = spacing
        self.bits_per_dim: Final = _small(bits_per_dim, "bits_per_dim")
        self.max_level = max_level
        self._list = BlockList(frontend.nd, frontend.block_size, self.bits_per_dim)
        self._busy = False
        self.shard: ShardContext | None = None
        """Which rank has which block, if there are several."""

    @classmethod
    def restored(
        cls,
        frontend: Any,
        base_spacing: float,
        bits_per_dim: int,
        max_level: int,
        blocks: Records,
        field_slots: Words,
    ) -> Self:
        """A tree of a saved list of blocks, which was checked before; both become its own."""
        tree = cls(frontend, base_spacing, bits_per_dim, max_level)
        tree._list.restore(blocks, field_slots)
        return tree

    @property
    def max_level(self) -> int:
        """The highest level that a block may be refined to; it may be set."""
        return self._max_level

    @max_level.setter
    def max_level(self, level: int) -> None:
        level = _small(level, "max_level")
        most = 64 // self.frontend.nd
        if self.bits_per_dim + level > most:
            raise BadOption(
                f"bits_per_dim={self.bits_per_dim} and max_level={level}: in "
                f"{self.frontend.nd} dimensions they may be {most} together"
            )
        self._max_level = level

    # What is there

    @property
    def blocks(self) -> Records:
        """All blocks, dead ones too, as an array of records; see docs/formats/sunc.md."""
        return self._list.records

    @property
    def field_slots(self) -> Words:
        """The slot of each block's field in the arena; INVALID if it has none."""
        return self._list.slots

    @property
    def live(self) -> Indices:
        """The indices of the blocks that are not dead, in the order of the list."""
        return self._list.live

    def __len__(self) -> int:
        """How many blocks are in the list, dead ones too."""
        return len(self._list)

    def __repr__(self) -> str:
        levels = np.bincount(self.blocks["level"][self.live]).tolist()
        shown = " + ".join(map(str, levels)) or "none"
        return f"<{type(self).__name__} of {len(self.live):,} live blocks, by level {shown}>"

    def keys(self) -> list[Key]:
        """The keys of the live blocks, in the order of the list."""
        return self._list.keys()

    def key(self, origin: Sequence[int], level: int) -> Key:
        """The key of a block that there may be; raises BadBlock for what is no place."""
        place, number = whole_numbers(origin, level, self.frontend.nd)
        return key_of(place, number, self.frontend.block_size, self.bits_per_dim)

    def find(self, origin: Sequence[int], level: int) -> int | None:
        """The index of the live block at this place, if there is one."""
        index = self.find_key(self.key(origin, level))
        if index is None or self.blocks[index]["origin"].tolist() != list(origin):
            return None  # another one may share the key of a place too far out
        return index

    def find_key(self, key: Key) -> int | None:
        """The index of the live block with this key, if there is one."""
        return self._list.find(key)

    def block(self, index: int) -> Any:
        """The record of a live block; raises BlockNotFound."""
        number = operator.index(index)
        if not 0 <= number < len(self):
            raise BlockNotFound(f"there is no block {number} among the {len(self):,} of the tree")
        record = self.blocks[number]
        if record["block_index"] == INVALID:
            raise BlockNotFound(f"block {number} is dead")
        return record

    def spacing(self, level: int) -> float:
        """The distance of two sites of a level."""
        return float(self.base_spacing / 2**level)

    # How it changes

    def insert_block(self, origin: Sequence[int], level: int) -> int:
        """Append a block without a field; returns its index.

        The origin counts sites of the block's own level, in whole blocks.
        """
        self.check_idle()
        return self._append(*self._new_place(origin, level))

    def insert_block_with_field(self, origin: Sequence[int], level: int, arena: FieldArena) -> int:
        """Append a block with a slot of the arena; if that is full, nothing is changed."""
        self.check_idle()
        place = self._new_place(origin, level)
        self.reserve(1)
        slot = arena.alloc()
        index = self._append(*place)
        self.field_slots[index] = slot
        return index

    def invalidate_block(self, index: int) -> None:
        """Let a block die; its entry stays in the list, and goes on naming its slot."""
        self.check_idle()
        self.block(index)
        self._list.kill(operator.index(index))

    def refine_block(self, index: int) -> list[int]:
        """Put 2^nd finer blocks, without fields, in the place of a block; returns their indices.

        Bit d of a child's number says which half it is in dimension d. The parent dies and goes
        on naming its slot.
        """
        self.check_idle()
        block = self.block(index)
        level = int(block["level"]) + 1
        if level > self.max_level:
            raise MaxRefinementExceeded(
                f"block {index} is of level {level - 1}, and the highest is {self.max_level}"
            )
        origins = self.child_origins(block["origin"].tolist())
        places = [self._vacant(origin, level) for origin in origins]
        self.reserve(len(places))
        self.invalidate_block(index)
        return [self._append(*place) for place in places]

    def child_origins(self, parent: Sequence[int]) -> list[Origin]:
        """Where the children of a block begin, in the order of their numbers."""
        return child_origins(parent, self.frontend.block_size)

    def coarsen_blocks(self, children: Sequence[int], arena: FieldArena) -> int:
        """Put one coarser block in the place of 2^nd siblings; returns its index.

        Its field is the mean of theirs. They give their slots back and die.
        """
        self.check_idle()
        children = self._siblings(children)
        first = self.blocks[children[0]]
        origin = [value // 2 for value in first["origin"].tolist()]
        place = self._vacant(origin, int(first["level"]) - 1)
        slots = self.field_slots[children]
        with_field = slots != INVALID
        if with_field.any() and not with_field.all():
            raise BadBlock(f"some of the blocks {children} have a field, and some have none")
        has_field = bool(with_field.all())
        for slot in slots.tolist() if has_field else ():
            arena.check_taken(slot)
        mean = restrict(arena.storage[slots], self.frontend) if has_field else None
        self.reserve(1)
        slot = arena.alloc() if has_field else INVALID
        parent = self._append(*place)
        self.field_slots[parent] = slot
        if has_field:
            arena.storage[slot] = mean
        for child in children:
            if has_field:
                arena.free(int(self.field_slots[child]))
                self.field_slots[child] = INVALID
            self._list.kill(child)
        return parent

    def reorder(self) -> Words:
        """Drop the dead blocks and sort the others by place; returns the new index of each.

        A dropped one's is INVALID. Slots stay where they are: `arena.defragment` moves them.
        """
        self.check_idle()
        moved = np.full(len(self), INVALID, np.uint64)
        blocks, order = self._list.sorted()
        moved[order] = np.arange(len(order), dtype=np.uint64)
        self._reordered(order)
        self._list = blocks
        return moved

    # Many blocks at once; see draft.py

    def reserve(self, count: int) -> None:
        """Take memory for so many more blocks, so that adding them cannot fail for want of it."""
        self._list.reserve(count)
        self._make_room(len(self) + count)

    def drafted(self) -> BlockList:
        """A copy of the list, to be changed and adopted."""
        return self._list.copy()

    def adopt(self, blocks: BlockList) -> None:
        """Take a list that was drafted; those of its blocks that are new were reserved."""
        before = len(self)
        self._list = blocks
        self._appended(before)

    # Ghosts, kernels, ranks

    def attach_shard(self, shard: ShardContext | None) -> None:
        """From now on this is the part of a larger tree that one rank has."""
        self.shard = shard

    def fill_ghosts(self, arena: FieldArena) -> Ghosts:
        """The layer of sites around every live block; collective, if there is a shard."""
        from standfast.amr.ghosts.fields import fill_ghosts

        return fill_ghosts(self, arena)

    def apply(
        self,
        kernel: Callable[[Patch], Any],
        arena: FieldArena,
        outside: Outside = 0.0,
    ) -> None:
        """Update the fields of all live blocks at once; collective, if there is a shard.

        The kernel gets all blocks of a level, with the sites around them, and returns their new
        fields. `outside` is the field beyond an open border, a number or one for each component;
        None continues the border's.
        """
        from standfast.amr.mesh.apply import apply

        apply(self, kernel, arena, outside)

    def adapt_mesh(self, arena: FieldArena, threshold: float, hysteresis: float = 0.5) -> Adapted:
        """Refine where the field is steep, coarsen where it is flat; collective, if sharded."""
        from standfast.amr.regrid.adapt import adapt_mesh

        return adapt_mesh(self, arena, threshold, hysteresis)

    @contextmanager
    def applying(self) -> Iterator[None]:
        """While this lasts, fields and ghosts do not match: whoever saves or changes is refused."""
        self.check_idle()
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    def check_idle(self) -> None:
        """Raise GhostsInUse inside `apply`."""
        if self._busy:
            raise GhostsInUse(
                "a kernel is being applied: save or change the tree after `apply` has returned"
            )

    # Within

    def _new_place(self, origin: Sequence[int], level: int) -> tuple[Origin, int, Key]:
        """A vacant place of a level that the tree has."""
        place, number, key = self._vacant(origin, level)
        if number > self.max_level:
            raise BadBlock(f"level {number}: the tree has the levels 0 to {self.max_level}")
        return place, number, key

    def _vacant(self, origin: Sequence[int], level: int) -> tuple[Origin, int, Key]:
        """A place where a block can lie and none does; raises BadBlock or BlockAlreadyExists."""
        place, number = whole_numbers(origin, level, self.frontend.nd)
        check_origin(place, self.frontend.block_size, self.bits_per_dim)
        key = key_of(place, number, self.frontend.block_size, self.bits_per_dim)
        if (found := self.find_key(key)) is not None:
            raise BlockAlreadyExists(
                f"the block at {place} of level {number} is in the tree: block {found}"
            )
        return place, number, key

    def _append(self, place: Origin, level: int, key: Key) -> int:
        self._make_room(len(self) + 1)
        index = self._list.append(place, self.spacing(level), level, key)
        self._appended(index)
        return index

    def _siblings(self, children: Sequence[int]) -> list[int]:
        """All children of one parent in the order of their numbers; raises BadBlock."""
        given = [operator.index(child) for child in children]
        blocks = [self.block(child) for child in given]
        levels = {int(block["level"]) for block in blocks}
        origins = {
            tuple(block["origin"].tolist()): n for n, block in zip(given, blocks, strict=True)
        }
        siblings = in_child_order(origins, self.frontend.block_size)
        if siblings is None or len(given) != len(siblings) or len(levels) != 1 or 0 in levels:
            raise BadBlock(
                f"blocks {given} are not the {2**self.frontend.nd} children of one block"
            )
        return siblings

    def _reordered(self, order: Indices) -> None:
        """The block that is at `order[i]` becomes block i; for what hangs on blocks."""

    def _make_room(self, count: int) -> None:
        """There will be so many blocks; for what hangs on blocks."""

    def _appended(self, first: int) -> None:
        """The blocks from this one on are new; for what hangs on blocks."""


def _small(value: Any, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number <= 64:
        raise BadOption(f"{name}={value!r}: it is a whole number from 0 to 64")
    return number
