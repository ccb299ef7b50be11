"""How much more memory parts of a program take, in a process of its own that measures itself."""

import subprocess
import sys

_MEASURE = """
import sys, threading, time
import numpy as np
import standfast

def unshared():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return sum(int(status[key].split()[0]) for key in ("RssAnon", "RssShmem"))

def measure(action):
    before = peak = unshared()
    done = threading.Event()
    def watch():
        nonlocal peak
        while not done.wait(0.001):
            peak = max(peak, unshared())
    watcher = threading.Thread(target=watch)
    watcher.start()
    action()
    done.set()
    watcher.join()
    print(peak - before)
"""


def peaks(program: str, *arguments: object) -> list[int]:
    """Run a program that calls `measure(action)`; the KiB that each action took at its peak.

    It finds the arguments in `sys.argv`, and has imported NumPy as np and Standfast.
    """
    command = [sys.executable, "-c", _MEASURE + program, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]
