"""Other processes that work on a store: `python -m tests.store.remote.workers`.

For each line on its input a worker forks a child, says the child's pid, and then how it ended. The
worker itself never uses a store, so that its children may.
"""

import json
import os
import signal
import subprocess
import sys
import traceback
from contextlib import nullcontext

from standfast import Store
from standfast.errors import RunBusy, StepExists
from standfast.files import ring
from standfast.store.remote import new_file
from standfast.store.remote.backend import RemoteBackend
from standfast.store.save.writers import Writer
from tests.store.remote.places import MIB, PART, large, state

LONGEST = 60
"""A child that hangs is ended after so many seconds."""
TOLD = ("AWS_", "XDG_", "STANDFAST_")
"""What a child is told of the environment of the moment."""


class Worker:
    """Another process, of which children do the work, one after the other."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.store.remote.workers"]
        self.process = subprocess.Popen(command, stdin=-1, stdout=-1, text=True)

    def begin(self, what: str, url: str, number: int = 0) -> int:
        """Let a child do its work; returns its pid."""
        assert self.process.stdin is not None
        environment = {name: os.environ[name] for name in os.environ if name.startswith(TOLD)}
        self.process.stdin.write(json.dumps([what, url, number, environment]) + "\n")
        self.process.stdin.flush()
        return self.ended()

    def ended(self) -> int:
        """How the child ended."""
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.__exit__(None, None, None)


def save(url: str, number: int) -> None:
    """Save a state in parts, and close the run."""
    with Store(url).run("a") as run:
        run.save(number, large(number))


def save_many(url: str, number: int) -> None:
    """Save some states into a run of its own."""
    with Store(url).run(f"run {number}") as run:
        for step in range(5):
            run.save(step, state(10 * number + step))


def race(url: str, number: int) -> None:
    """Save step 1 of a run, as others do; ends with 3 if another one was faster."""
    try:
        run = Store(url).run("a")
        run.save(1, {"number": number, **large(1)})
    except (RunBusy, StepExists):
        os._exit(3)


class Lock(nullcontext[None]):
    """One that keeps no other process out."""

    def is_held(self) -> bool:
        return True

    def release(self) -> None:
        pass


def race_without_locks(url: str, number: int) -> None:
    """The same, with locks that keep nobody out: only the server decides who creates the record.

    Nothing is swept: without locks, files of a save in progress look like those of a dead one.
    """
    Writer.sweep = lambda *_, **__: None  # type: ignore[method-assign]
    RemoteBackend.lock = lambda *_, **__: Lock()  # type: ignore[assignment, return-value, method-assign]
    race(url, number)


def hold(url: str, number: int) -> None:
    """Take a lock and a pin for so many seconds; ends with 10 if it has them when told."""
    backend = RemoteBackend(url, lease=number)
    lock, pin = backend.lock("a"), backend.lock("a.pin.1.x", passing=True)
    assert lock is not None
    assert pin is not None
    signal.sigwait({signal.SIGUSR1})
    held = lock.is_held()
    lock.release()
    pin.release()
    os._exit(10 if held else 11)


KINDS = (save, save_many, race, race_without_locks, hold)
WORK = {each.__name__: each for each in KINDS}


def main() -> None:
    ring.BLOCK, new_file._PART = MIB, PART  # type: ignore[misc]
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    for line in sys.stdin:
        what, url, number, environment = json.loads(line)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(LONGEST)
                os.environ.update(environment)
                WORK[what](url, number)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    main()
