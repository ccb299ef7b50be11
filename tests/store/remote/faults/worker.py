"""A process that works on a store beside others: `python -m tests.store.remote.faults.worker`.

For each line on its input it forks a child, says the child's pid, and then how it ended. This
process itself never uses a store, so that the children may.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback

from standfast import Store
from standfast.errors import RunBusy, StepExists, UnsupportedStore
from standfast.files import ring
from standfast.store.remote import new_file
from standfast.store.remote.backend import RemoteBackend
from standfast.store.save.writers import Writer
from tests.kit.stores import MIB
from tests.store.remote.places import PART, large, state

LONGEST = 60
"""A child that hangs is ended after so many seconds."""


def save(url: str, number: int) -> None:
    """Save a state in parts, and close the run."""
    with Store(url).run("a") as run:
        run.save(number, large(number))


def save_many(url: str, number: int) -> None:
    """Save ten states into a run of its own."""
    with Store(url).run(f"run {number}") as run:
        for step in range(10):
            run.save(step, state(10 * number + step))


def race(url: str, number: int) -> None:
    """Save step 1 of a run, as others do; ends with 3 if another one was faster.

    Ends with 4 if the server cannot tell who is.
    """
    _race(url, number)


def race_without_locks(url: str, number: int) -> None:
    """The same, with locks that keep nobody out: only the server decides who creates the record.

    Nothing is swept: without locks, files of a save in progress look like those of a dead one.
    """
    Writer.sweep = lambda *_, **__: None  # type: ignore[method-assign]
    RemoteBackend.lock = lambda *_, **__: _Lock()  # type: ignore[assignment, return-value, method-assign]
    _race(url, number)


def _race(url: str, number: int) -> None:
    try:
        run = Store(url).run("a")
        run.save(1, {"number": number, **large(1)})
    except (RunBusy, StepExists):
        os._exit(3)
    except UnsupportedStore:
        os._exit(4)


class _Lock:
    def is_held(self) -> bool:
        return True

    def release(self) -> None:
        pass

    def __enter__(self) -> _Lock:
        return self

    def __exit__(self, *error: object) -> None:
        pass


def hold(url: str, number: int) -> None:
    """Take a lock and a pin for so many seconds; ends with 10 if it has them when told."""
    backend = RemoteBackend(url, lease=number)
    lock = backend.lock("a")
    assert lock is not None
    pin = backend.lock("a.pin.1.x", passing=True)
    assert pin is not None
    signal.sigwait({signal.SIGUSR1})
    held = lock.is_held()
    lock.release()
    pin.release()
    os._exit(10 if held else 11)


WORK = {each.__name__: each for each in (save, save_many, race, race_without_locks, hold)}


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
