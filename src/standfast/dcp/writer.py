"""DCP's writer on a store: digests, deduplication, and a commit that is there or is not.

DCP gathers and scatters itself; nothing else is sent between the ranks:

| | the coordinator | the others |
|---|---|---|
| `prepare_global_plan` | takes the run and its changes, sees that the step is free | |
| `write_data` | writes its share | write theirs |
| `finish` | joins the shares, and commits the one record | |

A rank that fails says so in its result, instead of raising: only so does the coordinator hear of
it in time to delete what the others have placed, and to let go of the run. DCP raises what it then
raises on all ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from standfast.dcp.commits import Attempt, Told
from standfast.dcp.items import Gathered, Handed, gather
from standfast.dcp.runs import Folder, Where, step_of
from standfast.errors import BadOption, NotOpen
from standfast.parallel.failures import failure_of
from standfast.store.run import Run
from standfast.store.save.saving import Task, Wanted
from standfast.store.save.shares import write_share
from standfast.store.save.writing import new_token
from standfast.store.schema.run_file import software
from standfast.store.store import Store


class Writer(StorageWriter):
    """Has `dcp.save` and `dcp.async_save` commit a checkpoint into a run of a store.

    The run is one that there is, by its name or hash, or a new one of that name; a Run is taken
    too. All ranks give the same. The step may be left out and given to `dcp.save`, at the end of
    its `checkpoint_id`; then one writer is good for many saves.

    >>> writer = Writer("experiments", "gpt", step=100, metrics={"loss": 0.25})
    >>> dcp.save({"model": model.state_dict()}, storage_writer=writer)
    """

    def __init__(
        self,
        store: Folder | Store,
        run: str | Run,
        step: int | None = None,
        *,
        metrics: Mapping[str, Any] | None = None,
        epoch: int | None = None,
        best: bool = False,
        replace: bool = False,
    ) -> None:
        self._where = Where(store, run)
        self._step = step
        self._options: dict[str, Any] = {
            "metrics": metrics,
            "epoch": epoch,
            "best": best,
            "replace": replace,
        }
        self._rank = 0
        self._attempt: Attempt | None = None

    def reset(self, checkpoint_id: Any = None) -> None:
        """Another save begins; the step is the number that the `checkpoint_id` ends in."""
        if checkpoint_id is not None:
            self._step = step_of(checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        """Whether it ends in the number of a step."""
        try:
            step_of(checkpoint_id)
        except BadOption:
            return False
        return True

    # DCP tells which rank this is only where the parameter has this name.
    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Begin, on every rank."""
        if not kwargs.get("use_collectives", True):
            raise BadOption(
                "use_collectives=False would make a checkpoint of each rank, and a store has one "
                "of all: leave it out"
            )
        rank = kwargs.get("rank")
        self._rank = dist.get_rank() if rank is None and dist.is_initialized() else rank or 0

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan, as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """On the coordinator: take the run, or raise why it cannot be; the plans stay."""
        self._give_up()
        self._attempt = Attempt(self._where, self._wanted)
        return plans

    def _wanted(self, run: Run) -> Wanted:
        if self._step is None:
            raise BadOption(
                "no step: give it to the Writer, or to dcp.save as checkpoint_id='step-100'"
            )
        return run.wanted(self._step, **self._options)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """On every rank: write its share, and tell of it or of what went wrong."""
        size = 0
        try:
            gathered = gather(plan, planner, self._rank)
            size = sum(tensor.nbytes for tensor in gathered.plan.tensors)
            told = Told(self._written(gathered), None)
        except BaseException as error:  # whatever it is: the coordinator must hear of it
            told = Told(None, failure_of(error))
        result = WriteResult(MetadataIndex("share"), size, msgspec.msgpack.encode(told))
        future: Future[list[WriteResult]] = Future()
        future.set_result([result])
        return future

    def _written(self, gathered: Gathered) -> Handed:
        run = self._attempt.run if self._attempt else self._where.made()
        if not self._attempt:
            run.store.index.refresh()
        assembler, plan, file = run.assembler(), gathered.plan, run.file
        # Each rank has a token of its own: a planner that caches its plans brings back those of an
        # earlier save, and with them whatever the coordinator had said then.
        task = Task(
            plan,
            self._wanted(run),
            file.identity,
            file.parent,
            software(),
            new_token(),
            after=0,
            claim=0,
        )
        if not assembler.has_room(plan.most):
            with ExitStack() as stack:
                assembler.check_space(assembler.needed(assembler.draft(task, stack)))
        share = write_share(assembler, task)
        return Handed(gathered.items, gathered.rows, gathered.values, share)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """On the coordinator: commit what all ranks have written, or raise what went wrong."""
        attempt = self._attempt
        if attempt is None:
            raise NotOpen("finish comes after prepare_global_plan, once")
        try:
            told = [
                msgspec.msgpack.decode(result.storage_data, type=Told)
                for each in results
                for result in each
            ]
            own = min(self._rank, len(told) - 1)
            head = attempt.commit(metadata, [told[own], *told[:own], *told[own + 1 :]])
            metadata.storage_meta = StorageMeta(checkpoint_id=f"{head.run}@{head.step}")
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Let go of the run, if it is held."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.close()

    def __del__(self) -> None:
        # DCP tells nobody when a planner fails between two calls.
        if sys is not None and not sys.is_finalizing() and hasattr(self, "_attempt"):
            self._give_up()

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_attempt": None}
