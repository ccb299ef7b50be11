"""States that are shared out over ranks, on a real GPU."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map

import standfast
from tests import ROOT
from tests.gpu.gpu import DEVICE, ON_GPU, differing, kept, wait_until_warm

pytestmark = ON_GPU
PROGRAM = Path(__file__).with_name("programs") / "ranks.py"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[None]:
    """A world of one rank: its tensors are shared out all the same."""
    meeting = f"file://{tmp_path / 'meeting'}"
    distributed.init_process_group("nccl", meeting, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = nn.Sequential(nn.Linear(1000, 3000), nn.ReLU(), nn.Linear(3000, 10))
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 1000, device=DEVICE)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def whole(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """All tensors of the state, each as a whole of its own, on the host."""
    state = {"model": dict(model.state_dict()), "optimizer": optimizer.state_dict()}
    return tree_map(lambda each: getattr(each, "full_tensor", lambda: each)(), state)


@pytest.mark.usefixtures("world")
def test_a_sharded_model_on_the_gpu_is_saved_during_its_steps_and_resumed(tmp_path):
    model, optimizer = made()
    were: dict[int, Any] = {}
    state = standfast.TrainingState(model=model, optimizer=optimizer)
    train(model, optimizer)
    with standfast.Checkpointer(tmp_path / "store", state, name="run", every=1) as ckpt:
        wait_until_warm(ckpt)
        for step in ckpt.steps(3):
            train(model, optimizer)
            were[step] = kept(whole(model, optimizer))
            ckpt.step(step)
            optimizer.step()  # at once, with no gradients: nothing of it may be saved
        overlap = ckpt._open()._overlap
        assert overlap is not None
        assert len({*overlap._guards[0].owned()}) == 4 * 4
    for step, expected in were.items():
        found = standfast.Store(tmp_path / "store").resolve(f"run@{step}").load(device=DEVICE)
        found.pop("random")
        assert [*differing(expected, found)] == [], step
    model, optimizer = made()
    state = standfast.TrainingState(model=model, optimizer=optimizer)
    with standfast.Checkpointer(tmp_path / "store", state, name="run", every=None) as ckpt:
        assert ckpt.resume_report.step == 3
        assert [*ckpt.resume_report.inexact] == []
        assert [*differing(were[3], whole(model, optimizer))] == []
        moments = optimizer.state_dict()["state"][0]["exp_avg"]
        assert isinstance(moments, DTensor)
        assert moments.device.type == DEVICE


def test_ranks_of_nccl_save_and_resume_together(tmp_path):
    results = []
    for name, steps in (("first", 4), ("second", 8)):
        folder = tmp_path / name
        folder.mkdir()
        arguments = ["2", str(tmp_path / "store"), str(folder), str(steps)]
        command = [sys.executable, str(PROGRAM)]
        ranks = [subprocess.Popen([*command, rank, *arguments], cwd=ROOT) for rank in "01"]
        assert [rank.wait(100) for rank in ranks] == [0, 0]
        results.append([json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))])
    first, second = results
    for each in second:
        assert (each["resumed"], each["inexact"], each["common"]) == (4, [], [36.0])
    assert second[0]["own"] != second[1]["own"]
    assert all(b > a for a, b in zip(first[0]["own"], second[0]["own"], strict=True))
