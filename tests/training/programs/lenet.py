"""LeNet on scikit-learn's digits: `python lenet.py --steps 60`.

Momentum, dropout, a cosine schedule, shuffled data with random augmentation in worker processes,
and draws from all three global generators in the loop itself.
"""

import random
import zlib
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from leaving_out import GENERATORS, WithoutMoments, arguments_of, begin_exactly, checkpointer
from torch import nn
from torch.nn import functional

import standfast

PARTS = (*GENERATORS, "loader", "scheduler", "momentum")
BATCH = 16


class Digits(torch.utils.data.Dataset[Any]):
    """Digits that come a little different each time: each generator has a hand in it."""

    def __init__(self, count: int = 160) -> None:
        package = find_spec("sklearn")  # to import it takes as long as the training
        assert package is not None
        assert package.origin is not None
        path = Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz"
        table = np.loadtxt(path, np.float32, delimiter=",", max_rows=count)
        self._images = table[:, :-1].reshape(count, 1, 8, 8) / 16
        self._labels = table[:, -1].astype(np.int64)

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        image = np.roll(self._images[index], random.randint(-1, 1), axis=2)
        image = image * np.float32(np.random.uniform(0.8, 1.2))
        return torch.from_numpy(image) + 0.05 * torch.randn(1, 8, 8), self._labels[index], index


class LeNet(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Conv2d(1, 6, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Dropout(0.3),
            nn.Linear(32, 10),
        )


def mixed(images: torch.Tensor) -> torch.Tensor:
    """Some of each image's neighbour in it, and a brightness that is drawn anew."""
    share = max(share := float(np.random.beta(0.4, 0.4)), 1 - share)
    partners = torch.randperm(len(images))
    return (share * images + (1 - share) * images[partners]) * random.uniform(0.9, 1.1)


def main(given: Sequence[str] | None = None) -> None:
    arguments = arguments_of(given, PARTS)
    begin_exactly(42)
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, arguments.steps)
    loader = standfast.ResumableLoader(
        Digits(), BATCH, shuffle=True, seed=7, num_workers=arguments.workers
    )
    parts = {
        "model": model,
        "optimizer": WithoutMoments(optimizer) if arguments.leave_out == "momentum" else optimizer,
        "scheduler": scheduler,
        "loader": loader,
    }
    hp = {"lr": 0.15, "max_steps": arguments.steps}
    with checkpointer(arguments, parts, hp) as ckpt:
        batches = loader.forever()
        for step in ckpt.steps(arguments.steps):
            images, labels, indices = next(batches)
            loss = functional.cross_entropy(model(mixed(images)), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            order = zlib.crc32(indices.numpy().tobytes())
            ckpt.step(step, loss=loss, lr=scheduler.get_last_lr()[0], order=order)
            if step == arguments.stop_at:
                break


if __name__ == "__main__":
    main()
