"""Make a change again and again, killed at each of its file operations: `killed.py NAME FOLDER`.

The folder gets a store for each; the exit codes are printed. One process is started and
prepared, and forks a child for each operation.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from standfast.files import disk, ring
from standfast.store import Store
from standfast.store.save import planning
from tests.kit.disk_faults import kill
from tests.kit.fault_states import SMALL_BLOCK, SMALL_PART, Faulty, UnsyncedDisk, copy_store
from tests.store.faults.changes import CHANGES

_LONGEST = 60
"""A child that hangs is ended after so many seconds."""


def killed_at_each(name: str, folder: Path) -> list[int]:
    change = CHANGES[name]
    change.prepare(folder / "prepared")
    codes: list[int] = []
    while not codes or codes[-1] == -signal.SIGKILL:
        path = folder / str(len(codes) + 1)
        copy_store(folder / "prepared", path)
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(_LONGEST)
                disk.LOCAL = Faulty(len(codes) + 1, kill)  # type: ignore[misc]
                change.act(Store(path))
                code = 0
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


if __name__ == "__main__":
    ring.BLOCK, planning.TOGETHER = SMALL_BLOCK, SMALL_PART  # type: ignore[misc]
    disk.LOCAL = UnsyncedDisk()  # type: ignore[misc]
    print(*killed_at_each(sys.argv[1], Path(sys.argv[2])))
