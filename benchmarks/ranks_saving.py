"""What four ranks do that save: each method is called on all of them at the same time."""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from torch import distributed
from torch.distributed.checkpoint import state_dict_saver as dcp
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

import standfast
from benchmarks import raw
from benchmarks.ranks_state import Sharded

NO_OPTIONS = StagingOptions(False, False, False, False)
"""The others need a GPU, or are for a process that writes."""


class Saving:
    """A rank that saves the same state in many ways, each into a folder of its own."""

    def __init__(self, folder: Path, width: int) -> None:
        self._folder = folder
        self._rank = distributed.get_rank()
        self._sharded = Sharded(width)
        self._steps = itertools.count(1)
        self._run = standfast.Store(folder / "run").run("bench")
        self._staged: raw.Bytes | None = None
        self._copies: list[torch.Tensor] = []
        self._checkpointer: Any = None
        self._stager: Any = None
        self._saving: Any = None

    def nbytes(self) -> int:
        return self._sharded.nbytes()

    def change(self) -> None:
        self._sharded.change()

    def make_room(self) -> None:
        """Of each store the last checkpoint stays, as the one that the next follows."""
        if self._rank:
            return
        for way in ("dcp", "dcp-2", "async"):
            shutil.rmtree(self._folder / way, ignore_errors=True)
        for path in self._folder.glob("floor*"):
            path.unlink()
        self.thin()

    def thin(self) -> None:
        """Delete all checkpoints of the stores but the last ones."""
        if self._rank:
            return
        for store in (self._folder / name for name in ("run", "plugin", "checkpointer")):
            for run in standfast.Store(store).runs() if store.exists() else ():
                run.delete(*[checkpoint.step for checkpoint in run.checkpoints()][:-1])

    # Durable saves

    def stage(self) -> None:
        self._staged = self._sharded.staged()

    def unstage(self) -> None:
        self._staged = None

    def floor(self) -> None:
        assert self._staged is not None
        raw.write_direct(self._folder / f"floor{self._rank}", self._staged)

    def run(self) -> None:
        self._run.save(next(self._steps), self._sharded.state)

    def dcp(self) -> None:
        dcp.save(self._sharded.state, checkpoint_id=self._folder / "dcp")

    def dcp_with_threads(self, count: int) -> None:
        writer = FileSystemWriter(self._folder / f"dcp-{count}", thread_count=count)
        dcp.save(self._sharded.state, storage_writer=writer)

    def plugin(self) -> None:
        from standfast.dcp import Writer

        writer = Writer(self._folder / "plugin", "bench", next(self._steps))
        dcp.save(self._sharded.state, storage_writer=writer)

    # Saves in the background: what the loop waits for

    def begin(self) -> None:
        """Have memory for copies: of ours, of theirs, and of the floor."""
        self._copies = [torch.zeros_like(tensor) for tensor in self._sharded.tensors]
        self._stager = DefaultStager(NO_OPTIONS)
        self._checkpointer = standfast.Checkpointer(
            self._folder / "checkpointer",
            standfast.TrainingState(model=self._sharded.model, optimizer=self._sharded.optimizer),
            name="bench",
            every=1,
            quiet=True,
        )
        self._checkpointer.__enter__()

    def copy(self) -> None:
        for target, source in zip(self._copies, self._sharded.tensors, strict=True):
            target.copy_(source)

    def step(self) -> None:
        self._checkpointer.step()

    def async_save(self, is_reused: bool) -> None:
        self._saving = dcp.async_save(
            self._sharded.state,
            checkpoint_id=self._folder / "async",
            async_stager=self._stager if is_reused else None,
        )

    def settle(self) -> None:
        """Wait until all is written."""
        self._checkpointer.wait()
        if self._saving is not None:
            getattr(self._saving, "upload_completion", self._saving).result()
            self._saving = None

    def rest(self, seconds: float) -> None:
        time.sleep(seconds)

    def end(self) -> int:
        """How many checkpoints were made in the background."""
        self.settle()
        self._checkpointer.__exit__(None, None, None)
        self._stager.close()
        return int(self._checkpointer.run.checkpoint().step)
