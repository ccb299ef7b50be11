"""A model in one file: saved, loaded, mapped."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import (
    BadField,
    BadOption,
    MissingFile,
    NotVerified,
    RefusedMetadata,
    UnknownFormat,
)
from standfast.formats import format_for_writing
from standfast.formats.metadata import from_json
from standfast.packages.documents import json_text
from standfast.packages.documents.names import CONFIG
from standfast.packages.model.architecture import plain_names
from standfast.packages.model.build import build
from standfast.packages.model.config import Config
from standfast.packages.model.contents import as_config, config_of, tensors_of, write_tensors
from standfast.packages.model.varmap import VarMap
from standfast.packages.reader import opened_package
from standfast.packages.remote.places import File, either_at, exists, file_at
from standfast.packages.retry import while_unchanged
from standfast.packages.weights.weights import SCHEME, Weights

if TYPE_CHECKING:
    from standfast.packages.model.gpt import GPT

_KEY: Final = "config"
"""Where the metadata of a file has the configuration of its model."""


def save_model(
    model: Any, path: str | os.PathLike[str], metadata: Mapping[str, Any] | None = None
) -> None:
    """Save the weights of a model to a safetensors file, durably, with its configuration.

    >>> save_model(model, "model.safetensors", {"epoch": 3})
    """
    given = dict(metadata or {})
    if SCHEME in given or not isinstance(given.get(_KEY, {}), Mapping):
        raise RefusedMetadata(
            f"metadata: {SCHEME!r} is reserved, and {_KEY!r} should be what a config.json says"
        )
    config = as_config(given.get(_KEY)) or config_of(model)
    if config is not None:
        given[_KEY] = config
    target = os.fsdecode(path)
    with suppress(UnknownFormat):
        if (kind := format_for_writing(target)).NAME != "safetensors":
            raise BadOption(
                f"{target}: its suffix is that of {kind.NAME}, and safetensors is written"
            )
    write_tensors(target, tensors_of(model, config), given)


def load_model(
    path: str | os.PathLike[str], device: str = "cpu", *, verify: bool = True
) -> tuple[GPT, Config, VarMap]:
    """A model out of one file, every byte verified; its configuration and its parameters.

    The configuration is in the file's own metadata, or else in `config.json` beside it, or else
    in the file of the same name with the suffix `.json`.
    """
    target = file_at(path)
    with Weights([target], verify=verify) as weights:
        model = build(weights, _config(weights, target), target, device)
    if verify and not weights.has_digests:
        text = f"{target} holds no digests: it was loaded, but nothing was verified"
        warnings.warn(text, NotVerified, stacklevel=2)
    return model, model.config, VarMap(model)


def load_model_mmaped(
    path: str | os.PathLike[str],
    device: str = "cpu",
    *,
    verify: bool = False,
    ignore_pickles: bool = False,
) -> tuple[GPT, Config]:
    """A model whose weights are views of the mapped file, or of the files of a package.

    Nothing is read until it is used, and so nothing is verified unless `verify=True`: then every
    byte is read once. `print(model)` says which it was. Weights that were quantized are no views:
    they are read and multiplied.
    """
    folder, file = either_at(path)

    def load() -> GPT:
        if folder is None:
            with Weights([file], mapped=True, verify=verify) as weights:
                return build(weights, _config(weights, file), file, device, aligned=False)
        with opened_package(
            folder,
            mapped=True,
            verify=verify,
            ignore_pickles=ignore_pickles,
            with_tokenizer=False,
        ) as (config, weights):
            return build(weights, config, folder, device, aligned=False)

    model = while_unchanged(folder or file, load)
    return model, model.config


def _config(weights: Weights, path: File) -> Config:
    given = weights.metadata.get(_KEY)
    if isinstance(given, str):
        given = from_json(given.encode(), f"{path}: its metadata {_KEY!r}")
    if isinstance(given, dict):
        return json_text.named(path, lambda: Config.of_dict(given))
    if given is not None:
        raise BadField(f"{path}: its metadata {_KEY!r} should be an object")
    for beside in (path.with_name(CONFIG), path.with_suffix(".json")):
        if exists(beside):
            return Config.load(beside)
    raise MissingFile(
        errno.ENOENT,
        f"{path} does not say what its model is: expected {CONFIG!r} in its metadata, "
        f"{path.with_name(CONFIG)} or {path.with_suffix('.json')}; it has tensors such as "
        f"{next(iter(plain_names(weights.specs)), None)!r}",
    )
