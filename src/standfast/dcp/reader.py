"""DCP's reader on a store: any checkpoint, in any sharding, every chunk verified that is read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from standfast.dcp.contents import Contents
from standfast.dcp.runs import Folder, Where, step_of
from standfast.errors import BadOption, NotOpen, RefNotFound, StateMismatch, UnsupportedTensor
from standfast.files.digests import worker_count
from standfast.files.threads import Threads
from standfast.store.load.box_reading import parts_of
from standfast.store.load.needed import is_all_of
from standfast.store.load.reading import Data
from standfast.store.run import Run
from standfast.store.schema.boxes import box_text, slices, within
from standfast.store.schema.record import Record
from standfast.store.store import Store
from standfast.tensors import TensorSpec, fill, why_not_fillable
from standfast.tensors.shards import Box

_WAITING: Final = 2
"""How many threads there are besides one for each processor: some wait for the disk."""


class Reader(StorageReader):
    """Has `dcp.load` fill a state dict from a checkpoint of a store, whoever saved it.

    `ref` is that of `Run.load`: a step, `latest`, `best` or a tag. `latest` and `best` fall back to
    the newest checkpoint whose record and files are there; of the bytes, each rank verifies what
    it reads, and what is damaged raises on all. The coordinator's choice is that of all ranks.

    >>> dcp.load(state_dict, storage_reader=Reader("experiments", "gpt"))
    """

    def __init__(
        self,
        store: Folder | Store,
        run: str | Run,
        ref: int | str = "latest",
        *,
        verify: bool = True,
    ) -> None:
        self._where = Where(store, run)
        self._ref = ref
        self._verify = verify
        self._contents: Contents | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        """Another load begins; a `checkpoint_id` is a ref, or ends in the number of a step."""
        self._contents = None
        if checkpoint_id is not None:
            self._ref = _ref(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether it can be a ref."""
        return bool(str(_ref(checkpoint_id)))

    # Called `kwargs`, DCP would take a failure for checkpoints of which each rank has its own.
    def read_metadata(self, *_args: Any, **_options: Any) -> Metadata:
        """On every rank: choose the checkpoint, and say what is in it."""
        self._contents = Contents(self._where.found().checkpoint(self._ref))
        return self._contents.metadata()

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None:
        """Begin, on every rank; all that is needed is known already."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """The plan, as it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """On the coordinator: tell all ranks which checkpoint it has chosen."""
        place = self._chosen().checkpoint.head.place
        return [replace(plan, storage_data=place) for plan in plans]

    def _chosen(self) -> Contents:
        if self._contents is None:
            raise NotOpen("read_metadata comes first")
        return self._contents

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """On every rank: read what the plan asks for, and verify it."""
        contents = self._followed(plan.storage_data)
        found = {item.storage_index.fqn: contents.tensors_in(item) for item in plan.items}
        numbers = [number for each in found.values() for number in each]
        with contents.checkpoint.data(tensors=numbers, verify=self._verify) as data:
            parts = [
                _part(contents, item, planner)
                for item in plan.items
                if item.type is LoadItemType.TENSOR
            ]
            _fill(contents, parts, data)
            for part in parts:
                planner.commit_tensor(part.item, part.target)
            for item in plan.items:
                if item.type is LoadItemType.BYTE_IO:
                    planner.load_bytes(item, contents.value(item, data))
        future: Future[None] = Future()
        future.set_result(None)
        return future

    def _followed(self, place: Any) -> Contents:
        """The checkpoint that the coordinator has chosen: it may have seen another as the latest.

        What this rank has planned holds for it too, if the tensors are the same.
        """
        if place is None or place == self._chosen().checkpoint.head.place:
            return self._chosen()
        checkpoint = self._where.store.checkpoint(place.run, place.step)
        if checkpoint.head.place != place:
            raise RefNotFound(f"{checkpoint.ref} was replaced meanwhile: load again")
        return Contents(checkpoint)


class _Part(NamedTuple):
    """A box of a saved tensor, and where it goes."""

    item: ReadItem
    number: int
    box: Box
    target: torch.Tensor


def _part(contents: Contents, item: ReadItem, planner: LoadPlanner) -> _Part:
    number = contents.number(item)
    spec = contents.record.specs[number]
    begin = item.storage_index.offset or (0,) * len(item.storage_offsets)
    offsets = tuple(a + b for a, b in zip(begin, item.storage_offsets, strict=True))
    box = Box(offsets, tuple(item.lengths))
    target = planner.resolve_tensor(item).detach()
    inside = len(offsets) == len(spec.shape) and all(
        0 <= at <= at + length <= whole for at, length, whole in zip(*box, spec.shape, strict=True)
    )
    if not inside or tuple(target.shape) != box.shape:
        raise StateMismatch(
            f"{item.storage_index.fqn}: {box_text(box)} of {list(spec.shape)} is to fill "
            f"{list(target.shape)}"
        )
    if why := why_not_fillable(target):
        raise UnsupportedTensor(f"{item.storage_index.fqn}: {why}")
    return _Part(item, number, box, target)


def _fill(contents: Contents, parts: Sequence[_Part], data: Data) -> None:
    record = contents.record

    def fill_part(part: _Part) -> None:
        dtype = record.specs[part.number].dtype
        for box, array in parts_of(data, part.number, part.box) if part.target.numel() else ():
            target = part.target[slices(within(box, part.box))]
            fill(target, array, TensorSpec(dtype, box.shape))

    # The bytes around a view are kept for the next one: those are read one after the other.
    views = [part for part in parts if not _is_stored(record, part.number)]
    stored = [part for part in parts if _is_stored(record, part.number)]
    with Threads(worker_count(-_WAITING)) as pool:
        for _ in pool.map(fill_part, sorted(stored, key=_in_order)):
            pass
    for part in sorted(views, key=_in_order):
        fill_part(part)


def _in_order(part: _Part) -> tuple[int, Box]:
    return part.number, part.box


def _is_stored(record: Record, number: int) -> bool:
    """Whether a tensor has bytes of its own, or all of another's."""
    return number not in record.views or is_all_of(record, number)


def _ref(checkpoint_id: Any) -> int | str:
    """What refers to a checkpoint: `latest`, `best`, a tag, a step, or a name that ends in one."""
    if isinstance(checkpoint_id, int):
        return checkpoint_id
    text = os.fspath(checkpoint_id)
    try:
        return step_of(text)
    except BadOption:
        return str(text)
