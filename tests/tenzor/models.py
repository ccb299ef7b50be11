"""Small models, their steps, and the comparison of two trees bit by bit."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from standfast.tenzor import Checkpoint, CheckpointMetadata

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def new_model(dtype: torch.dtype = torch.float32, seed: int = 0) -> nn.Module:
    """Matrices alone, which is what every optimizer takes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 4, bias=False)
        return nn.Sequential(*layers).to(dtype)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    dtype = next(model.parameters()).dtype
    for step in steps:
        inputs = torch.randn(8, 6, generator=torch.Generator().manual_seed(step)).to(dtype)

        def loss(inputs: torch.Tensor = inputs) -> torch.Tensor:
            optimizer.zero_grad()
            value = (model(inputs) ** 2).float().mean()
            value.backward()
            return value

        optimizer.step(loss)


def bits(tree: Any) -> Any:
    """A tree with types, dtypes, shapes and bytes in the place of its leaves."""
    if isinstance(tree, torch.Tensor):
        data = tree.detach().contiguous().reshape(-1).view(torch.uint8)
        return tree.dtype, tuple(tree.shape), bytes(data.tolist())
    if isinstance(tree, dict):
        return {key: bits(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree), [bits(value) for value in tree]
    return type(tree), repr(tree)


def saved_and_resumed(
    path: Path, model: nn.Module, optimizer: Any, new: nn.Module, make: MakeOptimizer
) -> Any:
    """A new model and optimizer, filled from a checkpoint of the others."""
    Checkpoint.save(path, model, optimizer, CheckpointMetadata(epoch=1))
    resumed = make(new.parameters())
    with Checkpoint.load(path) as loaded:
        loaded.load_weights(new)
        loaded.resume_optimizer(resumed)
    return resumed
