"""A save takes at most 64 MiB beyond the state, whatever its size; a refusal takes none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import sys, threading, time
import numpy as np
import standfast

def unshared():
    status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
    return sum(int(status[key].split()[0]) for key in ("RssAnon", "RssShmem"))

def watch():
    global peak
    while not done:
        peak = max(peak, unshared())
        time.sleep(0.001)

count = (48 << 20) // 4
standfast.save(sys.argv[1], {"warm": np.ones(10)})
for make in (
    lambda: np.ones(count, np.float32),
    lambda: np.ones((count // 1000, 1000), np.float32).T,
    lambda: np.ones(count, ">f4"),
):
    state = {f"x{i}": make() for i in range(4)}
    before, peak, done = unshared(), 0, False
    watcher = threading.Thread(target=watch)
    watcher.start()
    standfast.save(sys.argv[1], state)
    done = True
    watcher.join()
    print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_save_takes_at_most_64_mib_beyond_the_state(tmp_path: Path) -> None:
    """Whether its tensors are contiguous, transposed or of another byte order."""
    program = [sys.executable, "-c", PROGRAM, str(tmp_path / "state.safetensors")]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    contiguous, transposed, swapped = map(int, done.stdout.split())
    assert 8 << 10 < contiguous <= 64 << 10, "KiB"
    assert max(transposed, swapped) <= 64 << 10, "KiB"
