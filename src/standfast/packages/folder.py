"""A package is written and read: a whole model in a folder."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from standfast.packages.documents.manifest import Manifest
from standfast.packages.documents.names import TOKENIZER
from standfast.packages.documents.tokenizer import read_tokenizer
from standfast.packages.model.build import build
from standfast.packages.model.config import Config
from standfast.packages.model.varmap import VarMap
from standfast.packages.reader import opened_package
from standfast.packages.remote.places import folder_at
from standfast.packages.retry import while_unchanged
from standfast.packages.writer import MAX_SHARD_SIZE, contents_of, write_package

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from standfast.packages.documents.dataset import DatasetInfo
    from standfast.packages.documents.generation_info import GenerationInfo
    from standfast.packages.model.gpt import GPT


def save_model_folder(
    model: Any,
    tokenizer: Any,
    config: Any,
    folder: str | os.PathLike[str],
    dataset: DatasetInfo | None = None,
    generation_info: GenerationInfo | None = None,
    *,
    max_shard_size: int | float | str = MAX_SHARD_SIZE,
    quantize: str | None = None,
) -> Manifest:
    """Write a package; when this returns it is whole and on the disk, and not before.

    `model` is a GPT, a Transformers model, any torch module, or a mapping of names to tensors;
    `tokenizer` one of the Tokenizers or Transformers library, or the path of a `tokenizer.json`;
    `config` a Config or what a `config.json` says, or None for that of the model. A package that
    is there is replaced as a whole. A URL may stand for the folder. `quantize="int8"` writes the
    weights at a quarter of their size.

    >>> save_model_folder(model, tokenizer, config, "models/recipes_20261116_120000")
    """
    contents = contents_of(
        model, tokenizer, config, dataset=dataset, generation_info=generation_info
    )
    return write_package(contents, folder, max_shard_size=max_shard_size, quantize=quantize)


def load_model_folder(
    folder: str | os.PathLike[str],
    device: str = "cpu",
    *,
    verify: bool = True,
    ignore_pickles: bool = False,
) -> tuple[GPT, Tokenizer, Config, VarMap]:
    """The model of a package, its tokenizer, its configuration and its parameters.

    Every byte of the package is verified, and nothing in it is run. The weights lie in private
    mappings of the files: what is written to them stays in memory. A URL may stand for the folder:
    from there they are read into memory. The model is in evaluation mode.

    >>> model, tokenizer, config, state = load_model_folder("models/recipes_20261116_120000")
    """
    home = folder_at(folder)

    def load() -> tuple[GPT, Tokenizer]:
        with opened_package(home, verify=verify, ignore_pickles=ignore_pickles) as found:
            config, weights = found
            model = build(weights, config, home, device)
            return model, read_tokenizer(home / TOKENIZER)

    model, tokenizer = while_unchanged(home, load)
    return model, tokenizer, model.config, VarMap(model)
