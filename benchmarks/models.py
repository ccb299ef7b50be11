"""What the benchmarks of packages share: models of any size, here and in Transformers."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models

from standfast.packages import GPT, Config, save_model_folder
from standfast.packages.model.gpt import empty, fill

TINY = Config(vocab_size=300, n_positions=16, n_embd=8, n_layer=2, n_head=2)


def gpt(config: Config) -> GPT:
    """A model of random numbers that no file system can compress."""
    generator = torch.Generator().manual_seed(0)
    model = empty(config)
    fill(
        model,
        {
            name: torch.randn(weight.shape, generator=generator)
            for name, weight in model.named_parameters()
        },
    )
    return model.eval()


def tokenizer() -> Tokenizer:
    """A package has one; here it says nothing."""
    return Tokenizer(models.BPE())


def write(folder: Path, model: GPT, **options: Any) -> None:
    """A package of it."""
    save_model_folder(model, tokenizer(), model.config, folder, **options)


def gone(*folders: Path) -> None:
    """The folders are not there and the disk is quiet."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    os.sync()


def weights(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def size(files: list[Path]) -> int:
    return sum(file.stat().st_size for file in files)


def transformers() -> Any:
    """The library, which looks for nothing on the network and draws no bars."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    import transformers as library

    logging: Any = library.utils.logging
    logging.disable_progress_bar()
    return library


def gpt_of_transformers(model: GPT) -> Any:
    """The same model there, on the same memory."""
    library = transformers()
    with torch.device("meta"):
        other = library.GPT2LMHeadModel(library.GPT2Config(**model.config.as_dict()))
    other.transformer.load_state_dict(model.state_dict(), assign=True)
    other.tie_weights()
    return other


def from_pretrained(folder: Path) -> Any:
    """The package, opened by the Transformers library."""
    return transformers().GPT2LMHeadModel.from_pretrained(folder)
