"""What the ranks save: a model like GPT-2 with Adam's moments, shared out by FSDP2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from benchmarks import raw

LAYERS = 18
WIDTH = 768
"""220 parameters, 660 large tensors and 220 numbers of steps: 2.0 GB in float32."""
SMALL = 128
"""The width for a trial: 0.06 GB."""


class Layer(nn.Module):
    """The weights of a layer of GPT-2; nothing is computed with them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_c_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_c_proj = nn.Linear(4 * width, width)


class Model(nn.Module):
    """All of its weights."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.wte = nn.Embedding(50257 * width // WIDTH, width)
        self.wpe = nn.Embedding(1024, width)
        self.h = nn.ModuleList(Layer(width) for _ in range(LAYERS))
        self.ln_f = nn.LayerNorm(width)


class Sharded:
    """One rank's part of a model and an optimizer, with random numbers in all of it."""

    def __init__(self, width: int) -> None:
        self.model = Model(width)
        for layer in self.model.h:
            fully_shard(layer)
        fully_shard(self.model)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        self.optimizer.step()
        self.optimizer.zero_grad()
        model, optimizer = get_state_dict(self.model, self.optimizer)
        self.state: dict[str, Any] = {"model": model, "optimizer": optimizer}
        self.tensors = [*_tensors(self.state)]
        generator = torch.Generator().manual_seed(torch.distributed.get_rank())
        for tensor in self.tensors:
            if tensor.dim():
                tensor.normal_(generator=generator)

    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)

    def change(self) -> None:
        """No byte of it is saved yet; the counts of steps go on, too."""
        for tensor in self.tensors:
            tensor.add_(1.0)

    def blank(self) -> None:
        """Nothing of it is loaded yet."""
        for tensor in self.tensors:
            tensor.zero_()

    def staged(self) -> raw.Bytes:
        """A copy of its bytes, ready for direct writes."""
        return raw.staged({str(number): each for number, each in enumerate(self.tensors)})


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    """What this rank has of all tensors of a tree, where it lies."""
    if isinstance(tree, DTensor):
        yield tree.to_local().detach()
    elif isinstance(tree, torch.Tensor):
        yield tree.detach()
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from _tensors(value)


def files_in(folder: Path) -> list[Path]:
    """All files of a checkpoint that have data in them, whoever wrote it."""
    return sorted(path for path in folder.rglob("*") if path.suffix in (".distcp", ".safetensors"))
