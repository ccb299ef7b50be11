"""Save the state, or convert a file, and print the peak of memory beyond it, in KiB.

Anonymous and shared memory count; pages of mapped files, which the system can drop, do not.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import standfast
from benchmarks.state import gpt2_with_adam


def unshared_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    status = {key: value for key, _, value in (line.partition(":") for line in lines)}
    return sum(int(status[key].split()[0]) for key in ("RssAnon", "RssShmem"))


class Watch(threading.Thread):
    """Looks at the memory all the time."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self.done = False

    def run(self) -> None:
        while not self.done:
            self.peak = max(self.peak, unshared_memory())
            time.sleep(0.001)


def peak_of(work: Callable[[], object]) -> int:
    """The most memory that was in use while this ran, beyond what was before, in KiB."""
    before = unshared_memory()
    watch = Watch()
    watch.start()
    work()
    watch.done = True
    watch.join()
    return watch.peak - before


def main() -> None:
    verb, *paths = sys.argv[1:]
    if verb == "save":
        print(peak_of(partial(standfast.save, paths[0], gpt2_with_adam())))
    else:
        print(peak_of(partial(standfast.convert, *paths)))
    Path(paths[-1]).unlink()


if __name__ == "__main__":
    main()
