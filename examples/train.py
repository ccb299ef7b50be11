"""A training program with checkpoints: kill it at any moment, start it again, and it goes on.

pip install ".[torch,examples]"
python examples/train.py --steps 200
"""

from __future__ import annotations

import argparse
import random

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import standfast


def main() -> None:
    """Train a small network on handwritten digits."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--store", default="experiments")
    arguments = parser.parse_args()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(0)
    config = {"width": 1536, "lr": 1e-3, "batch_size": 64, "max_steps": arguments.steps}

    model = make_model(config["width"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["lr"])
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=400)
    loader = standfast.ResumableLoader(
        digits(), batch_size=config["batch_size"], shuffle=True, seed=0
    )
    batches = loader.forever()

    state = standfast.TrainingState(
        model=model, optimizer=optimizer, scheduler=scheduler, loader=loader
    )
    with standfast.Checkpointer(arguments.store, state, name="digits", hp=config, every=10) as ckpt:
        for step in ckpt.steps(arguments.steps):
            images, labels = next(batches)
            images = images + 0.1 * torch.randn_like(images)  # noise, so that every draw counts
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            ckpt.step(step, loss=loss)
        if not ckpt.should_stop:
            print(f"done at step {ckpt.next_step - 1}, held up for {ckpt.held:.2f} s by saves")


def make_model(width: int) -> nn.Module:
    """Three layers with dropout."""
    return nn.Sequential(
        nn.Linear(64, width),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(width, width),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(width, 10),
    )


def digits() -> TensorDataset:
    """The 1,797 digits that scikit-learn ships."""
    found = load_digits()
    images = torch.tensor(found.images, dtype=torch.float32).flatten(1) / 16
    return TensorDataset(images, torch.tensor(found.target))


if __name__ == "__main__":
    main()
