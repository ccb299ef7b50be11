"""Run all checks on ranks of torch: torch_conformance.py FOLDER

Each rank writes the names of those that it passed, and how others failed, into a file of its own.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

from standfast.parallel import TorchRanks, program_ranks
from tests.parallel import suite
from tests.parallel.programs import torch_checks, torch_world, trading_checks


def main(folder: Path) -> None:
    torch_world.begin()
    # The store of torchrun keeps the keys of a first meeting, which may break torch's second.
    os.environ.setdefault("MEETING", str(folder / "meeting"))
    outcomes: dict[str, str] = {}
    kept = program_ranks()  # it is not closed: a program may end without
    for check in (*suite.CHECKS, *trading_checks.CHECKS, *torch_checks.CHECKS):
        start = time.monotonic()
        comm = TorchRanks(timeout=60.0)
        try:
            check(comm)
            comm.close()
            outcomes[check.__name__] = "passed"
        except Exception:
            outcomes[check.__name__] = traceback.format_exc()
        print(f"{time.monotonic() - start:6.2f} s  {check.__name__}")
    (folder / f"{kept.rank}.json").write_text(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
