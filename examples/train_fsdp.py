"""FSDP2 under torchrun: every rank writes its own shards, and any number of ranks resumes them.

pip install ".[torch]"
torchrun --nproc-per-node 4 examples/train_fsdp.py --steps 200
torchrun --nproc-per-node 2 examples/train_fsdp.py --steps 400   # continues after step 200
"""

from __future__ import annotations

import argparse

import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import TensorDataset

import standfast


def main() -> None:
    """Train a small autoencoder on random vectors, in batches of 32 over all ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--store", default="experiments")
    arguments = parser.parse_args()
    distributed.init_process_group("gloo")  # "nccl" on GPUs
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batch = 32 // distributed.get_world_size()
    dataset = TensorDataset(torch.randn(1024, 64))
    loader = standfast.ResumableLoader(dataset, batch, shuffle=True, seed=0)
    batches = loader.forever()

    state = standfast.TrainingState(model=model, optimizer=optimizer, loader=loader)
    with standfast.Checkpointer(arguments.store, state, name="fsdp", every=50) as ckpt:
        for step in ckpt.steps(arguments.steps):
            (vectors,) = next(batches)
            loss = (model(vectors) - vectors).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ckpt.step(step, loss=loss)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
