"""What two ranks do that load: each method is called on both of them at the same time."""

from __future__ import annotations

from pathlib import Path

import torch
from blake3 import blake3
from torch import distributed
from torch.distributed.checkpoint import state_dict_loader as dcp

import standfast
from benchmarks import raw
from benchmarks.ranks_state import Sharded, files_in


class Loading:
    """A rank that loads what four have saved, in many ways."""

    def __init__(self, folder: Path, width: int) -> None:
        self._folder = folder
        self._sharded = Sharded(width)
        rank, size = distributed.get_rank(), distributed.get_world_size()
        self._files = files_in(folder / "run")[rank::size]

    def blank(self) -> None:
        self._sharded.blank()

    def run(self) -> None:
        run = standfast.Store(self._folder / "run").find_run("bench")
        run.load("latest", into=self._sharded.state)

    def dcp(self) -> None:
        dcp.load(self._sharded.state, checkpoint_id=self._folder / "dcp")

    def plugin(self) -> None:
        from standfast.dcp import Reader

        dcp.load(
            self._sharded.state, storage_reader=Reader(self._folder / "plugin", "bench", "latest")
        )

    def floor(self, way: str) -> None:
        """So many bytes, of whichever tensors."""
        for file in self._files:
            raw.READS[way](file)

    def digest(self) -> str:
        """One of all that was loaded."""
        hasher = blake3()
        for tensor in self._sharded.tensors:
            hasher.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
        return hasher.hexdigest()
