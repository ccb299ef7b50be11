"""The weights of a model: the files they lie in, opened, checked and handed out one by one."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from standfast.errors import (
    DuplicateKey,
    MissingData,
    MissingFile,
    RefusedPickle,
    UnsupportedFile,
    shortened,
)
from standfast.packages.documents.names import INDEX, MODEL, QUANTIZED
from standfast.packages.model.contents import are_equal
from standfast.packages.remote.places import File, Folder, as_tensors, exists
from standfast.packages.weights import quantized
from standfast.packages.weights.shards import read_index
from standfast.tensorfile.open import TensorFile
from standfast.tensors import TensorSpec
from standfast.tensors.sources import ALIGNMENT, aligned_bytes

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
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
