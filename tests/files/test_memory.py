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

kind, path = sys.argv[1:]
width = 96 << 20
if kind == "contiguous":
    state = {f"x{i}": np.ones(width // 4, np.float32) for i in range(6)}
elif kind == "transposed":
    state = {f"x{i}": np.ones((width // 4 // 1000, 1000), np.float32).T for i in range(6)}
else:
    state = {f"x{i}": np.ones(width // 4, ">f4") for i in range(6)}
standfast.save(path, {"warm": np.ones(10)})
before, peak, done = unshared(), 0, False

def watch():
    global peak
    while not done:
        peak = max(peak, unshared())
        time.sleep(0.001)

watcher = threading.Thread(target=watch)
watcher.start()
standfast.save(path, state)
done = True
watcher.join()
print(peak - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("kind", ["contiguous", "transposed", "swapped"])
def test_a_save_takes_at_most_64_mib_beyond_the_state(kind: str, tmp_path: Path) -> None:
    program = [sys.executable, "-c", PROGRAM, kind, str(tmp_path / "state.safetensors")]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    assert 8 << 10 < int(done.stdout) <= 64 << 10, "KiB"
