"""Run `sharded.py` several times, one after the other: sharded_jobs.py JOBS

JOBS is a list in JSON: {"ranks": COUNT, "arguments": […]} runs it on so many forked processes, and
{"copy": [FROM, TO]} copies a folder. Torch is imported once, which takes longer than a job; so is
`torch._dynamo`, which optimizers and FSDP import when they are first used. How the ranks of each
job have exited is printed last.
"""

import atexit
import json
import os
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 90.0


def on_forks(count: int, meeting: Path, program: Callable[[int], object]) -> list[int | None]:
    """Run a program on so many forked processes, which meet at a file; how each has exited.

    What takes too long is killed, and None.
    """
    children = [_fork(rank, count, meeting, program) for rank in range(count)]
    codes: dict[int, int | None] = {}
    deadline = time.monotonic() + SECONDS
    while len(codes) < count:
        for child in set(children) - set(codes):
            is_late = time.monotonic() > deadline
            if is_late:
                os.kill(child, 9)
            found, status = os.waitpid(child, 0 if is_late else os.WNOHANG)
            if found:
                codes[child] = None if is_late else os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    return [codes[child] for child in children]


def _fork(rank: int, count: int, meeting: Path, program: Callable[[int], object]) -> int:
    child = os.fork()
    if child != 0:
        return child
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MEETING=str(meeting))
    try:
        program(rank)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    # Not by `sys.exit`: Python would take most of a second to free what torch has.
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(0)


def main(jobs: list[Any]) -> None:
    import torch._dynamo  # noqa: F401

    from tests.training.programs import sharded

    codes = []
    for job in jobs:
        if "copy" in job:
            shutil.copytree(*job["copy"])
            continue
        sys.argv = ["sharded.py", *job["arguments"]]
        with tempfile.TemporaryDirectory() as folder:
            meeting = Path(folder) / "meeting"
            codes.append(on_forks(job["ranks"], meeting, lambda rank: sharded.main()))
    print(json.dumps(codes))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
