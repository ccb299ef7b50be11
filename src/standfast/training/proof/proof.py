"""The proof that a program resumes exactly: run it whole, run it with kills, compare everything.

docs/proof.md says how to read it, and what makes programs inexact.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from standfast.errors import BadOption, ProofFailed
from standfast.files.paths import check_local
from standfast.training.proof.comparison import Comparison, Difference, compare_stores
from standfast.training.proof.moments import draw_moments, look_at
from standfast.training.proof.runs import Kill, Program
from standfast.training.state import RANDOM

_WHOLE: Final = "whole"
_KILLED: Final = "killed"
_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class Proof:
    """What came of it: whether a killed program ended with the same bytes as one that was not."""

    command: tuple[str, ...]
    seed: int
    """Draws the same moments again, as far as two runs take the same time."""
    seconds: float
    """How long the program took when nobody killed it."""
    wanted: int
    """How many kills were asked for."""
    kills: tuple[Kill, ...]
    """Those that happened: a program may end before its time comes."""
    compared: Comparison

    @property
    def exact(self) -> bool:
        """Whether nothing differs, but for generators that nobody seeds and nothing depends on."""
        return not self.differences

    @property
    def differences(self) -> list[Difference]:
        """What differs, the first step first, without the states of unseeded generators."""
        unseeded = self.unseeded
        return [d for d in self.compared.differences if _generator(d.what) not in unseeded]

    @property
    def unseeded(self) -> list[str]:
        """The global generators whose states differed before the first kill already."""
        found = {
            _generator(each.what)
            for each in self.compared.differences
            if each.step <= self.kills[0].step
        }
        return sorted(filter(None, found))

    @property
    def in_saves(self) -> int:
        """How many of the kills fell into a save."""
        return sum(kill.in_save for kill in self.kills)

    @property
    def first(self) -> Difference | None:
        """The first thing that differs, which may be a metric between two checkpoints."""
        return next(iter(self.differences), None)

    @property
    def first_tensor(self) -> Difference | None:
        """The first tensor that differs."""
        return next((each for each in self.differences if each.is_tensor), None)

    @property
    def is_unsteady(self) -> bool:
        """Whether it differed before the first kill already: the program never does the same."""
        return self.first is not None and self.first.step <= self.kills[0].step

    def __str__(self) -> str:
        if self.first is None:
            proved = f"proved: {self._size()} are identical, in every byte, {self._kills()}"
            idle = ", ".join(self.unseeded)
            return f"{proved}; {idle} aside, which is not seeded and not used" if idle else proved
        differences = _counted(len(self.differences), "difference")
        lines = [f"not exact: {differences} in {self._size()} {self._kills()}"]
        if self.is_unsteady:
            unseeded = ", ".join(self.unseeded) or "a generator of its own"
            lines.append(
                f"step {self.first.step} was done before the first kill: the program does not do "
                f"the same twice, killed or not; does it draw from {unseeded}, and not seed it?"
            )
        lines.append(f"the first difference: {self.first}")
        if self.first_tensor not in (self.first, None):
            lines.append(f"the first tensor that differs: {self.first_tensor}")
        return "\n".join(lines)

    def _size(self) -> str:
        found = self.compared
        each, rest = divmod(found.tensors, max(1, found.checkpoints))
        tensors = f"{found.tensors:,} tensors in all" if rest else _counted(each, "tensor")
        lines = f" and the metrics of {_counted(found.lines, 'step')}" if found.lines else ""
        return f"{_counted(found.checkpoints, 'checkpoint')} × {tensors}{lines}"

    def _kills(self) -> str:
        text = f"after {_counted(len(self.kills), 'kill')}"
        if self.in_saves:
            text += f", {self.in_saves} of them in the middle of a save"
        if len(self.kills) < self.wanted:
            text += f" ({self.wanted} were wanted, and the program ended before the rest)"
        return text


def _generator(what: str) -> str | None:
    """The global generator that a path leads to the state of: `random.python`."""
    names = what.split(".")
    return ".".join(names[:2]) if names[0] == RANDOM and len(names) > 1 else None


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def prove(
    command: Sequence[str],
    *,
    kills: int = 5,
    in_saves: int | None = None,
    seed: int | None = None,
    folder: Path | None = None,
    environment: Mapping[str, str] = _NOTHING,
    patience: float | None = None,
    say: Callable[[str], None] | None = None,
) -> Proof:
    """Run a program whole, then with kills, and compare all that both have saved.

    It must use a Checkpointer, which then saves into a store of the proof. `in_saves` of the
    kills are aimed at saves, a third of them unless it is said; `seed` draws the moments. The two
    stores and all that the program prints are kept in `folder`, if one is given, which must not
    have any of it yet. `patience` is the longest time without a commit, in seconds; without it, the
    whole run may take any time, and a resumed one ten times as long. `say` is told what happens.
    Raises ProofFailed for a program of which nothing can be proved.
    """
    if not command:
        raise BadOption("there is no command to run: give a program and its arguments")
    if folder is not None:
        check_local(folder)
    if kills < 1:
        raise BadOption(f"{kills} kills prove nothing: give a number from 1")
    tell = say or (lambda text: None)
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="standfast-")))
        whole = _program(command, folder, _WHOLE, environment)
        killed = _program(command, folder, _KILLED, environment)
        seconds, pace = whole.run_whole(patience)
        checkpoints = len(look_at(folder / _WHOLE).committed)
        tell(f"ran whole in {seconds:.1f} s, with {checkpoints} checkpoints; seed {seed}")
        moments = draw_moments(kills, checkpoints, seed, in_saves)
        happened = []
        for kill in killed.run_killed(moments, pace, seconds, patience):
            happened.append(kill)
            tell(f"kill {kill.number} of {kills} {kill}")
        if not happened:
            raise ProofFailed(
                f"the program ended after {seconds:.1f} s, before the first kill: let it run for "
                "more steps"
            )
        compared = compare_stores(folder / _WHOLE, folder / _KILLED)
    return Proof(tuple(command), seed, seconds, kills, tuple(happened), compared)


def _program(
    command: Sequence[str], folder: Path, name: str, environment: Mapping[str, str]
) -> Program:
    store, log = folder.absolute() / name, folder.absolute() / f"{name}.log"
    if store.exists() or log.exists():
        raise BadOption(f"{folder} has the {name} run of another proof: give a folder that is new")
    store.mkdir(parents=True)
    return Program(command, store, log, environment)
