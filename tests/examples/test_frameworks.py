"""The examples for other frameworks: stopped and started again, each ends with the same bytes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import standfast
from tests.examples import EXAMPLES

STARTERS = {
    "lightning": [],
    "transformers": [],
    "fsdp": ["-m", "torch.distributed.run", "--nproc-per-node", "2"],
    "jax": [],
}
"""What Python is given before the program."""


def _run(name: str, steps: int, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    program = [str(EXAMPLES / f"train_{name}.py"), "--steps", str(steps), "--store", "store"]
    command = [sys.executable, *STARTERS[name], *program]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [path.name for path in folder.iterdir()] == ["store"]


def _latest(folder: Path) -> tuple[int, dict[str, bytes]]:
    """Its step and tensors; not the states of generators that the program does not seed."""
    checkpoint = standfast.Store(folder / "store").resolve("latest")
    names = [name for name in checkpoint.tensors if not name.startswith("random.")]
    assert names
    return checkpoint.step, {name: np.asarray(checkpoint[name]).tobytes() for name in names}


LONG = [pytest.param(name, marks=pytest.mark.long) for name in STARTERS if name != "jax"]


@pytest.mark.parametrize("name", ["jax", *LONG])
def test_it_resumes_bit_for_bit(name: str, tmp_path: Path) -> None:
    _run(name, 40, tmp_path / "whole")
    _run(name, 25, tmp_path / "stopped")
    step, before = _latest(tmp_path / "stopped")
    assert step == 25
    _run(name, 40, tmp_path / "stopped")
    assert _latest(tmp_path / "stopped") == _latest(tmp_path / "whole")
    assert _latest(tmp_path / "stopped") != (40, before)
