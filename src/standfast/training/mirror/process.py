"""The process that copies the checkpoints of a run into its mirror.

    standfast.training.mirror.process PARENT SOCKET STORE RUN PLACE KEEP

It looks at the folder of the run about once a second, and has nothing of the training process but
a socket, at whose end it ends. What it was in the middle of is found missing by the next one.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Never

import msgspec

from standfast.errors import RunCollision, StandfastError, printable, shortened
from standfast.files.threads import Thread
from standfast.policies import Retention
from standfast.store import Store
from standfast.store.backends.local import LocalBackend
from standfast.store.retention.retaining import said
from standfast.store.schema import names
from standfast.store.schema.record import Head
from standfast.training.background.channel import STOPS
from standfast.training.background.helper import die_with
from standfast.training.mirror.report import Report, encode
from standfast.training.mirror.upload import Uploader

_LOOK: Final = 1.0
"""About so many seconds pass until a checkpoint is noticed."""
_SETTLED: Final = 2_000_000_000
"""A folder that changed less than this many nanoseconds ago may change again in the same tick."""
_PAUSES: Final = (1.0, 60.0)
"""The seconds until it is tried again, the first time and at most."""
_OFTEN: Final = 0.5
"""The seconds between two words about a copy that goes on."""
_NICE: Final = 10


def main(parent: str, line: str, store: str, run: str, place: str, keep: str) -> None:
    """Serve until the training process hangs up or dies."""
    die_with(int(parent))
    for number in STOPS:
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(_NICE)  # the training comes first
    local = Store(LocalBackend(Path(store)))
    wanted = msgspec.json.decode(keep, type=Retention | None)
    Service(
        socket.socket(fileno=int(line)), local, run, Uploader(local, run, place, wanted)
    ).serve()


class Service:
    """Has what is missing copied, again and again, and tells of it."""

    def __init__(self, line: socket.socket, local: Store, run: str, uploader: Uploader) -> None:
        self._line = line
        self._local = local
        self._run = run
        self._uploader = uploader
        self._woken = threading.Event()
        self._asked = 0
        self._report = Report()
        self._told = 0.0

    def serve(self) -> None:
        """Go on until the training process is gone."""
        Thread(self._listen)
        while True:
            self._woken.clear()
            asked, version, now = self._asked, self._version(), time.time_ns()
            try:
                self._catch_up()
            except Exception as error:
                self._uploader.forget_mirror()
                failures = self._report.failures + 1
                self._tell(
                    asked=asked,
                    waiting=self._uploader.count_missing(),
                    failures=failures,
                    is_refused=isinstance(error, RunCollision),
                    problem=_text(error),
                )
                first, most = _PAUSES
                self._woken.wait(min(first * 2 ** min(failures - 1, 10), most))
            else:
                self._tell(
                    asked=asked,
                    waiting=0,
                    failures=0,
                    is_refused=False,
                    problem=self._uploader.problem,
                    step=self._uploader.step,
                )
                self._wait_for_change(version, now)

    def _catch_up(self) -> None:
        """Copy until nothing is missing."""
        missing = self._uploader.missing()
        while missing:
            self._tell(waiting=len(missing))
            self._copy(missing[0])
            missing = self._uploader.missing()  # a newer one may have come meanwhile
        self._tell(waiting=0)
        self._uploader.tidy()

    def _copy(self, head: Head) -> None:
        def moved(nbytes: int) -> None:
            self._report = msgspec.structs.replace(self._report, moved=self._report.moved + nbytes)
            if time.monotonic() - self._told > _OFTEN:
                self._tell()

        self._uploader.copy(head, moved)
        self._tell(step=self._uploader.step, failures=0, problem=self._uploader.problem)

    def _wait_for_change(self, version: tuple[int, ...] | None, seen: int) -> None:
        """Wait until something may have changed in the folder of the run, or somebody asks."""
        settled = version is not None and version[0] < seen - _SETTLED
        while not self._woken.wait(_LOOK):
            if not settled or self._version() != version:
                return

    def _version(self) -> tuple[int, ...] | None:
        with suppress(StandfastError):
            return self._local.backend.version(names.run_folder(self._run))
        return None

    def _tell(self, **fields: object) -> None:
        self._told = time.monotonic()
        self._report = msgspec.structs.replace(self._report, **fields)
        with suppress(OSError):  # then it is about to be ended
            self._line.sendall(encode(self._report) + b"\n")

    def _listen(self) -> None:
        """Take in what is asked; once the training process is gone, nobody waits for the rest."""
        with suppress(OSError):
            while asked := self._line.recv(4096):
                self._asked += len(asked)
                self._woken.set()
        os._exit(0)


def _text(error: Exception) -> str:
    text = said(error) if isinstance(error, StandfastError) else f"{type(error).__name__}: {error}"
    line = printable(text.partition("\n")[0])
    return line if isinstance(error, RunCollision) else shortened(line)


def _run() -> Never:
    main(*sys.argv[1:])
    sys.exit()


if __name__ == "__main__":
    _run()
