"""The mirror of a run, as the training process sees it: another process copies into it.

The loop has nothing to do with it: no save calls it, and no failure of it is raised.
"""

from __future__ import annotations

import math
import os
import socket
import subprocess
import threading
import time
import warnings
import weakref
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from standfast.errors import BadOption, NotMirrored
from standfast.files.paths import is_url
from standfast.files.threads import Thread
from standfast.policies import Retention, retention
from standfast.store import Run, Store
from standfast.store.backends.local import LocalBackend
from standfast.store.query.mirrors import mirror_place, open_mirror, remember_mirror
from standfast.store.retention.budgets import after_save
from standfast.training.background.starting import how_it_ended, start_module
from standfast.training.best import Best
from standfast.training.mirror.report import Report, decode

_PAUSES: Final = (1.0, 60.0)
"""The seconds until a process that ended is started again, the first time and at most."""
_OFTEN: Final = 3
"""So many failures in a row are worth a warning."""
_SILENT: Final = 3.0
"""A wait at the end of so many seconds is worth a word."""
_PATIENCE: Final = 30.0
"""So many seconds without any progress end that wait."""
_REQUESTS: Final = 6
"""So many times as long as a request is repeated, if one may be under way: a large one takes four
times that, and after the last byte was handed over, several wait for their turn."""
_GRACE: Final = 10.0
"""So many seconds it takes at most, once a signal has asked the program to end."""
_TICK: Final = 0.1
_END: Final = 5.0


@dataclass(frozen=True)
class Mirrored:
    """How far a mirror is, as the process that copies has said last."""

    place: str
    step: int | None
    """The newest step that is in the mirror; None if none is, or nobody knows yet."""
    waiting: int
    """How many checkpoints it lacks."""
    problem: str | None
    """What goes wrong, if anything does."""


@dataclass(frozen=True)
class MirrorSettings:
    """What a Checkpointer was told about its mirror."""

    place: str
    keep: Retention | None
    wait: float | None
    is_used: bool
    """False if another store is in use than the program names: the mirror is that one's."""

    @classmethod
    def of(
        cls, store: Store, is_named: bool, place: Any, keep: Any, wait: Any, best: Best
    ) -> MirrorSettings | None:
        """As they were given; None if there shall be no mirror. Raises BadOption."""
        if place is None:
            if keep is not None or wait is not None:
                raise BadOption("mirror_keep and mirror_wait are for a mirror: give that too")
            return None
        is_number = isinstance(wait, int | float) and not isinstance(wait, bool)
        if wait is not None and not (is_number and wait >= 0):
            raise BadOption(f"mirror_wait is a number of seconds, not {wait!r}")
        if type(store.backend) is not LocalBackend:
            raise BadOption(f"{store.url}: only a store in a folder of this machine has a mirror")
        wanted = retention(keep, None, best.monitor, best.mode)
        settings = cls(mirror_place(place), wanted, wait, is_named)
        _check_apart(settings.place, open_mirror(settings.place).url, store.url)
        return settings


def _check_apart(place: str, mirror: str, store: str) -> None:
    """Raise BadOption if a mirror is the store, by whatever path, or one is in the other."""
    if is_url(mirror):
        return
    there, here = os.path.realpath(mirror), os.path.realpath(store)
    if there == here:
        raise BadOption(f"the mirror {place} is the store itself")
    if os.path.commonpath([there, here]) in (there, here):
        raise BadOption(f"the mirror {place} and the store {store} lie in each other")


def start_mirror(
    run: Run, settings: MirrorSettings, say: Callable[[str], None], undo: ExitStack
) -> Mirror | None:
    """Start to copy into the mirror of a run, if it has one; `undo` ends that."""
    if not settings.is_used:
        say(f"nothing is copied to {settings.place}, which is no mirror of {run.store.url}")
        return None
    mirror = Mirror(run, settings, say)
    undo.callback(mirror.close)
    mirror.start()
    return mirror


class Mirror:
    """Has a process copy into the mirror, from `start` until `close`."""

    def __init__(self, run: Run, settings: MirrorSettings, say: Callable[[str], None]) -> None:
        self._run = run
        self._settings = settings
        self._say = say
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._report = Report()
        self._asked = 0
        self._moved_at = time.monotonic()
        """When there was progress last."""
        self._death: str | None = None
        """What became of the process that was, while there is no other."""
        self._line: socket.socket | None = None
        self._is_heard = False
        """Whether the report is one of the process that there is now."""
        self._longest = _REQUESTS * _request_time(settings.place)
        self._closing = False
        self._has_warned = False
        self._thread: Thread | None = None
        _alive.add(self)

    def start(self) -> None:
        """Remember the mirror in the store, and start the process; returns at once."""
        remember_mirror(self._run.store.backend, self._run.hash, self._settings.place)
        self._thread = Thread(self._work)

    @property
    def mirrored(self) -> Mirrored:
        """How far it is."""
        with self._changed:
            report = self._report
            problem = self._death or report.problem
            return Mirrored(self._settings.place, report.step, report.waiting, problem)

    def end(self, is_asked_to_end: Callable[[], bool]) -> None:
        """Wait until nothing is missing, as long as that goes on, and end the process.

        Ctrl-C ends the wait: what is missing is copied by the next one.
        """
        try:
            self._finish(is_asked_to_end)
        finally:
            self.close()
        if self._run.is_limited():  # what was being copied could not be deleted before
            after_save(self._run.store, self._run.hash)

    def _finish(self, is_asked_to_end: Callable[[], bool]) -> None:
        try:
            if self._wait(is_asked_to_end):
                if problem := self.mirrored.problem:
                    self._say(f"the mirror {self._settings.place}: {problem}")
                return
            why = ""
        except KeyboardInterrupt:
            why = " (Ctrl-C)"
        now = self.mirrored
        problem = f": {now.problem}" if now.problem else ""
        count = f"{now.waiting} checkpoints are" if now.waiting != 1 else "a checkpoint is"
        if not self._is_heard or not now.waiting:
            count = "some checkpoints may be"
        self._say(
            f"{count} not in the mirror {now.place} yet{why}{problem}; the next start of the "
            "program copies what is missing, or `standfast push --all`"
        )

    def _wait(self, is_asked_to_end: Callable[[], bool]) -> bool:
        begun = self._moved_at = time.monotonic()
        last = math.inf if self._settings.wait is None else begun + self._settings.wait
        has_spoken = is_ending = False
        with self._changed:
            self._ask()
            while not self._is_done():
                now = time.monotonic()
                if is_asked_to_end() and not is_ending:
                    is_ending, last = True, min(last, now + _GRACE)
                if now >= last or now - self._moved_at > self._patience():
                    return False
                if now - begun > _SILENT and not has_spoken:
                    has_spoken = True
                    self._say(
                        f"waiting for {_counted(self._report.waiting)} to reach the "
                        f"mirror {self._settings.place}; Ctrl-C ends the wait and loses nothing"
                    )
                self._changed.wait(_TICK)
        return True

    def _patience(self) -> float:
        """So many seconds without any progress end the wait as things are.

        Bytes count when they are handed over; a server that is slow to take the last of them is
        waited for as long as its requests may take, until one has failed.
        """
        report = self._report
        is_copying = self._is_heard and report.waiting and not report.failures
        return max(_PATIENCE, self._longest) if is_copying else _PATIENCE

    def _is_done(self) -> bool:
        report = self._report
        is_up_to_date = self._is_heard and report.asked >= self._asked
        is_all_there = not report.waiting and not report.failures
        return is_up_to_date and (is_all_there or report.is_refused)

    def _ask(self) -> None:
        """Have it look now; the line is never waited for."""
        self._asked += 1
        with suppress(OSError):
            if self._line is not None:
                self._line.send(b"?", socket.MSG_DONTWAIT)

    def close(self) -> None:
        """End the process; what it has not copied stays to be copied. Can be called again."""
        if self._process != os.getpid():
            return
        with self._changed:
            self._closing = True
            self._changed.notify_all()
            self._hang_up()
        if self._thread is not None:
            self._thread.join()

    def _hang_up(self) -> None:
        if self._line is not None:
            with suppress(OSError):
                self._line.shutdown(socket.SHUT_RDWR)

    # The thread, which lives as long as the process: Linux ends that with it

    def _work(self) -> None:
        deaths = 0
        while not self._closing:
            before = self._report
            try:
                problem = self._serve()
            except (OSError, subprocess.SubprocessError, ValueError) as error:
                problem = f"the process that copies into the mirror cannot be started: {error}"
            with self._changed:
                if self._closing:
                    return
                deaths = deaths + 1 if self._report.step == before.step else 1
                self._death = problem
            self._warn(deaths, problem)
            first, most = _PAUSES
            with self._changed:
                pause = min(first * 2 ** min(deaths - 1, 10), most)
                self._changed.wait_for(lambda: self._closing, pause)

    def _serve(self) -> str:
        """Start a process and hear what it says until it ends; what became of it."""
        keep = msgspec.json.encode(self._settings.keep).decode()
        store = self._run.store.url
        process, line = start_module(
            "standfast.training.mirror.process",
            (store, self._run.hash, self._settings.place, keep),
        )
        try:
            with self._changed:
                self._line, self._asked = line, min(self._asked, 1)
                self._is_heard = False
                if self._asked:  # the one before may have been asked in vain
                    line.send(b"?")
                if self._closing:
                    self._hang_up()
            with line.makefile("rb") as said:
                for text in said:
                    self._take(decode(text))
        except (OSError, msgspec.DecodeError):
            pass  # a line that breaks off
        finally:
            with self._changed:
                self._line = None
            line.close()
            code = _ended(process)
        return f"the process that copies into the mirror {how_it_ended(code)}"

    def _take(self, report: Report) -> None:
        with self._changed:
            old, self._report = self._report, report
            self._death, self._is_heard = None, True
            is_less = report.waiting < old.waiting
            is_first_failure = report.failures == 1 and not old.failures  # it is tried once more
            is_moved = (old.moved, old.step) != (report.moved, report.step)
            if is_less or is_moved or is_first_failure:
                self._moved_at = time.monotonic()
            self._changed.notify_all()
        self._warn(_OFTEN if report.is_refused else report.failures, report.problem)

    def _warn(self, failures: int, problem: str | None) -> None:
        """Say once that it does not work."""
        if failures >= _OFTEN and not self._has_warned and not self._closing:
            self._has_warned = True
            with suppress(Warning):  # where warnings are errors: training does not fail for it
                warnings.warn(
                    f"the mirror {self._settings.place} gets no checkpoints: {problem}; it is "
                    "tried again and again, and the training goes on",
                    NotMirrored,
                    stacklevel=2,
                )

    def let_go(self) -> None:
        """In a forked child: the line is its parent's."""
        if self._line is not None:
            with suppress(OSError):
                os.close(self._line.detach())  # its `close` would wait for that of the stream


def _request_time(place: str) -> float:
    """So many seconds a request to a mirror is repeated; a folder has none."""
    if not is_url(place):
        return 0.0
    from standfast.store.remote.connection import timeout  # which a folder need not wait for

    with suppress(BadOption):  # the process that copies says so
        return timeout().total_seconds()
    return 0.0


def _counted(waiting: int) -> str:
    return "the last checkpoint" if waiting <= 1 else f"{waiting} checkpoints"


def _ended(process: subprocess.Popen[bytes]) -> int:
    """Wait until a process has ended that nobody needs any more."""
    try:
        return process.wait(_END)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


_alive: weakref.WeakSet[Mirror] = weakref.WeakSet()


def _forget() -> None:
    """In a forked child, which would keep the lines open after its parent's death."""
    for mirror in list(_alive):
        mirror.let_go()


os.register_at_fork(after_in_child=_forget)
