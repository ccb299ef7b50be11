"""A package is written and read: a whole model in a folder."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.errors import ChangedFile, MissingFile
from holdfast.packages.building import build
from holdfast.packages.checking import check_entries, check_file
from holdfast.packages.config import Config
from holdfast.packages.manifest import Manifest
from holdfast.packages.names import CONFIG, INDEX, TOKENIZER
from holdfast.packages.tokenizer import read_tokenizer
from holdfast.packages.varmap import VarMap
from holdfast.packages.weights import Weights, find_weights
from holdfast.packages.writing import MAX_SHARD_SIZE, contents_of, write_package

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer

    from holdfast.packages.dataset import DatasetInfo
    from holdfast.packages.generation_info import GenerationInfo
    from holdfast.packages.gpt import GPT


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
    is there is replaced as a whole. `quantize="int8"` writes the weights at a quarter of their
    size.

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
    mappings of the files: what is written to them stays in memory. The model is in evaluation
    mode.

    >>> model, tokenizer, config, state = load_model_folder("models/recipes_20261116_120000")
    """
    home = Path(os.fsdecode(folder))
    with _unchanged(home):
        names = check_entries(home, ignore_pickles)
        for name in (CONFIG, TOKENIZER):
            if name not in names:
                raise MissingFile(errno.ENOENT, f"{home / name} is missing: a package has one")
        paths, places = find_weights(home)
        if verify:
            _check_manifest(home, {CONFIG, TOKENIZER, *(path.name for path in paths)}, places)
        config = Config.load(home / CONFIG)
        with Weights(paths, places, verify=verify) as weights:
            model = build(weights, config, device)
        tokenizer = read_tokenizer(home / TOKENIZER)
    model.origin = f"loaded from {home}, {'' if verify else 'not '}verified"
    return model, tokenizer, config, VarMap(model)


def _check_manifest(home: Path, needed: set[str], places: Mapping[str, str] | None) -> None:
    """Raise unless all files are those that the manifest, if there is one, says they are."""
    manifest = Manifest.read(home)
    if manifest is None:
        return  # the weights say for themselves whether they can be verified
    manifest.check_names(sorted(needed | ({INDEX} if places else set())))
    for name, expected in manifest.files.items():
        check_file(home / name, expected)


@contextmanager
def _unchanged(home: Path) -> Iterator[None]:
    """Raise ChangedFile if another package takes this one's place meanwhile."""
    before = _identity(home)
    try:
        yield
    finally:
        if before is not None and _identity(home) != before:
            raise ChangedFile(f"{home} was replaced while it was read: load it again")


def _identity(home: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(home)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino
