"""Run a program in a child of each rank: apart.py FOLDER PATTERN ARGUMENTS OF PYTHON

MPI watches its ranks, and ends the others when one dies; told not to, it does so now and then all
the same. Of the children it knows nothing, and so the survivors are left to find out by themselves.
They report by files in the folder, which the ranks wait for: all but one.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

LONGEST = 30.0
"""How many seconds the survivors may take to report."""


def main(folder: Path, pattern: str, *arguments: str) -> None:
    # The child talks to MPI through ours, and ends with this process.
    command = [sys.executable, *arguments]
    subprocess.run(command, close_fds=False, check=False, preexec_fn=_die_with_parent)
    # The first of them to end would end the others, who may have more to say.
    deadline = time.monotonic() + LONGEST
    survivors = int(os.environ["PMI_SIZE"]) - 1
    while len(list(folder.glob(pattern))) < survivors and time.monotonic() < deadline:
        time.sleep(0.02)


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
