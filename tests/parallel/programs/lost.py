"""Lose rank 1, and see what the others say: lost.py HOW FOLDER

Each rank writes what it raised into a file of its own.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from mpi4py import MPI

from standfast.parallel import MPIRanks

TIMEOUT = 4.0
NOISE = bytes(1_000_000)
"""A message that MPI sends only when the other side takes it."""


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def lose(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how in ("hang", "absent"):
        time.sleep(600)
    elif how == "end":
        sys.exit(0)  # MPI waits for the others, in its end
    elif how == "interrupt":
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.1)


def talk(how: str) -> None:
    world = MPI.COMM_WORLD
    if world.rank == 1 and how == "absent":
        lose(how)
    comm = MPIRanks(world, timeout=TIMEOUT if how == "absent" else 60.0)
    comm.all_gather(NOISE)
    if how != "interrupt":
        comm.timeout = TIMEOUT  # now that all are there, however long one took to start
    if comm.rank == 1:
        lose(how)
    if comm.rank == 2 and how == "interrupt":
        time.sleep(600)  # so that rank 1 is interrupted while it waits
    comm.exchange([NOISE] * comm.size)


def record(folder: Path, error: BaseException) -> None:
    """Write it down, and wait for that of other survivors: this rank will end them all."""
    survivors = MPI.COMM_WORLD.size - 1
    partial = folder / f"{MPI.COMM_WORLD.rank}.partial"
    partial.write_text(f"{type(error).__name__}\n{error}")
    partial.rename(partial.with_suffix(".txt"))
    deadline = time.monotonic() + 30
    while len(list(folder.glob("*.txt"))) < survivors and time.monotonic() < deadline:
        time.sleep(0.01)


def main(how: str, folder: Path) -> None:
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # by which hydra ends the others of a dead rank
    try:
        talk(how)
    except (Exception, KeyboardInterrupt) as error:
        record(folder, error)
        raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
