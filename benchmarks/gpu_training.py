"""Saves beside real training: what a loop is held up, and how much slower its steps are."""

from __future__ import annotations

import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch.nn import functional

from benchmarks.files import nothing
from benchmarks.gpu_contenders import Action, Bench, Contest, Dcp, Ours, pinned_stager
from benchmarks.gpu_state import synchronize
from benchmarks.report import Figure, Section
from benchmarks.rounds import Rounds
from standfast.packages import GPT, Config

WINDOW = 12
"""So many steps follow a save, in which its copy is made and it is written."""
PLAIN, OURS, THEIRS = "without a save", "Checkpointer", "dcp.async_save, reused pinned stager"


class Training:
    """A GPT in mixed precision with AdamW, whose batches make a step about as long as wished."""

    def __init__(self, bench: Bench) -> None:
        size = bench.size
        config = Config(
            vocab_size=size.vocabulary,
            n_positions=size.positions,
            n_embd=size.trained_width,
            n_layer=size.layers,
            n_head=size.heads,
            activation_function="gelu_pytorch_tanh",
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
        )
        with torch.device(bench.device):
            self.model = GPT(config)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self._device = bench.device
        self._tokens = torch.randint(
            size.vocabulary, (size.rows, size.positions + 1), device=bench.device
        )
        self._batches = 1
        self.step()
        self.step()
        synchronize()
        start = time.perf_counter()
        self.step()
        synchronize()
        self._batches = max(1, round(size.step / (time.perf_counter() - start)))

    def step(self) -> None:
        """Gradients are added up over the batches of a step."""
        for _ in range(self._batches):
            with torch.autocast(self._device, torch.bfloat16):
                logits = self.model(self._tokens[:, :-1])
                loss = functional.cross_entropy(logits.flatten(0, 1), self._tokens[:, 1:].flatten())
            (loss / self._batches).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state_dict(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    @property
    def nbytes(self) -> int:
        state = [t for each in self.optimizer.state.values() for t in each.values()]
        return sum(t.nbytes for t in [*self.model.parameters(), *state])


class Windows:
    """The seconds of the steps in windows that begin with a save, or without one."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.held: dict[str, list[float]] = {}
        self.steps: dict[str, list[list[float]]] = {}

    def run(self, name: str, save: Action) -> None:
        """The GPU is idle at both ends of everything that is measured."""
        start = time.perf_counter()
        save()
        held = time.perf_counter() - start
        self.held.setdefault(name, []).append(held)
        print(f"  {name}: held up for {held:.4f} s", flush=True)
        steps = []
        for _ in range(WINDOW):
            begun = time.perf_counter()
            self._training.step()
            synchronize()
            steps.append(time.perf_counter() - begun)
        self.steps.setdefault(name, []).append(steps)

    def undisturbed(self) -> float:
        """The median of all steps in windows without a save."""
        return statistics.median(step for steps in self.steps[PLAIN] for step in steps)

    def first_slower(self, name: str) -> float:
        """By how many percent the step right after a save takes longer than one without."""
        first = statistics.median(steps[0] for steps in self.steps[name])
        return 100 * (first / self.undisturbed() - 1)


def overlapped(bench: Bench) -> Section:
    """Windows of steps with a save before them, and without; all is settled between them."""
    training = Training(bench)
    windows = Windows(training)
    parts = {"model": training.model, "optimizer": training.optimizer}
    ours = Ours(bench.folder / "overlapped", parts)
    stager = pinned_stager(bench.device, training.nbytes)
    theirs = Dcp(bench.folder / "dcp-overlapped", training.state_dict(), stager)
    contest = Contest(bench)
    hook = training.optimizer.register_step_pre_hook(
        lambda *_: contest.off_the_clock(THEIRS, theirs.wait_for_copy)
    )

    def settled() -> None:
        ours.settle()
        contest.off_the_clock(THEIRS, theirs.settle)
        synchronize()

    add: dict[str, tuple[Callable[[str, Action, Action], None], Action]] = {
        PLAIN: (contest.add, nothing),
        OURS: (contest.add, ours.save),
        THEIRS: (contest.add_peer, theirs.begin),
    }
    for name, (take_in, save) in add.items():
        take_in(name, settled, partial(windows.run, name, save))
    ours.warm()
    ours.save()
    settled()
    contest.off_the_clock(THEIRS, theirs.save)  # which takes its memory once
    rounds = contest.run()
    settled()
    committed, step = ours.ckpt.run.checkpoints()[-1].step, ours.ckpt.next_step - 1
    assert committed == step, f"the save of step {step} was not committed, {committed} is the last"
    hook.remove()
    ours.close()
    contest.off_the_clock(THEIRS, theirs.close)
    shutil.rmtree(bench.folder / "overlapped")
    return Section(
        f"{WINDOW} training steps from a save on, {training.nbytes / 1e9:.1f} GB",
        rounds,
        None,
        _figures(windows, rounds),
    )


def _figures(windows: Windows, rounds: Rounds) -> list[Figure]:
    held = {name: statistics.median(seconds) for name, seconds in windows.held.items()}
    slower = {
        name: 100 * (rounds.median(name) / rounds.median(PLAIN) - 1) for name in rounds.seconds
    }
    figures = [
        Figure("seconds, a step without a save", windows.undisturbed()),
        Figure("seconds in Checkpointer.step", held[OURS], 0.05, at_most=True),
        Figure("the step after it slower by %", windows.first_slower(OURS), 5.0, at_most=True),
        Figure("all of them slower by %", slower[OURS], 5.0, at_most=True),
    ]
    if THEIRS in rounds.seconds:
        figures += [
            Figure("seconds in dcp.async_save", held[THEIRS]),
            Figure("the step after it slower by %", windows.first_slower(THEIRS)),
            Figure("all of them slower by %", slower[THEIRS]),
        ]
    return figures
