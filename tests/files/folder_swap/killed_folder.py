"""Replace folders, killed at each of the file operations: `killed_folder.py FOLDER DISK`.

Each is in a folder of its own below FOLDER; the exit codes are printed. One process is started
and forks a child for each operation.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from tests.files.folder_swap.folder_states import DISKS, prepare, save
from tests.kit.disk_faults import FaultyDisk, kill

_LONGEST = 60
"""A child that hangs is ended after so many seconds."""


def killed_at_each(folder: Path, disk: str) -> list[int]:
    kind = type("Faulty", (FaultyDisk, DISKS[disk]), {})
    codes: list[int] = []
    while not codes or codes[-1] == -signal.SIGKILL:
        path = prepare(folder / str(len(codes) + 1) / "model")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                signal.alarm(_LONGEST)
                save(path, kind(len(codes) + 1, kill))
                code = 0
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return codes


if __name__ == "__main__":
    print(*killed_at_each(Path(sys.argv[1]), sys.argv[2]))
