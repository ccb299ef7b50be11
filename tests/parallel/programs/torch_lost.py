"""Lose rank 1 of torch, and see what the others say: torch_lost.py HOW FOLDER

Each rank writes what it raised into a file of its own.
"""

import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any

import torch.distributed as dist

from standfast.parallel import TorchRanks
from tests.parallel.programs import torch_world

TIMEOUT = 4.0
NOISE = bytes(1_000_000)


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def hang(folder: Path) -> None:
    """Until the others have given up."""
    deadline = time.monotonic() + 60
    while len(list(folder.glob("*.txt"))) < dist.get_world_size() - 1:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os._exit(0)


def lose(how: str, folder: Path) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == "hang":
        hang(folder)
    elif how == "end":
        os._exit(0)
    elif how == "raise":
        raise ZeroDivisionError("by zero")
    elif how == "interrupt":
        signal.signal(signal.SIGALRM, interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.3)


def talk(how: str, folder: Path) -> None:
    if how == "absent" and dist.get_rank() == 1:
        hang(folder)
    comm: Any = TorchRanks(timeout=TIMEOUT if how == "absent" else 60.0)
    comm.all_gather(NOISE)
    if how == "hang":
        comm.timeout = TIMEOUT  # now that all are there, however long one took to start
    if how == "message":  # after its header, so that the others wait for the message itself
        if comm.rank == 1:
            comm._trade_messages = lambda *_: os._exit(0)
    elif comm.rank == 1:
        time.sleep(0.5)  # by now the others wait
        lose(how, folder)
    if comm.rank == 2 and how == "interrupt":
        hang(folder)  # so that rank 1 is interrupted while it waits
    comm.exchange([NOISE] * comm.size)


def main(how: str, folder: Path) -> None:
    torch_world.begin()
    try:
        talk(how, folder)
    except (Exception, KeyboardInterrupt) as error:
        partial = folder / f"{dist.get_rank()}.partial"
        partial.write_text(f"{type(error).__name__}\n{error}")
        partial.rename(partial.with_suffix(".txt"))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
