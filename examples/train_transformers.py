"""A Transformers Trainer that saves to a store and resumes: start it, kill it, start it again.

pip install ".[transformers]"
python examples/train_transformers.py --steps 200
"""

from __future__ import annotations

import argparse
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from standfast.transformers import StandfastCallback


class Sequences(Dataset[dict[str, Any]]):
    """Arithmetic sequences modulo 64."""

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, Any]:
        tokens = (torch.arange(32) * (index % 7 + 1) + index) % 64
        return {"input_ids": tokens, "labels": tokens}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--store", default="experiments")
    arguments = parser.parse_args()
    set_seed(0)
    config = GPT2Config(n_layer=2, n_embd=64, n_head=2, n_positions=32, vocab_size=64)
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        output_dir=arguments.store,  # the callback writes to the store instead
        max_steps=arguments.steps,
        save_steps=50,
        logging_steps=10,
        per_device_train_batch_size=16,
        lr_scheduler_type="constant",
        report_to="none",
    )
    checkpoint = StandfastCallback(arguments.store, name="transformers")
    trainer = Trainer(model=model, args=args, train_dataset=Sequences(), callbacks=[checkpoint])
    trainer.train(resume_from_checkpoint=checkpoint.latest())  # None on the first start
