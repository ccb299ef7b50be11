"""Two ranks of DistributedDataParallel: trained whole, and once more with a stop in between.

RANK=0 … python transformers_ranks.py FOLDER
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from standfast.transformers import StandfastCallback
from tests.transformers.programs.train import At, trainer_with


class Stopped(Exception):
    """What ends the first part of a training."""


class Uneven(TrainerCallback):
    """Lets the generators of the ranks differ; after a resume they are put back later."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        torch.rand(1 + args.process_index)


def stop() -> None:
    raise Stopped


def train(folder: Path, *others: TrainerCallback) -> str | None:
    """Train to the end, or to a stop; gives the folder that it began from."""
    keeper = StandfastCallback(folder / "store", quiet=True)
    trainer = trainer_with(
        folder,
        keeper,
        Uneven(),
        *others,
        ddp_backend="gloo",
        load_best_model_at_end=True,
        save_total_limit=9,
    )
    latest = keeper.latest()
    try:
        trainer.train(resume_from_checkpoint=latest)
    except Stopped:
        keeper.close()
        torch.distributed.barrier()
    else:
        best = Path(folder, f"best_{trainer.args.process_index}.pt")
        torch.save(trainer.model.state_dict(), best)
    return latest


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    train(folder / "whole")
    assert train(folder / "stopped", At(7, stop)) is None
    latest = train(folder / "stopped")
    assert latest is not None
    assert latest.endswith("checkpoint-5")
    torch.distributed.barrier()
    assert not Path(latest).exists()
