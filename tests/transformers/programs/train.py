"""A small language model trained by a Trainer that saves into a store, killed where it is asked to.

python transformers_train.py FOLDER KILLED_AT
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from standfast.transformers import StandfastCallback

SAMPLES = 24
"""With two in a batch, an epoch has 12 steps."""


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    """Sequences that follow from their number."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, number: int) -> dict[str, Any]:
        tokens = (torch.arange(8) * (number + 3) + number) % 31
        return {"input_ids": tokens, "labels": tokens}


def small_model(width: int = 16) -> GPT2LMHeadModel:
    transformers.set_seed(5)
    sizes = {"n_layer": 1, "n_embd": width, "n_head": 2, "n_positions": 8, "vocab_size": 31}
    return GPT2LMHeadModel(transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))


def trainer_with(folder: Path, *callbacks: TrainerCallback, **arguments: Any) -> Trainer:
    times = {"num_train_epochs": 2, "save_steps": 5, "logging_steps": 4, "eval_steps": 5}
    chosen = {**times, "eval_strategy": "steps", "learning_rate": 0.01}
    args = TrainingArguments(
        output_dir=str(folder / "small"),
        per_device_train_batch_size=2,
        per_device_eval_batch_size=8,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=7,
        **{**chosen, **arguments},
    )
    data = {
        "train_dataset": Samples(),
        "eval_dataset": torch.utils.data.Subset(Samples(), range(4)),
    }
    return Trainer(model=small_model(), args=args, callbacks=[*callbacks], **data)


class At(TrainerCallback):
    """Does something once a step is done."""

    def __init__(self, step: int, action: Callable[[], object]) -> None:
        self._step = step
        self._action = action

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            self._action()


def kill() -> None:
    """Once all that was saved before is committed."""
    keeper.wait()
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    keeper = StandfastCallback(folder / "store", quiet=True)
    trainer = trainer_with(folder, keeper, At(int(sys.argv[2]), kill))
    trainer.train(resume_from_checkpoint=keeper.latest())
