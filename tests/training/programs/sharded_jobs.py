"""Run `sharded.py` several times, one after the other: sharded_jobs.py JOBS

JOBS is a list in JSON: {"ranks": COUNT, "arguments": […]} runs it on so many forked processes, and
{"copy": [FROM, TO]} copies a folder. Torch is imported only once, which takes longer than a job.
How the ranks of each job have exited is printed last.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

from tests.training.programs import sharded

SECONDS = 60.0


def main(jobs: list[Any]) -> None:
    codes = []
    for job in jobs:
        if "copy" in job:
            shutil.copytree(*job["copy"])
        else:
            codes.append(_run(job["ranks"], job["arguments"]))
    print(json.dumps(codes))


def _run(count: int, arguments: list[str]) -> list[int | None]:
    with tempfile.TemporaryDirectory() as folder:
        children = [_fork(rank, count, arguments, folder) for rank in range(count)]
        return _codes(children, time.monotonic() + SECONDS)


def _fork(rank: int, count: int, arguments: list[str], folder: str) -> int:
    child = os.fork()
    if child != 0:
        return child
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MEETING=str(Path(folder) / "meeting"))
    sys.argv = ["sharded.py", *arguments]
    try:
        sharded.main()
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.exit(0)


def _codes(children: list[int], deadline: float) -> list[int | None]:
    """How each has exited; None for one that had to be killed."""
    codes: dict[int, int | None] = {}
    while len(codes) < len(children) and time.monotonic() < deadline:
        for child in children:
            if child not in codes:
                found, status = os.waitpid(child, os.WNOHANG)
                if found:
                    codes[child] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for child in children:
        if child not in codes:
            os.kill(child, 9)
            os.waitpid(child, 0)
            codes[child] = None
    return [codes[child] for child in children]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
