"""Run the checks of `checks.py` on four ranks, then on two, then on one: jobs.py FOLDER

Torch is imported only once, which takes longer than most of what is checked. Each rank writes how
its checks ended into FOLDER: the name of each, and what went wrong, if anything did.
"""

import json
import sys
import traceback
import warnings
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch.distributed as dist

from tests.dcp.programs import checks as dcp_checks
from tests.dcp.programs.checks import Check
from tests.parallel.programs import torch_world
from tests.training.programs.sharded_jobs import on_forks


def main(folder: Path) -> None:
    for count, checks in dcp_checks.CHECKS.items():
        on_forks(count, folder / f"meeting{count}", partial(_check, folder, checks, count))


def _check(folder: Path, checks: Sequence[Check], count: int, rank: int) -> None:
    # DCP warns of what it is asked for, and FSDP of deprecated names of its own.
    warnings.simplefilter("ignore")
    if count > 1:
        torch_world.begin()
    now = dcp_checks.setting(folder, rank, count > 1)
    outcomes: dict[str, str] = {}
    for check in checks:
        try:
            check(now)
            outcomes[check.__name__] = ""
        except BaseException:
            outcomes[check.__name__] = traceback.format_exc()
            break  # the others go on without this rank, and fail too
        finally:
            (folder / f"outcomes-{count}-{rank}.json").write_text(json.dumps(outcomes))
    if count > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
