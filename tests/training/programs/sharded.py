"""A training program of several ranks: torchrun … sharded.py STORE FOLDER STEPS [options]

Each rank writes what it ends with into the folder: all tensors whole, so that runs on any number
of ranks can be compared, and its random state.
"""

import argparse
import copy
import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset

import standfast

GLOBAL_BATCH = 6


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 3 * width)
        self.down = nn.Linear(3 * width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(x + self.down(torch.relu(self.up(x))))
        return result


def made_model(kind: str) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(Block(10), Block(10), nn.Linear(10, 3))
    size = distributed.get_world_size()
    if kind == "fsdp":
        for block in model[:2]:
            fully_shard(block)
        fully_shard(model)
    elif kind == "tp":
        mesh = init_device_mesh("cpu", (size,))
        plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
        for block in model[:2]:
            parallelize_module(block, mesh, plan)
    elif kind == "hsdp":
        mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard"))
        for block in model[:2]:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
    elif kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    return model


def whole(tree: Any) -> Any:
    """A tree of tensors, each as the whole that it is."""
    return tree_map(lambda leaf: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf, tree)


class Numbers(Dataset[int]):
    """The samples are their own numbers."""

    def __len__(self) -> int:
        return 8 * GLOBAL_BATCH

    def __getitem__(self, number: int) -> int:
        return number


def batch_of(step: int) -> torch.Tensor:
    """The same on all ranks, so that all kinds of parallelism compute the same."""
    return torch.randn(8, 10, generator=torch.Generator().manual_seed(step))


def saved_by_hand(store: str, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    """Save what torch's own functions give as the state, empty it, and have it filled again."""
    run = standfast.Store(store).run("by hand")
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state}
    with run:
        run.save(1, state)
    before = copy.deepcopy(whole(state))
    for leaf in tree_leaves(state):
        if isinstance(leaf, torch.Tensor):
            leaf.detach().zero_()
    run.load(1, into=state)
    return {"before": before, "after": copy.deepcopy(whole(state))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("store")
    parser.add_argument("folder", type=Path)
    parser.add_argument("steps", type=int)
    parser.add_argument("--kind", default="fsdp")
    parser.add_argument("--every", default="2")
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--kill-rank", type=int, default=1)
    parser.add_argument("--signal-at", type=int)
    parser.add_argument("--sync", action="store_true")
    parser.add_argument("--lenient", action="store_true")
    parser.add_argument("--by-hand", action="store_true", help="save without a Checkpointer too")
    options = parser.parse_args()
    if meeting := os.environ.get("MEETING"):  # without torchrun
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=size)
    else:
        distributed.init_process_group("gloo")
    options.folder.mkdir(exist_ok=True)
    rank = distributed.get_rank()
    model = made_model(options.kind)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    drawn: dict[str, list[float]] = {"values": []}
    size = distributed.get_world_size()
    loader = standfast.ResumableLoader(Numbers(), GLOBAL_BATCH // size, shuffle=True, seed=5)
    samples, seen = loader.forever(), []
    state = standfast.TrainingState(
        model=model, optimizer=optimizer, loader=loader, drawn=standfast.per_rank(drawn)
    )
    every = int(options.every) if options.every.isdecimal() else options.every
    checkpointer = standfast.Checkpointer(
        options.store,
        state,
        name="run",
        every=every,
        asynchronous=not options.sync,
        strict=not options.lenient,
    )
    with checkpointer as ckpt:
        for step in ckpt.steps(options.steps):
            seen.append(next(samples).tolist())
            loss = model(batch_of(step)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            drawn["values"].append(float(torch.rand(())))
            if step == options.signal_at and rank == distributed.get_world_size() - 1:
                os.kill(os.getpid(), signal.SIGTERM)
            if step == options.kill_at:
                ckpt.wait()
                if rank == options.kill_rank:
                    os.kill(os.getpid(), signal.SIGKILL)
            ckpt.step(step, loss=loss.detach())
        report = ckpt.resume_report
    result = {
        "model": whole(model.state_dict()),
        "optimizer": whole(optimizer.state_dict()),
        "random": torch.get_rng_state(),
        "drawn": drawn,
        "seen": seen,
        "resumed": report.step,
        "exact": not report.inexact,
        "inexact": [*report.inexact],
        "stopped": ckpt.should_stop,
    }
    if options.by_hand:
        result["by hand"] = saved_by_hand(options.store, model, optimizer)
    torch.save(result, options.folder / f"rank{rank}.pt")
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
