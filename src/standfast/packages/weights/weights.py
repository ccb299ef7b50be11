"""The weights of a model: the files and shards they lie in, opened, checked, handed out."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from standfast.errors import (
    BadField,
    BadOption,
    DuplicateKey,
    MissingData,
    MissingFile,
    RefusedPickle,
    UnsupportedFile,
    shortened,
)
from standfast.packages.documents import names
from standfast.packages.documents.names import INDEX, MODEL, QUANTIZED
from standfast.packages.model.contents import are_equal
from standfast.packages.remote.places import File, Folder, as_tensors, exists, opened
from standfast.packages.weights import quantized
from standfast.policies import as_bytes
from standfast.tensorfile.importers.contents import shown
from standfast.tensorfile.importers.weight_map import weight_map_in
from standfast.tensorfile.open import TensorFile
from standfast.tensors import TensorSpec
from standfast.tensors.sources import ALIGNMENT, aligned_bytes

MAX_SHARDS: Final = 99_999
"""Their names count them with five digits."""


def shard_size(value: int | float | str) -> int:
    """A `max_shard_size` in bytes: 5e9, "5GB" and "200 MB" are decimal, "1GiB" is binary."""
    try:
        size = as_bytes(value)
    except BadOption:
        size = None
    if not size:
        raise BadOption(
            f"max_shard_size is {value!r:.80}: it must be a number of bytes, 1 or more, or a text "
            "such as '5GB' or '200MB'"
        )
    return size


def split(specs: Mapping[str, TensorSpec], max_shard_size: int) -> list[list[str]]:
    """The names of the tensors in each shard, split as the Transformers library does it.

    The order of `specs` decides: a tensor goes into the current shard if it fits, and begins a
    new one if not.
    """
    shards: list[list[str]] = []
    current: list[str] = []
    room = max_shard_size
    for name, spec in specs.items():
        if spec.nbytes > max_shard_size:
            # It takes its number at once, before that of the current shard, which stays open.
            shards.append([name])
            continue
        if spec.nbytes > room:
            shards.append(current)
            current, room = [], max_shard_size
        current.append(name)
        room -= spec.nbytes
    if current:
        shards.append(current)
    if len(shards) > MAX_SHARDS:
        raise BadOption(
            f"max_shard_size is {max_shard_size:,} bytes, which makes {len(shards):,} shards, over "
            f"{MAX_SHARDS:,}: give a larger one"
        )
    return shards


def index_text(shards: Sequence[Sequence[str]], specs: Mapping[str, TensorSpec]) -> bytes:
    """The index of the shards, byte for byte as the Transformers library writes it."""
    places = {
        name: names.shard(number, len(shards))
        for number, shard in enumerate(shards, start=1)
        for name in shard
    }
    metadata = {
        "total_parameters": sum(specs[name].size for name in places),
        "total_size": sum(specs[name].nbytes for name in places),
    }
    index = {"metadata": metadata, "weight_map": places}
    return (json.dumps(index, indent=2, sort_keys=True) + "\n").encode()


def read_index(index: File) -> dict[str, str]:
    """The name of the shard that holds each tensor, as an index says it.

    Raises BadField unless all are called as the shards of one model in this folder are.
    """
    with closing(opened(index)) as file:
        places = weight_map_in(file, names.is_shard)
    found = set(places.values())
    count = len(found)
    if strange := sorted(found - {names.shard(number, count) for number in range(1, count + 1)}):
        raise BadField(
            f"{shown(index)}: it names {count:,} shards, which should be called "
            f"{names.shard(1, count)} to {names.shard(count, count)}, and one of them is "
            f"{shown(strange[0])!r}"
        )
    return places


Array = np.ndarray[Any, Any]
SCHEME: Final = "quantization"
"""Where the metadata of a file says how its tensors were quantized."""


class Weights:
    """The files that the tensors of one model lie in, open; a context manager."""

    def __init__(
        self,
        paths: Sequence[File],
        places: Mapping[str, str] | None = None,
        *,
        mapped: bool | None = None,
        verify: bool = True,
    ) -> None:
        self.are_here: Final = all(isinstance(path, Path) for path in paths)
        """Whether they are files of this machine, which can be mapped."""
        self.specs: dict[str, TensorSpec] = {}
        """What the tensors are, once they are loaded."""
        self._files: list[TensorFile] = []
        with ExitStack() as stack:
            for path in paths:
                file = _opened(path, mapped=mapped and self.are_here, verify=verify)
                self._files.append(stack.enter_context(file))
                self._learn(file)
            _check_places(self._files, places)
            self._open = stack.pop_all()
        self.verdict = "verified" if verify and self.has_digests else "not verified"
        """What can be said of them once they are read."""

    @property
    def metadata(self) -> dict[str, Any]:
        """What the first file says besides its tensors."""
        return self._files[0].metadata

    @property
    def names(self) -> list[str]:
        """How the files are called."""
        return [Path(file.path).name for file in self._files]

    @property
    def has_digests(self) -> bool:
        """Whether all of them can be verified."""
        return all(file.has_digests for file in self._files)

    @property
    def is_quantized(self) -> bool:
        """Whether they are more than views: what was quantized is read and multiplied."""
        return any(SCHEME in file.metadata for file in self._files)

    def parts(self, *, aligned: bool = True) -> Iterator[dict[str, Array]]:
        """The tensors of one file after the other, verified, as writable arrays.

        They are views of a private mapping, which takes no memory until they are used, unless
        they were quantized. With `aligned`, those that do not lie as torch's own tensors would are
        copied: sums of what lies elsewhere may differ in the last bit.
        """
        for file in self._files:
            arrays = file.arrays()
            file.give_back()
            scheme = file.metadata.get(SCHEME)
            if scheme is not None:
                arrays = quantized.dequantized(arrays, scheme)
            if aligned:
                arrays = {name: _aligned(array) for name, array in arrays.items()}
            yield arrays

    def are_equal(self, first: str, second: str) -> bool:
        """Whether two tensors are the same, bit for bit, by their digests if there are such."""
        one, other = (next(f for f in self._files if name in f) for name in (first, second))
        if self.specs[first] != self.specs[second]:
            return False
        if self.has_digests:
            return one.stored_digests()[first] == other.stored_digests()[second]
        return are_equal(one.source(first), other.source(second))

    def check_in_place(self) -> None:
        """Raise ChangedFile if another file has taken the place of one of these."""
        for file in self._files:
            file.check_in_place()

    def _learn(self, file: TensorFile) -> None:
        specs = {name: file.spec(name) for name in file}
        scheme = file.metadata.get(SCHEME)
        if scheme is not None:
            specs = quantized.dequantized_specs(specs, scheme)
        for name, spec in specs.items():
            if name in self.specs:
                raise DuplicateKey(
                    f"{file.path}: another shard has the tensor {shortened(name)!r} too"
                )
            self.specs[name] = spec

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._open.close()


def find_weights(folder: Folder) -> tuple[list[File], dict[str, str] | None]:
    """The files of a package's weights, and which tensor the index says to be in which."""
    if exists(folder / MODEL):
        return [folder / MODEL], None
    if exists(folder / INDEX):
        places = read_index(folder / INDEX)
        paths = [folder / name for name in sorted(set(places.values()))]
        for path in paths:
            if not exists(path):
                raise MissingData(f"{path} is missing, which {INDEX} names")
        return paths, places
    if exists(folder / QUANTIZED):
        return [folder / QUANTIZED], None
    raise MissingFile(
        errno.ENOENT, f"{folder / MODEL} is missing, and there is no {INDEX} with shards either"
    )


def _opened(path: File, *, mapped: bool | None, verify: bool) -> TensorFile:
    source = as_tensors(path)
    file = TensorFile(source, mapped=mapped, writable=True, verify=verify, tensors_only=True)
    if file.format == "safetensors":
        return file
    file.close()
    error = RefusedPickle if file.format == "torch" else UnsupportedFile
    raise error(
        f"{path} is a {file.format} file under the name of another: expected safetensors; "
        f"`standfast convert` makes one of it"
    )


def _check_places(files: Sequence[TensorFile], places: Mapping[str, str] | None) -> None:
    """Raise MissingData unless every tensor is in the shard where the index says it is."""
    by_name = {Path(file.path).name: file for file in files}
    for tensor, shard in (places or {}).items():
        if tensor not in by_name[shard]:
            raise MissingData(
                f"{by_name[shard].path}: the tensor {shortened(tensor)!r} is missing, which "
                f"{INDEX} says to be there"
            )


def _aligned(array: Array) -> Array:
    if array.ctypes.data % ALIGNMENT == 0 or not array.size:
        return array
    copy = aligned_bytes(array.nbytes).view(array.dtype).reshape(array.shape)
    np.copyto(copy, array)
    return copy
