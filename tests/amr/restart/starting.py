"""Programs of this folder started in processes of their own, and what they tell."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from standfast import Run
from tests import ROOT
from tests.kit.parallel_ranks import run_ranks

PROGRAM = Path(__file__).with_name("program.py")


def start(count: int, what: str, store: Path, out: Path, *arguments: Any) -> None:
    """Run a part of the program on so many ranks, to its end."""
    out.mkdir(exist_ok=True)
    words = [str(count), what, str(store), str(out), *map(str, arguments)]
    if count > 1:
        run_ranks(count, PROGRAM, *words)
        return
    done = subprocess.run(
        [sys.executable, "-m", "tests.amr.restart.program", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def told(out: Path, name: str, rank: int = 0) -> Any:
    """What a rank told under a name."""
    return json.loads((out / f"{name}-{rank}.json").read_text())


def content(run: Run, step: int) -> Any:
    """All that a checkpoint holds, wherever its bytes lie."""
    record = run.checkpoint(step).record
    return record.tree, record.names, record.specs, record.digests
