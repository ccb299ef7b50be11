"""A package out of a store: from any checkpoint that has the weights of a model."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from standfast.errors import BadOption
from standfast.packages.documents.manifest import Manifest
from standfast.packages.documents.names import (
    DATASET,
    DATASET_TEXT,
    GENERATION_INFO,
    TOKENIZER,
    TOKENIZER_FILES,
)
from standfast.packages.folder import save_model_folder
from standfast.packages.model.contents import as_config, config_of, tensors_of
from standfast.packages.store.origin import origin_of
from standfast.packages.store.packages import MODEL, StoredPackage, stored_package
from standfast.packages.store.weights import stored_weights
from standfast.packages.writer import MAX_SHARD_SIZE, Contents, files_of, write_package
from standfast.store import Checkpoint, Store


@dataclass(frozen=True)
class _Given:
    """What the caller says of a package; it goes before what the checkpoint says."""

    config: dict[str, Any] | None
    tokenizer: Any
    dataset: Any
    generation_info: Any


def export(
    ref_or_model: Any,
    folder: str | os.PathLike[str],
    *,
    store: Store | str | os.PathLike[str] | None = None,
    part: str | None = MODEL,
    config: Any = None,
    tokenizer: Any = None,
    dataset: Any = None,
    generation_info: Any = None,
    max_shard_size: int | float | str = MAX_SHARD_SIZE,
    quantize: str | None = None,
) -> Manifest:
    """Write a checkpoint of a store, or a model, as a package; returns its manifest.

    A checkpoint is given as such, or by what refers to it in `store`: `gpt@best`, `latest`, a
    tag. `part` is the one that has the weights, None if they are the state. `config` and
    `tokenizer`, which may be paths of files, say what the checkpoint does not. The weights are
    verified as they are read, and take little memory, whatever their size.

    >>> export("gpt@best", "models/gpt", store="experiments")
    >>> export(checkpoint, "models/gpt", config=config, tokenizer="tokenizer.json")
    """
    given = _Given(as_config(config), tokenizer, dataset, generation_info)
    if hasattr(ref_or_model, "state_dict") or isinstance(ref_or_model, Mapping):
        return save_model_folder(
            ref_or_model,
            _required(tokenizer, "the model comes without a tokenizer", "tokenizer"),
            _required(given.config or config_of(ref_or_model), "the model has none", "config"),
            folder,
            dataset,
            generation_info,
            max_shard_size=max_shard_size,
            quantize=quantize,
        )
    checkpoint = _checkpoint(ref_or_model, store)
    package = stored_package(checkpoint) or StoredPackage({}, {})
    says = given.config or dict(package.config) or None
    config = _required(says, f"{checkpoint.ref} does not say what its model is", "config")
    files = _files(checkpoint, config, package, given)
    with stored_weights(checkpoint, part) as sources:
        contents = Contents(
            tensors_of(sources, config), config, files, {"checkpoint": origin_of(checkpoint)}
        )
        return write_package(contents, folder, max_shard_size=max_shard_size, quantize=quantize)


def _checkpoint(ref: Any, store: Store | str | os.PathLike[str] | None) -> Checkpoint:
    if isinstance(ref, Checkpoint):
        return ref
    if not isinstance(ref, str):
        raise BadOption(
            f"a {type(ref).__name__} cannot be exported: give a checkpoint, what refers to one, "
            "or a model"
        )
    if store is None:
        raise BadOption(f"{ref!r} refers to a checkpoint of which store? Give store= its folder")
    return (store if isinstance(store, Store) else Store(store)).resolve(ref)


def _files(
    checkpoint: Checkpoint, config: dict[str, Any], package: StoredPackage, given: _Given
) -> dict[str, bytes]:
    """The files that are given, and of those that are not, what the checkpoint has."""
    kept = dict(package.files)
    for value, names in (
        (given.tokenizer, TOKENIZER_FILES),
        (given.dataset, (DATASET, DATASET_TEXT)),
        (given.generation_info, (GENERATION_INFO,)),
    ):
        if value is not None:
            kept = {name: text for name, text in kept.items() if name not in names}
    tokenizer = _required(
        kept.get(TOKENIZER, given.tokenizer), f"{checkpoint.ref} has no tokenizer", "tokenizer"
    )
    return {**files_of(tokenizer, config, given.dataset, given.generation_info), **kept}


def _required(value: Any, problem: str, argument: str) -> Any:
    if value is None:
        raise BadOption(f"{problem}, and a package has one: give {argument}=")
    return value
