"""Run `on_mpi.py` in a child of each rank: `apart.py FOLDER RANK AT`.

MPI watches its ranks, and ends the others when one dies; told not to, it does so now and then all
the same. Of the children it knows nothing, and so the survivors are left to find out by themselves.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

LONGEST = 30.0
"""How many seconds the survivors may take to report."""


def main(folder: Path, *arguments: str) -> None:
    program = Path(__file__).with_name("on_mpi.py")
    command = [sys.executable, str(program), str(folder), *arguments, "silently"]
    subprocess.run(command, close_fds=False, check=False)  # the child talks to MPI through ours
    # The first of them to end would end the others, who may have more to say.
    deadline = time.monotonic() + LONGEST
    survivors = int(os.environ["PMI_SIZE"]) - 1
    while len(list(folder.glob("*.json"))) < survivors and time.monotonic() < deadline:
        time.sleep(0.02)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
