"""A GPT on a real GPU, killed and resumed, ends with the bits it would have ended with."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

import standfast
from standfast.training.proof.comparison import compare_stores
from tests.gpu.gpu import DEVICE, ON_GPU, differing

pytestmark = ON_GPU
PROGRAM = Path(__file__).parent / "programs" / "gpt.py"


def run(store: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(PROGRAM), str(store), "--device", DEVICE, *options]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "PYTHONPATH": paths}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def state_of(store: Path) -> Any:
    return standfast.Store(store).runs()[0].load(30)


def test_a_gpt_on_the_gpu_goes_on_exactly_after_a_kill(tmp_path):
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    killed = run(tmp_path / "killed", "--kill-at", "18")
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    resumed = run(tmp_path / "killed")
    assert resumed.returncode == 0, resumed.stderr
    assert resumed.stdout == "exact True from 16\n", resumed.stderr

    expected, found = state_of(tmp_path / "whole"), state_of(tmp_path / "killed")
    assert [*differing(expected, found)] == []
    compared = compare_stores(tmp_path / "whole", tmp_path / "killed")
    assert compared.differences == []
    assert (compared.checkpoints, compared.lines) == (6, 30)
    assert len(expected["optimizer"]["state"]) == len(expected["model"])
    assert expected["sampler"]["device"] == DEVICE
    assert len(expected["random"]["torch"]["cuda"]) == torch.cuda.device_count()
