"""Who takes part in the GPU benchmarks, and how their rounds are run."""

from __future__ import annotations

import itertools
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

import standfast
from benchmarks.gpu_state import Size, synchronize
from benchmarks.rounds import Contender, Rounds, run_rounds

Action = Callable[[], object]
MOST_WARMING = 30.0
"""Seconds after which nobody waits any more until memory for saves is ready."""


@dataclass(frozen=True)
class Bench:
    """Where and how often to measure."""

    folder: Path
    device: str
    size: Size
    rounds: int
    peer_rounds: int
    """Of those that take many seconds each."""


@dataclass
class Contest:
    """Contenders of one comparison: ours and the floors, and others, who may fail."""

    bench: Bench
    ours: dict[str, Contender] = field(default_factory=dict)
    peers: dict[str, Contender] = field(default_factory=dict)
    _failed: set[str] = field(default_factory=set)

    def add(self, name: str, before: Action, measured: Action) -> None:
        """One that is measured in every round, and that may not fail."""
        self.ours[name] = before, _told(name, measured)

    def add_peer(self, name: str, before: Action, measured: Action) -> None:
        """One that is left out, with a word, if it fails; without rounds for them, all are."""
        if not self.bench.peer_rounds:
            self._failed.add(name)
            return
        self.peers[name] = (
            self._forgiven(name, before),
            self._forgiven(name, _told(name, measured)),
        )

    def off_the_clock(self, name: str, action: Action) -> None:
        """What a peer has to do besides; if it fails, the peer is left out."""
        self._forgiven(name, action)()

    def run(self) -> Rounds:
        """Everybody in the first rounds, ours and the floors in the others."""
        together = min(self.bench.peer_rounds, self.bench.rounds)
        first = run_rounds(self.ours | self.peers, together)
        more = run_rounds(self.ours, self.bench.rounds - together)
        return Rounds(
            {
                name: [*seconds, *more.seconds.get(name, [])]
                for name, seconds in first.seconds.items()
                if name not in self._failed
            }
        )

    def _forgiven(self, name: str, action: Action) -> Action:
        def run() -> object:
            if name in self._failed:
                return None
            try:
                return action()
            except Exception as error:
                self._failed.add(name)
                print(f"  {name} is left out: {type(error).__name__}: {error}", flush=True)
                return None

        return run


def _told(name: str, measured: Action) -> Action:
    """Say at once what was measured, whatever comes later; the GPU has done its part by then."""

    def run() -> object:
        start = time.perf_counter()
        result = measured()
        synchronize()
        print(f"  {name}: {time.perf_counter() - start:.3f} s", flush=True)
        return result

    return run


class Ours:
    """A Checkpointer that saves at every call, into a store of which one checkpoint is kept."""

    def __init__(self, folder: Path, parts: Mapping[str, Any], **options: Any) -> None:
        state = standfast.TrainingState(**parts)
        self.ckpt = standfast.Checkpointer(
            folder, state, name="bench", every=1, quiet=True, **options
        )
        self.ckpt.__enter__()

    def warm(self) -> None:
        """Wait until the memory for two saves is touched and pinned, as it is in a program soon."""
        background = self.ckpt._open()._background
        until = time.monotonic() + MOST_WARMING
        while background and len(background._stagings._free) < 2 and time.monotonic() < until:
            time.sleep(0.05)

    def save(self) -> None:
        self.ckpt.step()

    def save_durably(self) -> None:
        self.ckpt.step()
        self.ckpt.wait()

    def settle(self) -> None:
        """Wait, and delete all checkpoints but the last."""
        self.ckpt.wait()
        self.ckpt.run.delete(*(each.step for each in self.ckpt.run.checkpoints()[:-1]))

    def close(self) -> None:
        self.ckpt.__exit__(None, None, None)


class Dcp:
    """torch.distributed.checkpoint's asynchronous save; its files are deleted when it is done."""

    def __init__(self, folder: Path, state: Any, stager: DefaultStager | None = None) -> None:
        self._folder = folder
        self._state = state
        self._stager = stager
        self._numbers = itertools.count()
        self._path = folder
        self._saving: Any = None

    def begin(self) -> None:
        """Ask for a save; with a stager that is asynchronous, the state is still being copied."""
        self._path = self._folder / f"dcp-{next(self._numbers)}"
        self._saving = async_save(
            self._state, checkpoint_id=self._path, async_stager=self._stager, no_dist=True
        )

    def wait_for_copy(self) -> None:
        """Return when the state may change."""
        if hasattr(self._saving, "staging_completion"):
            self._saving.staging_completion.result()

    def save(self) -> None:
        self.begin()
        self.wait_for_copy()

    def settle(self) -> None:
        if self._saving is not None:
            saving, self._saving = self._saving, None
            getattr(saving, "upload_completion", saving).result()
            shutil.rmtree(self._path)

    def close(self) -> None:
        self.settle()
        if self._stager is not None:
            self._stager.close()


def pinned_stager(device: str, nbytes: int) -> DefaultStager:
    """The fastest that torch has: pinned memory that is used again, copied to beside the loop."""
    on_gpu = device == "cuda"
    shared = on_gpu and shutil.disk_usage("/dev/shm").free > 1.1 * nbytes
    return DefaultStager(
        StagingOptions(
            use_pinned_memory=on_gpu,
            use_shared_memory=shared,
            use_async_staging=on_gpu,
            use_non_blocking_copy=on_gpu,
        )
    )


def hush() -> None:
    """Others say in their threads, too, that this is a single process."""
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    warnings.filterwarnings("ignore", category=FutureWarning)
