"""How the programs for ranks of torch begin."""

import faulthandler
import os
from datetime import timedelta

import torch.distributed as dist

LONGEST = 150.0
"""How many seconds a rank may run: no hang outlives its test."""


def begin(again: str = "") -> None:
    """Meet the other ranks: through torchrun, or through a file, a new one each time."""
    faulthandler.enable()
    faulthandler.dump_traceback_later(LONGEST, exit=True)
    meeting = os.environ.get("MEETING")
    limit = timedelta(seconds=60)
    if meeting is None:
        dist.init_process_group("gloo", timeout=limit)
    else:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        method = f"file://{meeting}{again}"
        dist.init_process_group(
            "gloo", init_method=method, rank=rank, world_size=size, timeout=limit
        )
