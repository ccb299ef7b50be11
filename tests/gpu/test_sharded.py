"""States that are shared out over ranks, on a real GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor

import standfast
from tests import ROOT
from tests.gpu.gpu import DEVICE, ON_GPU, wait_until_warm

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
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = nn.Sequential(nn.Linear(1000, 3000), nn.ReLU(), nn.Linear(3000, 10))
    fully_shard(model)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(8, 1000, device=DEVICE)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()


def whole(tree: Any) -> Any:
    if isinstance(tree, DTensor):
        return tree.full_tensor().cpu().clone()
    if isinstance(tree, torch.Tensor):
        return tree.cpu().clone()
    if isinstance(tree, dict):
        return {key: whole(value) for key, value in tree.items()}
    return [*map(whole, tree)] if isinstance(tree, list) else tree


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    if isinstance(tree, dict | list):
        items = tree.items() if isinstance(tree, dict) else enumerate(tree)
        return {k: v for key, value in items for k, v in flat(value, f"{path}.{key}").items()}
    return {path: tree}


def differing(one: Any, other: Any) -> list[str]:
    a, b = flat(one), flat(other)
    assert a.keys() == b.keys()
    return [
        path
        for path, value in a.items()
        if not (torch.equal(value, b[path]) if torch.is_tensor(value) else value == b[path])
    ]


@pytest.mark.usefixtures("world")
def test_a_sharded_model_on_the_gpu_is_saved_beside_its_steps_and_resumed(tmp_path: Path) -> None:
    model, optimizer = made()
    were: dict[int, Any] = {}
    state = standfast.TrainingState(model=model, optimizer=optimizer)
    train(model, optimizer)
    with standfast.Checkpointer(tmp_path / "store", state, name="run", every=1) as ckpt:
        wait_until_warm(ckpt)
        for step in ckpt.steps(3):
            train(model, optimizer)
            were[step] = {
                "model": whole(dict(model.state_dict())),
                "optimizer": whole(optimizer.state_dict()),
            }
            ckpt.step(step)
            optimizer.step()  # at once, with no gradients: nothing of it may be saved
        overlap = ckpt._open()._overlap
        assert overlap is not None
        assert len({*overlap._guards[0].owned()}) == 4 * 4
    for step, expected in were.items():
        saved = standfast.Store(tmp_path / "store").resolve(f"run@{step}").state()
        found = {"model": dict(saved["model"]), "optimizer": saved["optimizer"]}
        assert differing(expected, whole(found)) == [], step
    model, optimizer = made()
    state = standfast.TrainingState(model=model, optimizer=optimizer)
    with standfast.Checkpointer(tmp_path / "store", state, name="run", every=None) as ckpt:
        assert ckpt.resume_report.step == 3
        assert [*ckpt.resume_report.inexact] == []
        found = {
            "model": whole(dict(model.state_dict())),
            "optimizer": whole(optimizer.state_dict()),
        }
        assert differing(were[3], found) == []
        moments = optimizer.state_dict()["state"][0]["exp_avg"]
        assert isinstance(moments, DTensor)
        assert moments.device.type == DEVICE


def test_ranks_of_nccl_save_and_resume_together(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    results = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        folder.mkdir()
        if folder.name == "second":
            (folder / "again").touch()
        command = [sys.executable, str(PROGRAM)]
        ranks = [
            subprocess.Popen([*command, str(rank), "2", store, str(folder)], cwd=ROOT)
            for rank in range(2)
        ]
        assert [rank.wait(100) for rank in ranks] == [0, 0]
        files = sorted(folder.glob("*.json"))
        results.append([json.loads(file.read_text()) for file in files])
    first, second = results
    assert [each["resumed"] for each in second] == [4, 4]
    assert [each["inexact"] for each in second] == [[], []]
    assert [each["common"] for each in second] == [[36.0], [36.0]]
    assert second[0]["own"] != second[1]["own"]
    assert all(b > a for a, b in zip(first[0]["own"], second[0]["own"], strict=True))
