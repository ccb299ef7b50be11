"""Training: how long saves hold a loop up, beside others, and what they cost in the background."""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save

import standfast
from benchmarks.files import ROUNDS, nothing
from benchmarks.gpt import GPT
from benchmarks.report import Figure, Section
from benchmarks.rounds import run_rounds
from benchmarks.store import State, gpt2_in_parts
from benchmarks.store import _tensors as tensors_of

PIECE = 8 << 20
WARMING = 5.0
"""Seconds after which the memory for the first save is ready, as it is in any real program."""
BETWEEN_SAVES = 20
DISTURBED = 5
"""So many steps from a save on may be slower for it."""
LOOP_ROUNDS = 4
SMALL_SAVES = 1000


def sections(folder: Path) -> Iterator[Section]:
    # Torch says in its threads, too, that this is a single process.
    warnings.filterwarnings("ignore", "torch.distributed is disabled")
    state = gpt2_in_parts()
    yield held_up(folder, state)
    yield first_save(folder, state)
    yield beside_python(folder, state)
    del state
    gc.collect()
    yield loop(folder)
    yield memory(folder)


class Copy:
    """The floor: the state copied by two threads into memory that was touched before."""

    def __init__(self, state: State) -> None:
        sources = [t.reshape(-1).view(torch.uint8).numpy() for t in tensors_of(state)]
        self._memory = np.zeros(sum(source.size for source in sources), np.uint8)
        self._memory[::4096] = 1
        self._pieces: list[tuple[Any, Any]] = []
        at = 0
        for source in sources:
            for start in range(0, source.size, PIECE):
                piece = source[start : start + PIECE]
                self._pieces.append((self._memory[at : at + piece.size], piece))
                at += piece.size
        self._pool = ThreadPoolExecutor(2)

    def copy(self) -> None:
        halves = self._pieces[::2], self._pieces[1::2]
        list(self._pool.map(self._copy, halves))

    def _copy(self, pieces: list[tuple[Any, Any]]) -> None:
        for target, source in pieces:
            np.copyto(target, source)


class Ours:
    """Asynchronous saves of a state into a store, of which the last two checkpoints stay."""

    def __init__(self, folder: Path, parts: Any, **options: Any) -> None:
        state = standfast.TrainingState(**parts)
        self.ckpt = standfast.Checkpointer(
            folder, state, name="bench", every=1, quiet=True, **options
        )
        self.ckpt.__enter__()

    def save(self) -> None:
        self.ckpt.step()

    def settle(self) -> None:
        self.ckpt.wait()
        old = [checkpoint.step for checkpoint in self.ckpt.run.checkpoints()][:-2]
        self.ckpt.run.delete(*old)

    def close(self) -> None:
        self.ckpt.__exit__(None, None, None)


class Dcp:
    """torch.distributed.checkpoint's asynchronous save with a stager that is used again."""

    def __init__(self, folder: Path, state: Any) -> None:
        self._folder = folder
        self._state = state
        self._stager = DefaultStager(StagingOptions(False, False, False, False))
        self._names = itertools.count()
        self._saving: Any = None

    def save(self) -> None:
        self.settle()
        self._path = self._folder / str(next(self._names))
        self._saving = async_save(
            self._state, checkpoint_id=self._path, async_stager=self._stager, no_dist=True
        )

    def settle(self) -> None:
        if self._saving is not None:
            getattr(self._saving, "upload_completion", self._saving).result()
            shutil.rmtree(self._path)
            self._saving = None

    def close(self) -> None:
        self.settle()
        self._stager.close()


def held_up(folder: Path, state: State) -> Section:
    """The caller's time alone: what is written in the background is waited for off the clock."""
    copy = Copy(state)
    ours, theirs = Ours(folder / "store", state), Dcp(folder, state)
    time.sleep(WARMING)
    ours.save()
    theirs.save()

    def settled() -> None:
        ours.settle()
        theirs.settle()

    rounds = run_rounds(
        {
            "a copy by two threads": (settled, copy.copy),
            "Checkpointer.step": (settled, ours.save),
            "dcp.async_save, reused stager": (settled, theirs.save),
        },
        ROUNDS,
    )
    settled()
    ours.close()
    theirs.close()
    shutil.rmtree(folder / "store")
    ratio = 1 / rounds.speed_ratio("Checkpointer.step", "a copy by two threads")
    theirs_ratio = 1 / rounds.speed_ratio("Checkpointer.step", "dcp.async_save, reused stager")
    return Section(
        "The loop held up by an asynchronous save",
        rounds,
        None,
        [
            Figure("Checkpointer.step of the copy", ratio, 1.15, at_most=True),
            Figure("Checkpointer.step of dcp.async_save", theirs_ratio, 1.0, at_most=True),
        ],
    )


def first_save(folder: Path, state: State) -> Section:
    """A new Checkpointer each time, whose memory is made ready while the program sets things up."""
    copy = Copy(state)
    current: list[Ours] = []

    def close() -> None:
        for ours in current:
            ours.close()
        current.clear()

    def idle() -> None:
        close()
        time.sleep(WARMING)

    def fresh() -> None:
        close()
        shutil.rmtree(folder / "first", ignore_errors=True)
        current[:] = [Ours(folder / "first", state)]
        time.sleep(WARMING)

    rounds = run_rounds(
        {
            "a copy by two threads": (idle, copy.copy),
            "the first Checkpointer.step": (fresh, lambda: current[0].save()),
        },
        ROUNDS,
    )
    close()
    shutil.rmtree(folder / "first")
    ratio = 1 / rounds.speed_ratio("the first Checkpointer.step", "a copy by two threads")
    figures = [Figure("the first save of the copy", ratio, 1.15, at_most=True)]
    return Section("The loop held up by the first save", rounds, None, figures)


def beside_python(folder: Path, state: State) -> Section:
    """From the call to the commit, beside a loop that does nothing and one that never rests."""
    ours = Ours(folder / "store", state)
    time.sleep(WARMING)
    ours.save()

    def change() -> None:
        ours.settle()
        for tensor in tensors_of(state):
            tensor.add_(1.0)

    def idle() -> None:
        ours.save()
        ours.ckpt.wait()

    def busy() -> None:
        ours.save()
        saves = ours.ckpt._open()
        count = 0
        while not saves.is_idle():
            for _ in range(100_000):  # Python alone, which keeps the interpreter to itself
                count += 1
        ours.ckpt.wait()

    contenders = {"beside an idle loop": (change, idle), "beside a busy loop": (change, busy)}
    rounds = run_rounds(contenders, ROUNDS)
    ours.close()
    shutil.rmtree(folder / "store")
    ratio = 1 / rounds.speed_ratio("beside a busy loop", "beside an idle loop")
    figures = [Figure("busy of idle", ratio, 1.5, at_most=True)]
    return Section("A whole save beside a loop of Python", rounds, None, figures)


class Training:
    """GPT-2 124M at work, in cycles of `BETWEEN_SAVES` steps with a save in the middle of each."""

    def __init__(self) -> None:
        self.model = GPT()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5)
        self._tokens = torch.Generator().manual_seed(0)
        self.slower: dict[str, list[float]] = {}
        """By how much each cycle took longer than its undisturbed steps, in percent."""
        self._step()

    def _step(self) -> None:
        tokens = torch.randint(50257, (1, 65), generator=self._tokens)
        loss = self.model(tokens)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()

    def cycle(self, name: str, save: Callable[[], object]) -> None:
        """The save holds up the step that it comes with, and disturbs those after it.

        A whole cycle takes half a minute, in which this machine changes its speed by more than a
        save costs. Its own steps before the save tell what it would have taken without.
        """
        seconds = []
        for number in range(BETWEEN_SAVES):
            start = time.perf_counter()
            self._step()
            if number == BETWEEN_SAVES // 2:
                save()
            seconds.append(time.perf_counter() - start)
        disturbed = slice(BETWEEN_SAVES // 2, BETWEEN_SAVES // 2 + DISTURBED)
        undisturbed = [*seconds[: disturbed.start], *seconds[disturbed.stop :]]
        without = statistics.fmean(undisturbed) * BETWEEN_SAVES
        self.slower.setdefault(name, []).append(100 * (sum(seconds) / without - 1))

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}


def loop(folder: Path) -> Section:
    """The same steps with saves by ours and by others, each settled before the next begins."""
    training = Training()
    parts = {"model": training.model, "optimizer": training.optimizer}
    ours, theirs = Ours(folder / "store", parts), Dcp(folder, training.state_dict())
    time.sleep(WARMING)
    ours.save()
    theirs.save()
    path = folder / "state.pt"

    def settled() -> None:
        ours.settle()
        theirs.settle()

    names = {
        "without saves": nothing,
        "Checkpointer": ours.save,
        "dcp.async_save, reused stager": theirs.save,
        "torch.save": lambda: torch.save(training.state_dict(), path),
    }
    contenders = {
        name: (settled, partial(training.cycle, name, save)) for name, save in names.items()
    }
    rounds = run_rounds(contenders, LOOP_ROUNDS)
    settled()
    ours.close()
    theirs.close()
    path.unlink()
    shutil.rmtree(folder / "store")
    slower = {name: statistics.median(training.slower[name]) for name in names}
    return Section(
        f"{BETWEEN_SAVES} training steps with one save",
        rounds,
        None,
        [
            Figure("Checkpointer: slower by %", slower["Checkpointer"], 3.0, at_most=True),
            Figure("dcp.async_save: slower by %", slower["dcp.async_save, reused stager"]),
            Figure("torch.save: slower by %", slower["torch.save"]),
            Figure("without saves, measured the same way", slower["without saves"]),
        ],
    )


def memory(folder: Path) -> Section:
    """What a thousand saves leave behind in memory: that of the process and of its helper."""
    state = {"weights": torch.zeros(1 << 20)}
    ours = Ours(folder / "store", {"model": state})
    sizes = []
    for number in range(SMALL_SAVES):
        state["weights"] += 1
        ours.save()
        if number % 50 == 49:
            ours.settle()
            gc.collect()
            sizes.append(_resident())
    ours.close()
    shutil.rmtree(folder / "store")
    growth = (statistics.median(sizes[-4:]) - statistics.median(sizes[1:5])) / 1e6
    figure = Figure("MB more after the last saves than after the first", growth, 8.0, at_most=True)
    return Section(f"{SMALL_SAVES:,} saves of 4 MB", None, None, [figure])


def _resident() -> int:
    """The memory of this process and its children."""
    total = 0
    for process in (os.getpid(), *_children()):
        pages = Path(f"/proc/{process}/statm").read_text().split()[1]
        total += int(pages) * os.sysconf("SC_PAGE_SIZE")
    return total


def _children() -> list[int]:
    me = os.getpid()
    tasks = Path(f"/proc/{me}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]
