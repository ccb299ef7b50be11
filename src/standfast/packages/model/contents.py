"""What is saved of a model: its tensors under the names of a package, and its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from standfast.errors import BadOption, StateMismatch, shortened
from standfast.files import disk
from standfast.files.writer import write_file
from standfast.formats import format_named
from standfast.formats.metadata import from_json
from standfast.packages.documents import json_text
from standfast.packages.documents.names import CONFIG
from standfast.packages.model.config import (
    EMBEDDING,
    HEAD,
    MODEL_TYPE,
    Config,
    plain_names,
    saved_names,
    unwrapped_names,
)
from standfast.packages.remote.places import file_in, written_here
from standfast.tensors import Source, source_of
from standfast.tensors.frameworks import unwrapped
from standfast.tensors.sources import ALIGNMENT, PIECE

_COMPUTING: Final = (
    "n_head",
    "activation_function",
    "layer_norm_epsilon",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
)
"""What a GPT computes depends on these, and its weights do not show them."""
_SOURCE: Final = ("spec", "sequential", "contiguous", "copy_to")


def config_of(model: Any) -> dict[str, Any] | None:
    """The configuration that a model carries with it, as `config.json` has it; None if none."""
    if isinstance(model, Mapping):
        return None
    inner = model if hasattr(model, "config") else unwrapped(model)
    return as_config(getattr(inner, "config", None))


def as_config(config: Any) -> dict[str, Any] | None:
    """A `Config`, a mapping, a `config.json` or the configuration of a Transformers model."""
    if config is None:
        return None
    if isinstance(config, Config):
        return config.as_dict()
    if isinstance(config, str | os.PathLike):
        return json_text.read_object(file_in(config, CONFIG))  # of another package
    if isinstance(config, Mapping):
        text = json_text.text(dict(config))
    elif hasattr(config, "to_json_string"):
        text = config.to_json_string(use_diff=False)
    else:
        raise BadOption(
            f"a {type(config).__name__} is no configuration: give a Config, a dict, or the path of "
            "a config.json"
        )
    return from_json(text.encode(), "config")  # whose keys are texts


def is_gpt(config: Mapping[str, Any] | None) -> bool:
    """Whether a configuration is one of GPT-2, whose tensors have names we know."""
    return config is not None and config.get("model_type", MODEL_TYPE) == MODEL_TYPE


def check_agreement(own: Mapping[str, Any] | None, given: Mapping[str, Any]) -> None:
    """Raise StateMismatch if a GPT would compute something else with this configuration."""
    if own is None or not is_gpt(own):
        return
    if not is_gpt(given):
        raise StateMismatch(
            f"the model is a {MODEL_TYPE}, and the configuration that of a "
            f"{shortened(str(given.get('model_type')))}"
        )
    mine, other = Config.of_dict(own), Config.of_dict(given)
    for name in _COMPUTING:
        if getattr(mine, name) != getattr(other, name):
            raise StateMismatch(
                f"{name} is {getattr(mine, name)!r} in the model and {getattr(other, name)!r} in "
                "the configuration: what is loaded would compute something else"
            )


def tensors_of(model: Any, config: Mapping[str, Any] | None) -> dict[str, Source]:
    """The tensors of a module, or of a mapping of them, under the names of a package.

    The output layer of a GPT is left out where it is the embedding: so it will be again.
    """
    given = model if isinstance(model, Mapping) else unwrapped(model).state_dict()
    tensors = {name: as_source(value) for name, value in given.items()}
    if not is_gpt(config):
        return tensors
    wrapped = {bare: name for name, bare in unwrapped_names(tensors).items()}
    kept = {plain: tensors[wrapped[bare]] for plain, bare in plain_names(wrapped).items()}
    if HEAD in kept and (config or {}).get("tie_word_embeddings", True):
        _check_tied(kept)
        del kept[HEAD]
    new = saved_names(kept)
    return {new[name]: source for name, source in kept.items()}


def as_source(value: Any) -> Source:
    """A tensor as a source, if it is none already."""
    return value if all(hasattr(value, each) for each in _SOURCE) else source_of(value)


def _check_tied(tensors: Mapping[str, Source]) -> None:
    """Raise StateMismatch if the output layer, which is not to be saved, is not the embedding."""
    head, embedding = tensors[HEAD], tensors.get(EMBEDDING)
    if embedding is None or not are_equal(head, embedding):
        raise StateMismatch(
            f"{HEAD!r} differs from {EMBEDDING!r}, and the configuration says that they are one: "
            "set tie_word_embeddings to False to save both"
        )


def are_equal(a: Source, b: Source) -> bool:
    """Whether two tensors are the same, bit for bit."""
    if a.spec != b.spec:
        return False
    here, there = a.contiguous(), b.contiguous()
    if here is not None and there is not None and here.ctypes.data == there.ctypes.data:
        return True
    size = a.spec.nbytes
    mine, other = np.empty(min(PIECE, size), np.uint8), np.empty(min(PIECE, size), np.uint8)
    for start in range(0, size, PIECE):
        part = slice(0, min(PIECE, size - start))
        a.copy_to(mine[part], start)
        b.copy_to(other[part], start)
        if not np.array_equal(mine[part], other[part]):
            return False
    return True


def write_tensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Source], metadata: Mapping[str, Any]
) -> None:
    """Write a safetensors file with digests, durably.

    Tensors of which the next one begins as torch would align it come first, so that nearly all
    can be used where they lie.
    """
    order = sorted(tensors, key=lambda name: tensors[name].spec.nbytes % ALIGNMENT != 0)
    specs = [(name, tensors[name].spec) for name in order]
    layout = format_named("safetensors").layout(specs, dict(metadata), True)
    with written_here(path) as target:
        write_file(target, layout, [tensors[name] for name in order], disk.LOCAL)
