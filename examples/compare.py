"""Three short trainings, one branched from the other, to be compared with each other.

python examples/compare.py runs
standfast log --store runs
standfast diff blobs wide --store runs
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import standfast
from standfast import KeepBest, KeepLast


def main(store: str) -> None:
    """Train three times: a base, a branch of it, and a wider model on cleaner data."""
    samples = {"uids": [f"blob-{i:03d}" for i in range(200)], "discarded": [], "tags": {}}
    train(store, "base", {"lr": 0.3, "width": 8}, samples, steps=400)
    train(store, "blobs", {"lr": 0.03, "width": 8}, samples, steps=600, resume="base@300")
    cleaned = {**samples, "discarded": ["blob-017", "blob-101"], "tags": {"blob-003": ["hard"]}}
    train(store, "wide", {"lr": 0.03, "width": 16}, cleaned, steps=400)


def train(
    store: str,
    name: str,
    hp: dict[str, Any],
    data: dict[str, Any],
    steps: int,
    resume: str = "auto",
) -> None:
    """Tell two clouds of points apart; the last two checkpoints are kept, and the best."""
    torch.manual_seed(0)
    used = [i for i, uid in enumerate(data["uids"]) if uid not in data["discarded"]]
    labels = torch.arange(len(data["uids"])) % 2
    points = torch.randn(len(labels), 2) + labels[:, None]
    points, labels = points[used], labels[used]
    model = torch.nn.Sequential(
        torch.nn.Linear(2, hp["width"]), torch.nn.Tanh(), torch.nn.Linear(hp["width"], 2)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=hp["lr"])
    state = standfast.TrainingState(model=model, optimizer=optimizer)
    with standfast.Checkpointer(
        store,
        state,
        name=name,
        hp=hp,
        data=data,
        resume=resume,
        every=100,
        monitor="loss",
        keep=KeepLast(2) | KeepBest(1),
        quiet=True,
    ) as ckpt:
        optimizer.param_groups[0]["lr"] = hp["lr"]  # a branch restores that of its parent
        for step in ckpt.steps(steps):
            loss = torch.nn.functional.cross_entropy(model(points), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            ckpt.step(step, loss=loss)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs")
