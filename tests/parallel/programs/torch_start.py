"""Start ranks of torch as forked processes: torch_start.py COUNT PROGRAM FOLDER JOBS

JOBS is a list of lists of arguments, in JSON. The program runs on COUNT ranks for each of them, all
at once, and torch is imported only once, which takes longer than most of what is tested. Each job
has a folder of its own in FOLDER, called by its number. How the ranks of each job have exited is
printed last, as lists in JSON.
"""

import json
import os
import runpy
import sys
from pathlib import Path

import torch.distributed  # noqa: F401

import standfast.parallel  # noqa: F401
import tests.parallel.suite  # noqa: F401


def main(count: int, program: str, folder: Path, jobs: list[list[str]]) -> None:
    children = []
    for number, arguments in enumerate(jobs):
        own = folder / str(number)
        own.mkdir()
        children.append([_fork(program, own, arguments, rank, count) for rank in range(count)])
    print(json.dumps([[_exit_code(child) for child in job] for job in children]))


def _fork(program: str, folder: Path, arguments: list[str], rank: int, count: int) -> int:
    child = os.fork()
    if child != 0:
        return child
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MEETING=str(folder / "meeting"))
    sys.argv = [program, *arguments, str(folder)]
    runpy.run_path(program, run_name="__main__")
    sys.exit(0)  # it ends as any program does, with all that Python does then


def _exit_code(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), json.loads(sys.argv[4]))
