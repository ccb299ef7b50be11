"""LeNet-5 in torch, for `standfast train`: the model and its loop, the same bits every time."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Final

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from standfast.tenzor.digits import Samples
from standfast.tenzor.trainer import Trainer

THREADS: Final = 1
"""Sums are split among threads, so that another number of them would give other bits."""

_AT_ONCE: Final = 500
"""So many images are validated at a time."""


class LeNet(nn.Module):
    """LeNet-5 for images of 28 × 28, with rectified units and maxima where it has had others."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(400, 120)
        self.fc2 = nn.Linear(120, 84)
        self.fc3 = nn.Linear(84, 10)
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.kaiming_normal_(parameter, nonlinearity="relu")
            else:
                nn.init.zeros_(parameter)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Ten scores for each image."""
        hidden = functional.max_pool2d(functional.relu(self.conv1(images)), 2)
        hidden = functional.max_pool2d(functional.relu(self.conv2(hidden)), 2)
        hidden = functional.relu(self.fc1(hidden.flatten(1)))
        hidden = functional.relu(self.fc2(hidden))
        scores: torch.Tensor = self.fc3(hidden)
        return scores


def make_deterministic() -> None:
    """Set torch to give the same bits every time, in all of this process."""
    torch.set_num_threads(THREADS)
    torch.use_deterministic_algorithms(True)


def build(seed: int, learning_rate: float, momentum: float) -> tuple[LeNet, torch.optim.SGD]:
    """A new model and its optimizer; every generator of this process starts from the seed."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    model = LeNet()
    return model, torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=momentum)


def train_epoch(
    trainer: Trainer, samples: Samples, order: np.ndarray, batch_done: Callable[[], None]
) -> None:
    """Go through the samples in this order, in whole batches."""
    model, optimizer, size = trainer.model, trainer.optimizer, trainer.config.batch_size
    images, labels = torch.from_numpy(samples.images), torch.from_numpy(samples.labels)
    model.train()
    for begin in range(0, len(order) - size + 1, size):
        rows = torch.from_numpy(order[begin : begin + size])
        scores = model(images[rows])
        loss = functional.cross_entropy(scores, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        trainer.record_batch(
            loss.item(), correct=(scores.argmax(1) == labels[rows]).sum().item(), count=size
        )
        batch_done()


@torch.no_grad()
def validate(model: nn.Module, samples: Samples) -> tuple[float, float]:
    """The mean loss and the accuracy."""
    images, labels = torch.from_numpy(samples.images), torch.from_numpy(samples.labels)
    model.eval()
    loss, correct = 0.0, 0
    for begin in range(0, len(labels), _AT_ONCE):
        truth = labels[begin : begin + _AT_ONCE]
        scores = model(images[begin : begin + _AT_ONCE])
        loss += functional.cross_entropy(scores, truth, reduction="sum").item()
        correct += int((scores.argmax(1) == truth).sum().item())
    return loss / len(labels), correct / len(labels)
