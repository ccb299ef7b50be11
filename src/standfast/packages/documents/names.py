"""How the files of a package are called."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MODEL: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
QUANTIZED: Final = "model.int8.safetensors"
CONFIG: Final = "config.json"
TOKENIZER: Final = "tokenizer.json"
TOKENIZER_CONFIG: Final = "tokenizer_config.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"
ADDED_TOKENS: Final = "added_tokens.json"
CHAT_TEMPLATE: Final = "chat_template.jinja"
GENERATION_CONFIG: Final = "generation_config.json"
GENERATION_INFO: Final = "generation_info.json"
DATASET: Final = "dataset.json"
DATASET_TEXT: Final = "dataset.txt"
MANIFEST: Final = "manifest.json"

REQUIRED_FILES: Final = (MODEL, CONFIG, TOKENIZER)
"""Without these a folder is no package; an index and its shards stand for the first."""

TOKENIZER_FILES: Final = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, ADDED_TOKENS, CHAT_TEMPLATE)
"""What Transformers keeps of a tokenizer; all but the first may be absent."""

OWN_FILES: Final = frozenset(
    {
        MODEL,
        INDEX,
        QUANTIZED,
        CONFIG,
        *TOKENIZER_FILES,
        GENERATION_CONFIG,
        GENERATION_INFO,
        DATASET,
        DATASET_TEXT,
        MANIFEST,
    }
)
_SHARD: Final = re.compile(r"model-([0-9]{5})-of-([0-9]{5})\.safetensors")


def shard(number: int, count: int) -> str:
    """The name of a shard; they are counted from 1."""
    return f"model-{number:05d}-of-{count:05d}.safetensors"


def is_shard(name: str) -> bool:
    """Whether a file of this name is a shard."""
    return _SHARD.fullmatch(name) is not None


def has_weights(names: Iterable[str]) -> bool:
    """Whether one of these files is a model's weights, or an index of them."""
    return any(name in (MODEL, INDEX, QUANTIZED) or is_shard(name) for name in names)


def is_package(names: Iterable[str]) -> bool:
    """Whether a folder with files of these names is meant to be a package, whatever it lacks."""
    found = set(names)
    # Many programs write a file of one of these names: two of them are no accident.
    return has_weights(found) or len(found & {CONFIG, TOKENIZER, MANIFEST}) >= 2
