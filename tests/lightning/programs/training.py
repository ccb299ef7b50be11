"""A small training under Lightning: `python training.py STORE [KILL_AT [RANKS]]`.

Dropout, batch norm, shuffled data, a schedule that waits for a metric, and draws from all three
global generators in its steps. With KILL_AT it is killed in the step of that number.
"""

import os
import random
import signal
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if os.environ.get("LIGHTNING_NAME") == "pytorch_lightning":
    import pytorch_lightning as lightning
else:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import lightning.pytorch as lightning

import standfast
from standfast.lightning import StandfastCheckpoint

QUIET = [
    pytest.mark.filterwarnings("ignore::UserWarning:lightning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
"""The marks of tests that train."""
BATCHES = 5
"""An epoch has so many."""


class Net(lightning.LightningModule):
    def __init__(self, plateau: bool = True, before: Callable[[int], None] | None = None) -> None:
        super().__init__()
        layers = nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 1)
        self.net = nn.Sequential(*layers)
        self.plateau = plateau
        self.before = before
        """Called before each step, with its number."""
        self.seen: list[Any] = []
        """Of each step its number, its batch, and what was drawn."""
        self.hooks: list[Any] = []

    def training_step(self, batch: Any, index: int) -> Any:
        if self.before is not None:
            self.before(self.global_step + 1)
        drawn = random.random(), float(np.random.rand())
        self.seen.append((self.global_step, index, float(batch[0].sum()), *drawn))
        loss = (self.net(batch[0]) ** 2).mean() + 0.1 * drawn[0]
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val", (self.net(batch[0]) ** 2).mean() + 0.01 * self.global_step)

    def on_train_epoch_start(self) -> None:
        self.hooks.append(("epoch", self.current_epoch, self.global_step))

    def on_train_epoch_end(self) -> None:
        self.hooks.append(("end", self.current_epoch, self.global_step))
        torch.rand(1)

    def on_validation_epoch_end(self) -> None:
        if not self.trainer.sanity_checking:
            self.hooks.append(("validation", self.current_epoch, self.global_step))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.1)
        if not self.plateau:
            schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
            return {"optimizer": optimizer, "lr_scheduler": schedule}
        waiting = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": waiting, "monitor": "val"}}


class Data(lightning.LightningDataModule):
    """Made on each rank, when its process group is there."""

    def __init__(self, resumable: bool = True, validation: bool = True) -> None:
        super().__init__()
        self._resumable = resumable
        if not validation:
            self.val_dataloader = None  # type: ignore[method-assign]

    def _samples(self) -> TensorDataset:
        ranks = self.trainer.world_size if self.trainer else 1
        generator = torch.Generator().manual_seed(1)
        return TensorDataset(torch.randn(4 * BATCHES * ranks, 3, generator=generator))

    def train_dataloader(self) -> Any:
        if self._resumable:
            return standfast.ResumableLoader(self._samples(), batch_size=4, shuffle=True, seed=2)
        return DataLoader(self._samples(), batch_size=4, shuffle=True)

    def val_dataloader(self) -> Any:
        return DataLoader(self._samples(), batch_size=10)


def trainer_of(*callbacks: Any, **options: Any) -> Any:
    options = {"max_epochs": 4, "accelerator": "cpu", "devices": 1} | options
    return lightning.Trainer(
        callbacks=list(callbacks),
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def fit(checkpoint: Any, model: Any = None, data: Any = None, seed: int = 3, **options: Any) -> Any:
    """The model and the trainer, once it is done."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    model = Net() if model is None else model() if isinstance(model, partial) else model
    trainer = trainer_of(*([] if checkpoint is None else [checkpoint]), **options)
    trainer.fit(model, datamodule=Data() if data is None else data)
    return model, trainer


def main(store: str, kill_at: str = "0", ranks: str = "1") -> None:
    checkpoint = StandfastCheckpoint(store, name="net", every_n_train_steps=3, save_top_k=-1)
    options: dict[str, Any] = {"devices": int(ranks)}
    if int(ranks) > 1:
        options["strategy"] = "ddp"
    # A run that goes on must not owe its numbers to its seed.
    seed = int(os.environ.get("SEED", "3")) + 100 * int(os.environ.get("LOCAL_RANK", "0"))

    def kill(step: int) -> None:
        if step == int(kill_at):
            checkpoint.wait()
            os.kill(os.getpid(), signal.SIGKILL)

    model, trainer = fit(checkpoint, partial(Net, before=kill), seed=seed, **options)
    print(trainer.global_rank, repr(model.seen[-1]), flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(*sys.argv[1:])
