"""Tensors that are shared out, filled: each rank reads what it has of them, and no more."""

from __future__ import annotations

import threading
from typing import Any, Final

from standfast.files.blocks import Blocks
from standfast.files.digests import worker_count
from standfast.files.threads import Threads
from standfast.store.load.box_reading import copy_box, parts_of
from standfast.store.load.landing import RAW
from standfast.store.load.needed import is_all_of
from standfast.store.load.placing import Placing
from standfast.store.load.reading import Data
from standfast.store.schema.boxes import slices, within
from standfast.store.schema.record import Record
from standfast.store.tree.aliases import is_in_c_order
from standfast.tensors import TensorSpec, fill, memory_of, source_of
from standfast.tensors.cast import cast_array, cast_spec
from standfast.tensors.frameworks import device_of
from standfast.tensors.shards import Box, Shard, Shards
from standfast.tensors.sources import Bytes

_WAITING: Final = 2
"""How many threads there are besides one for each processor: some wait for the disk."""


class Boxed:
    """The boxes that this process has of tensors, and the saved tensors that fill them."""

    def __init__(self, record: Record, cast: str | None = None) -> None:
        self._record = record
        self._cast = cast
        self._wanted: list[tuple[Shard, int]] = []
        self._placed: set[int] = set()
        """Which of these are streamed to their device."""

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def add(self, shards: Shards, tensor: int) -> None:
        """Have all boxes of a tensor filled with those of a saved one."""
        self._wanted += [(shard, tensor) for shard in shards.shards]

    def place(self, placing: Placing) -> None:
        """Have those streamed that lie on a device, and were saved in just these boxes."""
        for number, (shard, tensor) in enumerate(self._wanted):
            device, memory = device_of(shard.tensor), memory_of(shard.tensor)
            stored = self._stored(tensor)
            boxes = self._record.boxes.get(stored, ())
            if device and memory and is_in_c_order(memory) and shard.box in boxes:
                before = self._record.specs[tensor]
                is_cast = cast_spec(before, self._cast) != before
                dtype = before.dtype if is_cast else RAW
                box = list(boxes).index(shard.box)
                placing.fill_box(device, shard.tensor, stored, box, dtype)
                self._placed.add(number)

    def _stored(self, tensor: int) -> int:
        """The tensor that has all bytes of this one, if there is one; else itself."""
        view = self._record.views.get(tensor)
        return view.base if view is not None and is_all_of(self._record, tensor) else tensor

    def fill(self, data: Data) -> None:
        """Fill all that is not streamed; each chunk is verified before anything of it is copied.

        If one is damaged, some are filled by then.
        """
        data.check_unchanged()
        own = threading.local()

        def fill(number: int) -> None:
            if not hasattr(own, "block"):
                own.block = next(iter(Blocks(1)))
            self._fill(data, *self._wanted[number], own.block)

        numbers = [number for number in range(len(self._wanted)) if number not in self._placed]
        with Threads(worker_count(-_WAITING)) as pool:
            for _ in pool.map(fill, numbers):
                pass

    def _fill(self, data: Data, shard: Shard, tensor: int, block: Bytes) -> None:
        before = self._record.specs[tensor]
        flat = None
        if cast_spec(before, self._cast) == before and device_of(shard.tensor) is None:
            flat = source_of(shard.tensor).contiguous()
        if flat is None or not copy_box(data, tensor, shard.box, flat, block):
            for box, array in parts_of(data, tensor, shard.box):
                self._put(shard, box, array, tensor)

    def _put(self, shard: Shard, box: Box, array: Any, tensor: int) -> None:
        """Fill a part of a box."""
        target = shard.tensor
        if box != shard.box:
            target = target[slices(within(box, shard.box))]
        spec = TensorSpec(self._record.specs[tensor].dtype, box.shape)
        fill(target, cast_array(array, spec, self._cast), cast_spec(spec, self._cast))
