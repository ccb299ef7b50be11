"""The list of a tree's blocks, and the keys by which those that live are found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Self

import numpy as np

from standfast.amr.mesh.arena import INVALID
from standfast.amr.mesh.morton import Key, Words, key_of, keys_of, morton
from standfast.formats.sunc.file import block_dtype

Records = np.ndarray[Any, Any]
Indices = np.ndarray[Any, np.dtype[np.intp]]

_FIRST: Final = 16
"""How many blocks there is room for at first."""


class BlockList:
    """Records of blocks with their slots: a list that is only ever appended to, until it is sorted.

    A block that dies stays in it, with all that its record says but its index.
    """

    def __init__(self, nd: int, block_size: int, bits_per_dim: int) -> None:
        self._block_size = block_size
        self._bits_per_dim = bits_per_dim
        self._records: Records = np.zeros(_FIRST, block_dtype(nd))
        self._slots: Words = np.zeros(_FIRST, np.uint64)
        self._count = 0
        self._index: dict[Key, int] = {}

    def restore(self, records: Records, slots: Words) -> None:
        """Hold a saved list, which was checked before; both arrays become its own."""
        records["padding"] = 0  # it means nothing: equal trees give equal bytes
        self._records, self._slots, self._count = records, slots, len(records)
        self._rebuild_index()

    def __len__(self) -> int:
        """How many blocks there are, dead ones too."""
        return self._count

    @property
    def records(self) -> Records:
        """All blocks, dead ones too; an append may leave this array behind."""
        return self._records[: self._count]

    @property
    def slots(self) -> Words:
        """The slot of each block."""
        return self._slots[: self._count]

    @property
    def live(self) -> Indices:
        """The indices of the blocks that are not dead."""
        return np.flatnonzero(self.records["block_index"] != INVALID)

    def keys(self) -> list[Key]:
        """The keys of the live blocks."""
        return keys_of(self.records[self.live], self._block_size, self._bits_per_dim)

    def find(self, key: Key) -> int | None:
        """The index of the live block with this key, if there is one."""
        return self._index.get(key)

    def copy(self) -> Self:
        """A list of its own with the same blocks."""
        other = self._like(self.records.copy(), self.slots.copy())
        other._index = self._index.copy()
        return other

    def reserve(self, count: int) -> None:
        """Take memory for so many more blocks, if there is none."""
        needed = self._count + count
        if needed > len(self._records):
            room = max(_FIRST, needed, 2 * self._count)
            records, slots = np.zeros(room, self._records.dtype), np.zeros(room, np.uint64)
            records[: self._count], slots[: self._count] = self.records, self.slots
            self._records, self._slots = records, slots

    def append(self, origin: Sequence[int], spacing: float, level: int, key: Key) -> int:
        """A new block without a slot; returns its index. Nothing else may have its key."""
        self.reserve(1)
        index = self._count
        self._records[index] = (origin, spacing, index, level, [0] * 7)
        self._slots[index] = INVALID
        self._index[key] = index
        self._count += 1
        return index

    def append_all(
        self, origins: Any, spacings: Any, levels: Any, slots: Words
    ) -> tuple[int, int | None]:
        """New blocks with their slots; returns the index of the first.

        And which of them, if there is one, has the key of another block: then none is appended.
        """
        first, count = self._count, len(levels)
        records: Records = np.zeros(count, self._records.dtype)
        records["origin"], records["spacing"], records["level"] = origins, spacings, levels
        records["block_index"] = np.arange(first, first + count)
        keys = keys_of(records, self._block_size, self._bits_per_dim)
        taken = next((number for number, key in enumerate(keys) if key in self._index), None)
        if taken is None:
            self.reserve(count)
            self._records[first : first + count] = records
            self._slots[first : first + count] = slots
            self._index.update(zip(keys, range(first, first + count), strict=True))
            self._count += count
        return first, taken

    def kill(self, index: int) -> None:
        """Let a live block die."""
        origin, _, _, level, _ = self._records[index].item()
        del self._index[key_of(origin.tolist(), level, self._block_size, self._bits_per_dim)]
        self._records["block_index"][index] = INVALID

    def kill_all(self, indices: Any) -> None:
        """Let live blocks die."""
        for key in keys_of(self._records[indices], self._block_size, self._bits_per_dim):
            del self._index[key]
        self._records["block_index"][indices] = INVALID

    def sorted(self) -> tuple[Self, Indices]:
        """A list of the live blocks alone, sorted by key, and which block each one was."""
        live = self.live
        records = self.records[live]
        levels = records["level"]
        numbers = morton(records["origin"], levels, self._block_size, self._bits_per_dim)
        order = live[np.lexsort((levels, numbers))]  # stable: ties keep their order
        other = self._like(self._records[order], self._slots[order])
        other._records["block_index"] = np.arange(len(order), dtype=np.uint64)
        other._rebuild_index()
        return other, order

    def _like(self, records: Records, slots: Words) -> Self:
        """Another list of the same tree, whose keys are still to be given."""
        other = type(self)(records["origin"].shape[1], self._block_size, self._bits_per_dim)
        other._records, other._slots, other._count = records, slots, len(records)
        return other

    def _rebuild_index(self) -> None:
        self._index = dict(zip(self.keys(), self.live.tolist(), strict=True))
