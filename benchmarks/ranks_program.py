"""A rank of `ranks.py`: does what it reads from its standard input, and says how long it took.

python -m benchmarks.ranks_program saving|loading RANK SIZE MEETING FOLDER WIDTH
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from benchmarks.ranks_loading import Loading
from benchmarks.ranks_saving import Saving

KINDS = {"saving": Saving, "loading": Loading}


def main() -> None:
    kind, rank, size, meeting, folder, width = sys.argv[1:]
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)  # there are more ranks than processors
    replies, sys.stdout = sys.stdout, sys.stderr
    distributed.init_process_group(
        "gloo", f"file://{meeting}", rank=int(rank), world_size=int(size)
    )
    # Saves in the background have the other group to themselves.
    own = distributed.new_group(timeout=timedelta(minutes=10))
    actor: Any = KINDS[kind](Path(folder), int(width))
    while line := sys.stdin.readline():
        name, arguments = json.loads(line)
        action = getattr(actor, name)
        distributed.barrier(own)
        start = time.perf_counter()
        result, error = None, None
        try:
            result = action(*arguments)
        except BaseException as raised:  # those of DCP are no Exceptions
            error = f"{type(raised).__name__}: {raised}"
        seconds = time.perf_counter() - start
        print(json.dumps([seconds, result, error]), file=replies, flush=True)
    os._exit(0)  # no thread of any library is waited for


if __name__ == "__main__":
    main()
