"""A program that is started again and again, and killed in between, with all its processes."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from standfast.errors import ProofFailed
from standfast.store.schema import names
from standfast.training.beginning import PROOF
from standfast.training.proof.moments import Moment, Pace, Seen, look_at

_PAUSE: Final = 0.001
_PATIENCE: Final = 60.0
"""A program that was resumed has at least so many seconds until it commits something."""
_SLOWER: Final = 10
"""… and so many times the seconds that all of it took when it ran whole."""
_GOING: Final = 0.2
"""How many seconds are waited for the last processes of a group that was killed: where nobody
reaps orphans, they stay as zombies, which hold nothing."""
_SHOWN: Final = 20
_READ: Final = 16_384

Watcher = Callable[[Seen, float], bool]
"""Is told again and again what is in the store, and the seconds since the start; true kills."""


@dataclass(frozen=True)
class Kill:
    """A kill that happened."""

    number: int
    """From 1."""
    seconds: float
    """After the start of the process."""
    step: int
    """The last step that was committed, from which the next process goes on."""
    in_save: bool
    """Whether it left a save unfinished."""
    saving: int | None
    """The step that was being saved, if a file of it says so."""

    def __str__(self) -> str:
        where = f", with step {self.step} committed"
        if self.in_save:
            what = "a save" if self.saving is None else f"saving step {self.saving}"
            where += f", in the middle of {what}"
        return f"after {self.seconds:.1f} s{where}"


class Program:
    """A command whose checkpoints go into one store, and all that it prints into one log."""

    def __init__(
        self, command: Sequence[str], store: Path, log: Path, environment: Mapping[str, str]
    ) -> None:
        self._command = [*command]
        self._store = store
        self._log = log
        self._environment = {**os.environ, **environment, PROOF: str(store)}

    def run_whole(self, patience: float | None) -> tuple[float, Pace]:
        """Run it to its end; how long it took, and how fast it saved. Raises ProofFailed."""
        pace = Pace()
        begun = time.monotonic()

        def watch(seen: Seen, seconds: float) -> bool:
            pace.note(seen, seconds)
            return False

        self._run(watch, "the whole run", math.inf if patience is None else patience)
        taken = time.monotonic() - begun
        pace.note(look_at(self._store), taken)
        self._check_checkpoints()
        return taken, pace

    def _check_checkpoints(self) -> None:
        count = len(look_at(self._store).committed)
        if count == 0:
            raise self._failed(
                "the program ended well and committed no checkpoint to the store of the proof, as "
                "every Checkpointer does in a process that inherits the environment: does it use "
                "one?"
            )
        if count == 1:
            raise self._failed(
                "the program committed one checkpoint alone, at its end: killed before that it "
                "would begin anew, which proves nothing; give its Checkpointer a shorter `every`"
            )

    def run_killed(
        self, moments: Sequence[Moment], pace: Pace, whole: float, patience: float | None
    ) -> Iterator[Kill]:
        """Run it with a kill at each moment, and at last to its end; raises ProofFailed."""
        if patience is None:
            patience = max(_PATIENCE, _SLOWER * whole)
        for number, moment in enumerate(moments, 1):
            aim = _Aim(self._store, moment, pace)
            what = f"the run with kills, started the {_ordinal(number)} time,"
            seconds = self._run(aim, what, patience)
            if seconds is None:
                return  # it ended before the moment came
            yield aim.kill(number, seconds)
        what = f"the run with kills, resumed after the {_ordinal(len(moments))} kill,"
        self._run(lambda seen, seconds: False, what, patience)

    def _run(self, watch: Watcher, what: str, patience: float) -> float | None:
        """Run it until it ends, or is killed because `watch` says so; then after how long."""
        committed, since = 0, 0.0
        with self._log.open("ab") as log, self._started(log.fileno()) as process:
            begun = time.monotonic()
            while process.poll() is None:
                seconds, seen = time.monotonic() - begun, look_at(self._store)
                if len(seen.committed) > committed:
                    committed, since = len(seen.committed), seconds
                if seconds - since > patience:
                    raise self._failed(
                        f"{what} committed nothing for {seconds - since:.0f} s, and did not end"
                    )
                if watch(seen, seconds):
                    _kill(process)
                    if process.returncode == -signal.SIGKILL:
                        return seconds
                time.sleep(_PAUSE)
        if process.returncode:
            raise self._failed(f"{what} {_how_it_ended(process.returncode)}")
        return None

    @contextmanager
    def _started(self, log: int) -> Iterator[subprocess.Popen[bytes]]:
        try:
            process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,  # so that its children can be killed with it
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise ProofFailed(f"cannot start {self._command[0]!r}: {reason}") from error
        try:
            yield process
        finally:
            _kill(process)

    def _failed(self, message: str) -> ProofFailed:
        with self._log.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - _READ))
            lines = log.read().decode("utf-8", "replace").splitlines()
        return ProofFailed(message, "\n".join(lines[-_SHOWN:]))


class _Aim:
    """Says when the moment has come for a kill."""

    def __init__(self, store: Path, moment: Moment, pace: Pace) -> None:
        self._store = store
        self._moment = moment
        self._pace = pace
        self._before = look_at(store)
        self._since: float | None = None

    def __call__(self, seen: Seen, seconds: float) -> bool:
        count, due = len(seen.committed), self._moment.checkpoints
        at_start = len(self._before.committed) >= due
        if count < due:
            return False
        if count > max(due, len(self._before.committed)):
            return True  # the moment has gone by
        if self._moment.aimed:
            if self._since is None and seen.unfinished - self._before.unfinished:
                self._since = seconds
            if self._since is None:
                return False
        elif self._since is None:
            self._since = 0.0 if at_start else seconds
        return seconds - self._since >= self._pace.wait_before(self._moment, at_start)

    def kill(self, number: int, seconds: float) -> Kill:
        """What the kill has left."""
        seen = look_at(self._store)
        left = seen.unfinished - self._before.unfinished
        return Kill(number, seconds, seen.last, bool(left), _step_of(left))


def _step_of(files: frozenset[str]) -> int | None:
    for name in files:
        named = names.parse(name, name[:24])
        if named is not None:
            return named.step
    return None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with its whole group, and wait until none of it is left."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    deadline = time.monotonic() + _GOING
    with suppress(ProcessLookupError, PermissionError):
        while time.monotonic() < deadline:
            os.killpg(process.pid, 0)
            time.sleep(_PAUSE)


def _how_it_ended(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    with suppress(ValueError):
        return f"was ended by {signal.Signals(-code).name}"
    return f"was ended by signal {-code}"


def _ordinal(number: int) -> str:
    suffix = {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{'th' if 10 < number % 100 < 14 else suffix}"
