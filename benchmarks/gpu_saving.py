"""Saves of a state on a GPU: what they hold up, and how fast they are durable."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path

import safetensors.torch
import torch
from torch.distributed.checkpoint import state_dict_saver

import standfast
from benchmarks import gpu_floors
from benchmarks.gpu_contenders import Bench, Contest, Dcp, Ours, pinned_stager
from benchmarks.gpu_state import State, change, flat, size_of, synchronize
from benchmarks.report import Figure, Section


def held_up(bench: Bench, state: State) -> Section:
    """The GPU is idle before, nothing runs beside the copy, and the rest is waited for."""
    floor = gpu_floors.Copy(state, bench.device)
    ours = Ours(bench.folder / "held", state, overlap=False)
    nbytes = size_of(state)
    peers = {
        "dcp.async_save": Dcp(bench.folder / "dcp-plain", state),
        "dcp.async_save, reused pinned stager, copied": Dcp(
            bench.folder / "dcp-pinned", state, pinned_stager(bench.device, nbytes)
        ),
    }
    contest = Contest(bench)

    def settled() -> None:
        ours.ckpt.wait()
        for name, peer in peers.items():
            contest.off_the_clock(name, peer.settle)
        synchronize()

    floor_name, our_name = "raw: a copy into pinned memory", "Checkpointer.step, overlap=False"
    contest.add(floor_name, settled, floor.copy)
    contest.add(our_name, settled, ours.save)
    for name, peer in peers.items():
        contest.add_peer(name, settled, peer.save)
    ours.warm()
    floor.copy()
    ours.save()
    contest.off_the_clock(name, peer.save)  # the last of them takes its memory once
    rounds = contest.run()
    settled()
    ours.close()
    floor.close()
    for name, peer in peers.items():
        contest.off_the_clock(name, peer.close)
    shutil.rmtree(bench.folder / "held")
    of_floor = 1 / rounds.speed_ratio(our_name, floor_name)
    return Section(
        "The loop held up, nothing overlapped",
        rounds,
        None,
        [
            Figure("seconds in Checkpointer.step", rounds.median(our_name), 0.3, at_most=True),
            Figure("of the raw copy", of_floor),
        ],
    )


class Files:
    """What the durable saves leave for the loads: one file or folder a format, and a store."""

    def __init__(self, folder: Path, state: State) -> None:
        self.ours = folder / "ours.safetensors"
        self.pickled = folder / "state.pt"
        self.dcp = folder / "dcp"
        self.store = folder / "store"
        self.floor = folder / "floor"
        self.theirs = folder / "theirs.safetensors"
        self._state = state

    def save_ours(self) -> None:
        standfast.save(self.ours, flat(self._state))

    def save_theirs(self) -> None:
        safetensors.torch.save_file(flat(self._state), self.theirs)
        _fsync(self.theirs)

    def save_pickled(self) -> None:
        torch.save(self._state, self.pickled)
        _fsync(self.pickled)

    def save_dcp(self) -> None:
        state_dict_saver.save(self._state, checkpoint_id=self.dcp, no_dist=True)

    def save_store(self) -> None:
        ours = Ours(self.store, self._state)
        ours.save()
        ours.close()

    def make_missing(self, peers: bool = True) -> None:
        """Save what loads need and no benchmark of saves has left; peers may fail."""
        for path, save in {self.ours: self.save_ours, self.store: self.save_store}.items():
            if not path.exists():
                save()
        theirs = {self.pickled: self.save_pickled, self.dcp: self.save_dcp}
        for path, save in theirs.items() if peers else ():
            try:
                if not path.exists():
                    save()
            except Exception as error:
                print(f"  no {path.name}: {type(error).__name__}: {error}", flush=True)

    def remove(self, *paths: Path) -> None:
        """The paths are free, and so is the room of what no load needs; the disk is quiet."""
        for path in (*paths, self.floor, self.theirs):
            if path.is_dir():
                shutil.rmtree(path)
            path.unlink(missing_ok=True)
        os.sync()


def durable(bench: Bench, state: State, files: Files) -> Section:
    """All tensors have changed since the last save of each."""
    ours = Ours(files.store, state)
    floor = gpu_floors.Copy(state, bench.device)
    floor.copy()
    ours.warm()
    ours.save()

    def ready(*paths: Path) -> None:
        ours.settle()
        files.remove(*paths)
        change(state)

    contest = Contest(bench)
    floor_name = f"raw: direct writes from pinned memory, {gpu_floors.WRITERS} threads"
    our_name = "Checkpointer, from step to commit"
    write = partial(gpu_floors.write, files.floor, floor.pinned.memory)
    contest.add(floor_name, partial(ready, files.floor), write)
    contest.add(our_name, ready, ours.save_durably)
    contest.add("standfast.save", partial(ready, files.ours), files.save_ours)
    for name, path, save in (
        ("safetensors save_file + fsync", files.theirs, files.save_theirs),
        ("torch.save + fsync", files.pickled, files.save_pickled),
        ("dcp.save", files.dcp, files.save_dcp),
    ):
        contest.add_peer(name, partial(ready, path), save)
    rounds = contest.run()
    ours.settle()
    ours.close()
    files.remove()
    floor.close()
    return Section(
        "Durable save, all changed",
        rounds,
        size_of(state),
        [
            Figure(
                "Checkpointer, of the raw floor", rounds.speed_ratio(our_name, floor_name), 0.88
            ),
            Figure("standfast.save, of it", rounds.speed_ratio("standfast.save", floor_name)),
        ],
    )


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
