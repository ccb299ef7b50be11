"""A Lightning training that resumes by itself: start it, kill it, start it again.

pip install ".[lightning,examples]"
python examples/train_lightning.py --steps 200
"""

from __future__ import annotations

import argparse

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import standfast
from standfast.lightning import StandfastCheckpoint


class Digits(LightningModule):
    """A small network for handwritten digits."""

    def __init__(self, width: int = 256, lr: float = 1e-3) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.net = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def training_step(self, batch: list[Tensor], index: int) -> Tensor:  # noqa: D102
        images, labels = batch
        loss = nn.functional.cross_entropy(self.net(images), labels)
        self.log("loss", loss)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:  # noqa: D102
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["lr"])

    def train_dataloader(self) -> standfast.ResumableLoader:
        """The loader saves its position, so a resume in the middle of an epoch is exact."""
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
        dataset = TensorDataset(images, torch.tensor(digits.target))
        return standfast.ResumableLoader(dataset, batch_size=64, shuffle=True, seed=0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--store", default="experiments")
    arguments = parser.parse_args()
    seed_everything(0)
    checkpoint = StandfastCheckpoint(arguments.store, name="lightning", every_n_train_steps=50)
    trainer = Trainer(
        max_steps=arguments.steps, accelerator="cpu", logger=False, callbacks=[checkpoint]
    )
    trainer.fit(Digits())
