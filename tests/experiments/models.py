"""What the tests of experiments share: a model, its training, settings and samples."""

from pathlib import Path
from typing import Any

import torch
from torch import nn, optim

from standfast.experiments import CheckpointManagerV2

HP: dict[str, Any] = {"lr": 0.01, "batch": 8, "layers": [8, 3], "name": "a: b # c"}
DATA: dict[str, Any] = {
    "uids": ["a", "b", "c"],
    "discarded": ["b"],
    "tags": {"a": ["hard", "night"], "c": ["easy"]},
}


def new_model(width: int = 8, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 3))


def new_optimizer(model: nn.Module) -> optim.Adam:
    return optim.Adam(model.parameters(), lr=0.01)


def train_step(model: nn.Module, optimizer: optim.Optimizer, step: int) -> float:
    """One step on numbers that follow from the step alone."""
    torch.manual_seed(step)
    loss = model(torch.randn(4, 10)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def bits(state: dict[str, Any]) -> dict[str, bytes]:
    """The tensors of a state dict, byte by byte."""
    return {name: tensor.numpy().tobytes() for name, tensor in state.items()}


def fill(root: Path, *steps: int, hp: dict[str, Any] = HP, best: int | None = None) -> str:
    """Train and save an experiment in a root; returns its hash."""
    model = new_model()
    optimizer = new_optimizer(model)
    with CheckpointManagerV2(root) as manager:
        manager.update_experiment_hash(model, hp, DATA)
        for step in steps:
            loss = train_step(model, optimizer, step)
            manager.save_model_checkpoint(
                model, step, optimizer=optimizer, metrics={"loss": loss}, best=step == best
            )
        manager.dump_pending_changes()
        assert manager.current_exp_hash is not None
        return manager.current_exp_hash


def tree(root: Path) -> set[str]:
    """Every path below a root."""
    return {str(path.relative_to(root)) for path in root.rglob("*")}
