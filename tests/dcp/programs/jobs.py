"""Run the checks of `checks.py` on four ranks, then on two, then on one: jobs.py FOLDER

Torch is imported only once, which takes longer than most of what is checked. Each rank writes how
its checks ended into FOLDER: the name of each, and what went wrong, if anything did.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from tests.dcp.programs import checks as dcp_checks
from tests.dcp.programs.checks import Check
from tests.parallel.programs import torch_world

SECONDS = 90.0


def main(folder: Path) -> None:
    for checks, count in (
        (dcp_checks.ON_FOUR, 4),
        (dcp_checks.ON_TWO, 2),
        (dcp_checks.ALONE, 1),
    ):
        _wait([_fork(folder, checks, rank, count) for rank in range(count)])


def _fork(folder: Path, checks: Sequence[Check], rank: int, count: int) -> int:
    child = os.fork()
    if child != 0:
        return child
    meeting = folder / f"meeting{count}"
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(count), MEETING=str(meeting))
    code = 1
    try:
        _check(folder, checks, rank, count)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _check(folder: Path, checks: Sequence[Check], rank: int, count: int) -> None:
    # DCP warns of what it is asked for, and FSDP of deprecated names of its own.
    warnings.simplefilter("ignore")
    if count > 1:
        torch_world.begin()
    now = dcp_checks.setting(folder, rank, count > 1)
    outcomes: dict[str, str] = {}
    for check in checks:
        start = time.monotonic()
        try:
            check(now)
            outcomes[check.__name__] = ""
        except BaseException:
            outcomes[check.__name__] = traceback.format_exc()
            break  # the others go on without this rank, and fail too
        finally:
            (folder / f"outcomes-{count}-{rank}.json").write_text(json.dumps(outcomes))
            print(count, rank, check.__name__, round(time.monotonic() - start, 2), flush=True)
    if count > 1:
        dist.destroy_process_group()


def _wait(children: list[int]) -> None:
    """Wait for all; what takes too long is killed."""
    deadline = time.monotonic() + SECONDS
    while children and time.monotonic() < deadline:
        children = [child for child in children if os.waitpid(child, os.WNOHANG)[0] == 0]
        time.sleep(0.01)
    for child in children:
        os.kill(child, 9)
        os.waitpid(child, 0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
