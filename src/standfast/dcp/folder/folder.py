"""Folders that torch.distributed.checkpoint wrote by itself, read on one process.

Neither a process group nor torch is needed, and nothing that a file says is run.
`docs/formats/dcp.md` is the page of the bytes, and of what is refused.
"""

from __future__ import annotations

import os
import warnings
from functools import cached_property
from typing import Any, Final, Self

import numpy as np

from standfast.dcp.folder.contents import Contents, CutTensor, read_contents
from standfast.dcp.folder.items import Array, ItemFiles
from standfast.dcp.trees import nested
from standfast.errors import (
    BadIndex,
    DamagedFile,
    LimitExceeded,
    MissingFile,
    NotVerified,
    RefusedPickle,
    TensorNotFound,
    UnsupportedFile,
    shortened,
)
from standfast.files.input.file import SourceFile
from standfast.formats.dcp_metadata import MAX_METADATA
from standfast.store.schema.boxes import common, slices, within
from standfast.tensors import TensorSpec
from standfast.tensors import framework as framework_named
from standfast.tensors.shards import Box

METADATA: Final = ".metadata"


class DCPFolder:
    """An open folder: tensors and plain values by their names, and the tree that they hang on.

    Only `.metadata` is read now. What is handed out is fresh memory: tensors of `framework`, or
    NumPy's arrays. Each item is checked against the CRC-32 sums in it, unless `verify=False`.
    Files are mapped unless they lie on a network file system, or `mapped=False`. Values that are
    objects of some program are refused, or left out with `tensors_only`.

    >>> with DCPFolder("checkpoint") as folder:
    ...     weight = folder.tensor("model.weight")
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        framework: str = "torch",
        verify: bool = True,
        mapped: bool | None = None,
        tensors_only: bool = False,
    ) -> None:
        self.path = os.fsdecode(path)
        self._adapter = None if framework == "numpy" else framework_named(framework)
        self._contents = _read_contents(self.path)
        self._files = ItemFiles(self.path, self._contents.ends(), mapped, verify, tensors_only)

    @property
    def names(self) -> list[str]:
        """The names of all tensors, in the order of the state."""
        return list(self._contents.tensors)

    @property
    def specs(self) -> dict[str, TensorSpec]:
        """What each tensor is as a whole."""
        return {name: tensor.spec for name, tensor in self._contents.tensors.items()}

    @cached_property
    def values(self) -> dict[str, Any]:
        """All that is no tensor, by its name."""
        return {
            name: self._files.value(name, item, self._as_tensor)
            for name, item in self._contents.values.items()
        }

    @property
    def left_out(self) -> dict[str, str]:
        """What `tensors_only` left out of the values: the class's name by its path."""
        found: dict[str, str] = {}
        for name, item in self._contents.values.items():
            found |= self._files.left_out(name, item)
        return found

    def tensor(self, name: str) -> Any:
        """A whole tensor, put together from its chunks."""
        shape = self._cut(name).spec.shape
        return self.box(name, Box((0,) * len(shape), shape))

    def box(self, name: str, box: Box) -> Any:
        """A part of a tensor; only the items that it touches are read."""
        cut = self._cut(name)
        array = self._array(name, cut, _checked_box(name, cut.spec, box))
        return self._as_tensor(array, TensorSpec(cut.spec.dtype, tuple(box.shape)))

    def tree(self) -> dict[str, Any]:
        """The state that was given to `dcp.save`, with whole tensors as its leaves."""
        tensors = self._contents.tensors
        places = {name: [c.item for c in cut.chunks][:1] for name, cut in tensors.items()}
        in_order = sorted(places, key=lambda name: [(i.file, i.start) for i in places[name]])
        found = {name: self.tensor(name) for name in in_order}
        leaves = {**found, **self.values}
        if self._contents.paths is None:
            return {name: leaves[name] for name in [*tensors, *self._contents.values]}
        return nested(leaves, self._contents.paths)

    def close(self) -> None:
        """Close all files; what was taken from them stays valid."""
        self._files.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<DCP folder {self.path!r} with {len(self._contents.tensors)} tensors>"

    def _cut(self, name: str) -> CutTensor:
        cut = self._contents.tensors.get(name)
        if cut is None:
            raise TensorNotFound(f"{self.path}: there is no tensor {name!r}")
        return cut

    def _array(self, name: str, cut: CutTensor, box: Box) -> Array:
        spec = TensorSpec(cut.spec.dtype, box.shape)
        array = np.empty(spec.array_shape, spec.kind.numpy)
        for chunk in sorted(cut.chunks, key=lambda chunk: (chunk.item.file, chunk.item.start)):
            both = common(chunk.box, box)
            if both is not None:
                stored = self._files.array(name, chunk, cut.spec.dtype)
                here = _in_array(both, spec)
                target = slices(within(here, _in_array(box, spec)))
                array[target] = stored[slices(within(here, _in_array(chunk.box, spec)))]
        return array

    def _as_tensor(self, array: Array, spec: TensorSpec) -> Any:
        return array if self._adapter is None else self._adapter.tensor(array, spec)


def read(path: str | os.PathLike[str], **options: Any) -> dict[str, Any]:
    """The state that was given to `dcp.save`, with whole tensors; options are those of DCPFolder.

    There are no digests in such a folder, so that it loads with a NotVerified warning.

    >>> state = read("checkpoint")
    """
    with DCPFolder(path, **options) as folder:
        checked = (
            "only its CRC-32 sums were checked"
            if options.get("verify", True)
            else "nothing was verified"
        )
        tree = folder.tree()
    warnings.warn(
        f"{folder.path} holds no digests: it was loaded, but {checked}", NotVerified, stacklevel=2
    )
    return tree


def _read_contents(folder: str) -> Contents:
    path = os.path.join(folder, METADATA)
    try:
        file = SourceFile(path)
    except MissingFile as error:
        if os.path.exists(os.path.join(folder, f"__0{METADATA}")):
            raise UnsupportedFile(
                f"{folder}: each rank wrote a {METADATA} of its own: load it with torch, on as "
                "many ranks, and save it again with use_collectives=True"
            ) from None
        raise MissingFile(
            error.errno, f"there is no file {shortened(path)}: this is no folder of DCP's"
        ) from None
    try:
        if file.size > MAX_METADATA:
            raise LimitExceeded(f"{file.size:,} bytes, over {MAX_METADATA:,}")
        return read_contents(file.read(0, file.size))
    except (DamagedFile, UnsupportedFile, RefusedPickle) as error:
        error.args = (f"{path}: {error}", *error.args[1:])
        raise
    finally:
        file.close()


def _checked_box(name: str, spec: TensorSpec, box: Box) -> Box:
    offsets, shape = tuple(box.offsets), tuple(box.shape)
    where = f"tensor {name!r} has the shape {list(spec.shape)}"
    if not len(offsets) == len(shape) == len(spec.shape):
        raise BadIndex(f"{where}: the box has {len(offsets)} offsets and {len(shape)} lengths")
    for start, length, whole in zip(offsets, shape, spec.shape, strict=True):
        if start < 0 or length < 0 or start + length > whole:
            raise BadIndex(f"{where}: no {list(shape)} can begin at {list(offsets)}")
    if spec.kind.bits < 8 and (offsets[-1] % 2 or shape[-1] % 2):
        raise BadIndex(f"{where}, and its elements lie in pairs: begin and end between two pairs")
    return Box(offsets, shape)


def _in_array(box: Box, spec: TensorSpec) -> Box:
    """The box as the array has it: of float4, its last dimension counts pairs."""
    if spec.kind.bits >= 8:
        return box
    return Box((*box.offsets[:-1], box.offsets[-1] // 2), (*box.shape[:-1], box.shape[-1] // 2))
