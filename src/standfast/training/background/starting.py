"""How a process beside the training process is started."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from standfast.training.background.channel import STOPS

_PATHS: Final = "STANDFAST_PYTHONPATH"
_RUN: Final = f"""
import os, runpy, sys
sys.path[:] = dict.fromkeys([*os.environ.pop("{_PATHS}").split(os.pathsep), *sys.path])
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
"""Not by PYTHONPATH: what the process starts may be written for another Python, and inherits it."""


def start_module(
    module: str, arguments: Iterable[object], kept: Sequence[int] = ()
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a module as a program, with PARENT SOCKET …; returns it, and this end of its line.

    It gets none of this process's streams and is in no group of its, so that nothing that is
    meant for this process reaches it; of its files it has those in `kept`. Raises OSError if it
    cannot be.
    """
    with no_forks, _blocked(STOPS):
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                line = theirs.fileno()
                given = (os.getpid(), line, *arguments)
                process = subprocess.Popen(
                    [*_python(), "-c", _RUN, module, *map(str, given)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(line, *kept),
                    start_new_session=True,
                    env={**os.environ, _PATHS: os.pathsep.join(_paths())},
                )
        except BaseException:
            ours.close()
            raise
        return process, ours


def how_it_ended(code: int) -> str:
    """What became of a process, by its exit code, for a message."""
    if code >= 0:
        return f"ended with exit code {code}"
    memory = ", as happens when memory runs out" if code == -signal.SIGKILL else ""
    return f"was killed by signal {-code}{memory}"


@contextmanager
def _blocked(signals: Collection[signal.Signals]) -> Iterator[None]:
    """Keep signals from what is started meanwhile, until it ignores them by itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _python() -> list[str]:
    """The interpreter, which takes no modules from the working directory."""
    if not sys.executable:
        raise FileNotFoundError("nobody knows where the Python interpreter is")
    return [sys.executable, "-P", *(["-E"] if sys.flags.ignore_environment else [])]


def _paths() -> list[str]:
    """Where this process finds modules, so that the other finds the same Standfast."""
    paths = [os.path.abspath(path) for path in sys.path if isinstance(path, str)]
    return [path for path in paths if os.pathsep not in path]


no_forks = threading.Lock()
"""Held while one is started: a child with the other end of the line would keep it open."""

os.register_at_fork(
    before=no_forks.acquire, after_in_parent=no_forks.release, after_in_child=no_forks.release
)
