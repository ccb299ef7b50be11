"""Saves that are killed at each of their file operations: `killed.py FOLDER KIND`.

Each is in a folder of its own below FOLDER; the exit codes are printed. One process is started
and forks a child for each operation.
"""

import os
import signal
import sys
from pathlib import Path

import standfast
from standfast.files.disk import Disk
from tests.files.folder_swap.folder_states import DISKS, prepare, save
from tests.files.states import NEW, OLD, SMALL_BLOCK
from tests.kit.disk_faults import FaultyDisk, kill
from tests.kit.seams import Seams

_LONGEST = 60
"""A child that hangs is ended after so many seconds."""


def save_killed(folder: Path, kind: str, at: int) -> None:
    disk = type("Faulty", (FaultyDisk, DISKS.get(kind, Disk)), {})(at, kill)
    if kind in DISKS:
        save(folder / "model", disk)
        return
    with Seams.until_end() as seams:
        seams.bound("blocks of the ring", SMALL_BLOCK)
        seams.disk(disk)
        standfast.save(folder / "state.safetensors", NEW)


def killed_at_each(folder: Path, kind: str) -> list[int]:
    codes: list[int] = []
    while not codes or codes[-1] == -signal.SIGKILL:
        place = folder / str(len(codes) + 1)
        place.mkdir()
        if kind in DISKS:
            prepare(place / "model")
        else:
            (place / "state.safetensors").write_bytes((folder / "old").read_bytes())
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(_LONGEST)
                save_killed(place, kind, len(codes) + 1)
                code = 0
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


if __name__ == "__main__":
    below, what = Path(sys.argv[1]), sys.argv[2]
    if what not in DISKS:
        standfast.save(below / "old.safetensors", OLD)
        (below / "old.safetensors").rename(below / "old")
    print(*killed_at_each(below, what))
