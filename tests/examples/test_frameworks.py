"""The examples for other frameworks: stopped and started again, each ends with the same bytes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import standfast
from tests.examples import EXAMPLES
from tests.examples.programs import run
from tests.kit.cases import kept


def _run(name: str, steps: int, folder: Path) -> None:
    options = ["--steps", str(steps), "--store", str(folder)]
    if name == "fsdp":
        command = ["-m", "torch.distributed.run", "--nproc-per-node", "2"]
        command += [str(EXAMPLES / "train_fsdp.py"), *options]
        subprocess.run([sys.executable, *command], check=True, capture_output=True)
    else:
        run(f"train_{name}", *options)


def _latest(folder: Path) -> tuple[int, dict[str, bytes]]:
    """Its step and tensors; not the states of generators that the program does not seed."""
    checkpoint = standfast.Store(folder).resolve("latest")
    names = [name for name in checkpoint.tensors if not name.startswith("random.")]
    assert names
    return checkpoint.step, {name: np.asarray(checkpoint[name]).tobytes() for name in names}


@pytest.mark.parametrize("name", kept(("jax", "lightning", "transformers", "fsdp"), "jax"))
def test_it_resumes_bit_for_bit(name, tmp_path, monkeypatch):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    _run(name, 40, whole)
    _run(name, 25, stopped)
    step, before = _latest(stopped)
    assert step == 25
    _run(name, 40, stopped)
    assert _latest(stopped) == _latest(whole) != (40, before)
    assert list((tmp_path / "empty").iterdir()) == []
