"""Save the state and print the peak of anonymous and shared memory beyond it, in KiB."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import holdfast
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


if __name__ == "__main__":
    path = Path(sys.argv[1])
    state = gpt2_with_adam()
    before = unshared_memory()
    watch = Watch()
    watch.start()
    holdfast.save(path, state)
    watch.done = True
    watch.join()
    path.unlink()
    print(watch.peak - before)
