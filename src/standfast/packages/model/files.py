"""The files of a model: one file or a package, saved, loaded and mapped."""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

from standfast.errors import (
    BadField,
    BadOption,
    MissingFile,
    NotVerified,
    RefusedMetadata,
    StateMismatch,
    UnknownFormat,
    shortened,
)
from standfast.formats import format_for_writing
from standfast.formats.metadata import from_json
from standfast.packages.documents import json_text
from standfast.packages.documents.manifest import Manifest
from standfast.packages.documents.names import CONFIG, INDEX, MANIFEST, TOKENIZER
from standfast.packages.documents.tokenizer import read_tokenizer
from standfast.packages.model.config import EMBEDDING, HEAD, Config, check_shapes, plain_names
from standfast.packages.model.contents import as_config, config_of, tensors_of, write_tensors
from standfast.packages.model.varmap import VarMap
from standfast.packages.remote.places import (
    File,
    Folder,
    either_at,
    exists,
    file_at,
    folder_at,
    while_unchanged,
)
from standfast.packages.verify import check_entries, check_file
from standfast.packages.weights.weights import SCHEME, Weights, find_weights
from standfast.packages.writer import MAX_SHARD_SIZE, contents_of, write_package
from standfast.tensors import framework

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from standfast.packages.documents.records import DatasetInfo, GenerationInfo
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
    model = _loaded(file_at(path), device, verify=verify)
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
    if folder is None:
        model = _loaded(file, device, verify=verify, mapped=True)
        return model, model.config

    def load() -> GPT:
        with opened_package(
            folder,
            mapped=True,
            verify=verify,
            ignore_pickles=ignore_pickles,
            with_tokenizer=False,
        ) as (config, weights):
            return build(weights, config, folder, device, aligned=False)

    model = while_unchanged(folder, load)
    return model, model.config


def _loaded(file: File, device: str, *, verify: bool, mapped: bool | None = None) -> GPT:
    with Weights([file], mapped=mapped, verify=verify) as weights:
        model = build(weights, _config(weights, file), file, device, aligned=not mapped)
    if verify and not weights.has_digests:
        text = f"{file} holds no digests: it was loaded, but nothing was verified"
        warnings.warn(text, NotVerified, stacklevel=3)
    return model


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
        f"{path} does not say what its model is: expected {_KEY!r} in its metadata, "
        f"{path.with_name(CONFIG)} or {path.with_suffix('.json')}; it has tensors such as "
        f"{next(iter(plain_names(weights.specs)), None)!r}",
    )


@contextmanager
def opened_package(
    home: Folder,
    *,
    mapped: bool | None = None,
    verify: bool = True,
    ignore_pickles: bool = False,
    with_tokenizer: bool = True,
) -> Iterator[tuple[Config, Weights]]:
    """The configuration and the weights of a package, of which nothing leads out of its folder.

    With `verify`, every file is compared with the manifest, and the weights are when they are
    read. On leaving, a NotVerified warning says what could not be verified, or is missing.
    """
    names = check_entries(home, ignore_pickles)
    if CONFIG not in names:
        raise MissingFile(errno.ENOENT, f"{home / CONFIG} is missing: a package has one")
    if TOKENIZER not in names and with_tokenizer:
        raise MissingFile(
            errno.ENOENT,
            f"{home / TOKENIZER} is missing: a package has one; save the tokenizer into the folder "
            "too, or take load_model_mmaped, which needs none",
        )
    paths, places = find_weights(home)
    with Weights(paths, places, mapped=mapped, verify=verify) as weights:
        problem = _check_files(home, names, weights, places) if verify else None
        yield Config.load(home / CONFIG), weights
        weights.check_in_place()
    if problem:
        warnings.warn(f"{home} {problem}", NotVerified, stacklevel=6)


def _check_files(
    home: Folder, names: list[str], weights: Weights, places: Mapping[str, str] | None
) -> str | None:
    """Raise unless all files are those of the manifest; returns what the user should know.

    A file that the model does not need may be missing.
    """
    manifest = Manifest.read(home)
    if manifest is None:
        what = "only its weights were" if weights.has_digests else "nothing was"
        if weights.has_digests:
            weights.verdict = "only its weights verified"
        return f"has no {MANIFEST}: it was loaded, but {what} verified"
    needed = {CONFIG, TOKENIZER, INDEX} & set(names)
    if places is None:
        needed.discard(INDEX)
    manifest.check_names(sorted(needed | set(weights.names)))
    for name in names:
        if name in manifest.files:
            check_file(home / name, manifest.files[name])
    missing = ", ".join(sorted(manifest.files.keys() - names))
    return f"was loaded without {missing}, which {MANIFEST} names" if missing else None


_FLOATS: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


def build(
    weights: Weights,
    config: Config,
    home: Folder | File,
    device: str = "cpu",
    *,
    aligned: bool = True,
) -> GPT:
    """The model of this configuration with these weights, in evaluation mode.

    They arrive file by file, so that one of them at most is in memory twice. Raises StateMismatch
    before anything is built if they are not what the configuration asks for. An output layer in
    the files that is not the embedding is the model's own, whatever the configuration says.
    """
    adapter = framework("torch")  # says what to install if it is missing
    from standfast.packages.model import gpt

    names = plain_names(weights.specs)
    if config.tie_word_embeddings and HEAD in names:
        if EMBEDDING in names and weights.are_equal(names[HEAD], names[EMBEDDING]):
            del names[HEAD]
        else:
            config = config.changed(tie_word_embeddings=False)
    specs = {plain: weights.specs[name] for plain, name in names.items()}
    check_shapes(specs, config)
    for plain, spec in specs.items():
        if spec.dtype not in _FLOATS:
            raise StateMismatch(f"{shortened(plain)!r} is of {spec.dtype}, which no weight is")
    model = gpt.empty(config)
    plain_of = {name: plain for plain, name in names.items()}
    for arrays in weights.parts(aligned=aligned):
        tensors = {
            plain_of[name]: adapter.tensor(array, specs[plain_of[name]])
            for name, array in arrays.items()
            if name in plain_of
        }
        gpt.fill(model, tensors, device)
    model.origin = f"{_how(weights, aligned)} from {home}, {weights.verdict}"
    return model.eval()


def _how(weights: Weights, aligned: bool) -> str:
    if aligned:
        return "loaded"
    if weights.is_quantized:
        return "read and multiplied"
    return "mapped" if weights.are_here else "read"
