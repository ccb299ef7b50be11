"""A package is opened: its entries are checked, its weights found, its configuration read."""

from __future__ import annotations

import errno
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from standfast.errors import MissingFile, NotVerified
from standfast.packages.documents.manifest import Manifest
from standfast.packages.documents.names import CONFIG, INDEX, MANIFEST, TOKENIZER
from standfast.packages.model.config import Config
from standfast.packages.remote.places import Folder
from standfast.packages.verify import check_entries, check_file
from standfast.packages.weights.weights import Weights, find_weights


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
