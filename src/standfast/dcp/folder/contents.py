"""What a torch.distributed.checkpoint folder holds: its tensors, their chunks, and where they lie.

All that `.metadata` says is checked here, before a file is opened.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from standfast.dcp.boxes import check_filled
from standfast.dcp.trees import Path, check_paths
from standfast.errors import (
    BadField,
    BadRange,
    DuplicateKey,
    LimitExceeded,
    SizeMismatch,
    UnsupportedFile,
    printable,
    shortened,
)
from standfast.formats.dcp_metadata import (
    Fields,
    Key,
    Object,
    checked,
    checked_count,
    checked_counts,
    read_metadata,
    what_is,
)
from standfast.formats.limits import MAX_NAME, MAX_SIZE
from standfast.formats.torch.values import CONSTANTS, FLOAT4, TORCH_DTYPES
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box

MAX_DEPTH: Final = 100


@dataclass(frozen=True, slots=True)
class Item:
    """Where a file of `torch.save` lies inside of another."""

    file: str
    """A plain name, of a file in the folder."""
    start: int
    length: int

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Chunk:
    """A box of a tensor, and where its elements lie."""

    box: Box
    item: Item


@dataclass(frozen=True, slots=True)
class CutTensor:
    """A tensor that lies in chunks, which fill it and do not overlap."""

    spec: TensorSpec
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True, slots=True)
class Contents:
    """What a folder holds, by name, in the order in which it was saved."""

    tensors: Mapping[str, CutTensor]
    values: Mapping[str, Item]
    paths: Mapping[str, Path] | None
    """Where each name hangs on the tree; None if the state was flat."""

    def ends(self) -> dict[str, int]:
        """How many bytes each file must have at least."""
        ends: dict[str, int] = {}
        for item in self.items():
            ends[item.file] = max(ends.get(item.file, 0), item.stop)
        return ends

    def items(self) -> Iterator[Item]:
        """All items, in no order."""
        yield from self.values.values()
        for tensor in self.tensors.values():
            for chunk in tensor.chunks:
                yield chunk.item


def read_contents(data: bytes) -> Contents:
    """The contents of a folder by its `.metadata`; whatever is wrong there raises."""
    top = read_metadata(data)
    _check_version(top.get("version"))
    storage, described = top.dict("storage_data"), top.dict("state_dict_metadata")
    items = {checked(Key, key, "storage_data"): _item(key, storage[key]) for key in storage}
    for name in described:
        _check_name(name)
    paths = _paths(top.get("planner_data"), described)
    tensors: dict[str, CutTensor] = {}
    values: dict[str, Item] = {}
    for name in paths or described:  # of the two, the paths are in the order of the state
        described_as, where = described[name], f"{shortened(name)!r}"
        if type(described_as) is Object and described_as.kind == "BytesStorageMetadata":
            values[name] = _taken(items, Key(name, None), where)
        else:
            tensors[name] = _tensor(name, described_as, items)
    for key in items:
        raise BadField(f"{shortened(key.name)!r}: an item at {key.offsets} that is of no chunk")
    contents = Contents(tensors, values, paths)
    _refuse_overlaps(contents)
    return contents


def _check_version(version: Any) -> None:
    if version is not None and (type(version) is not str or not version.startswith("1.")):
        shown = shortened(version) if type(version) is str else what_is(version)
        raise UnsupportedFile(
            f"version {shown!r} of .metadata, expected 1.0.0: load it with the torch that wrote it"
        )


def _check_name(name: Any) -> None:
    if len(checked(str, name, "state_dict_metadata")) > MAX_NAME:
        raise LimitExceeded(f"{shortened(name)!r}: a name of over {MAX_NAME:,} letters")


# Items


def _item(key: Key, found: Any) -> Item:
    where = f"{shortened(key.name)!r}"
    fields = Fields(found, "_StorageInfo", where)
    if transforms := fields.get("transform_descriptors"):
        names = [str(each) for each in checked(list, transforms, where)[:9] if type(each) is str]
        raise UnsupportedFile(
            f"{where}: the item was transformed ({shortened(printable(', '.join(names)))}): load "
            "the folder with torch and save it again without extensions"
        )
    file = checked(str, fields.get("relative_path"), f"{where}: relative_path")
    if file in ("", ".", "..", ".metadata") or set(file) & set("/\\:\0") or len(file) > 255:
        raise BadField(
            f"{where}: relative_path {shortened(printable(file))!r} is not the plain name of a "
            "file in the folder"
        )
    start = checked_count(fields.get("offset"), f"{where}: offset")
    return Item(file, start, checked_count(fields.get("length"), f"{where}: length"))


def _taken(items: dict[Key, Item], key: Key, where: str) -> Item:
    item = items.pop(key, None)
    if item is None:
        at = "" if key.offsets is None else f" for the chunk at {list(key.offsets)}"
        raise BadField(f"{where}: storage_data has no item{at}")
    return item


def _refuse_overlaps(contents: Contents) -> None:
    items = sorted(contents.items(), key=lambda item: (item.file, item.start, item.stop))
    for item, following in pairwise(items):
        if item.file == following.file and item.stop > following.start:
            raise BadRange(
                f"{shortened(item.file)}: an item at {item.start:,} to {item.stop:,} overlaps one "
                f"at {following.start:,}"
            )


# Tensors


def _tensor(name: str, found: Any, items: dict[Key, Item]) -> CutTensor:
    where = f"tensor {shortened(name)!r}"
    fields = Fields(found, "TensorStorageMetadata", where)
    dtype = _dtype(Fields(fields.get("properties"), "TensorProperties", where), where)
    shape = checked_counts(fields.get("size"), f"{where}: size")
    chunks = checked(list, fields.get("chunks"), f"{where}: chunks")
    # Before the work: a list that stands once in the pickle can be that of a million tensors.
    if len(chunks) > len(items):
        raise BadField(f"{where}: {len(chunks):,} chunks, but {len(items):,} items are left")
    boxes = [_box(chunk, shape, where) for chunk in chunks]
    keys = [Key(name, box.offsets) for box in boxes]
    if len(set(keys)) < len(keys):
        raise DuplicateKey(f"{where}: two chunks begin at the same place")
    check_filled(shape, boxes, where)
    whole = _spec(dtype, Box((0,) * len(shape), shape), where)[0]
    cut = []
    for key, box in zip(keys, boxes, strict=True):
        item = _taken(items, key, where)
        spec, logical = _spec(dtype, box, where)
        _check_length(item, spec, where)
        cut.append(Chunk(logical, item))
    return CutTensor(whole, tuple(cut))


def _dtype(properties: Fields, where: str) -> str:
    dtype, layout = properties.get("dtype"), properties.get("layout")
    if type(dtype) is not str or dtype not in CONSTANTS:
        raise BadField(f"{where}: expected a dtype, found {what_is(dtype)}")
    if dtype not in TORCH_DTYPES:
        raise UnsupportedFile(f"{where}: {dtype}, a dtype that Standfast does not have")
    if checked(str, layout, f"{where}: layout") != "torch.strided":
        raise UnsupportedFile(
            f"{where}: the layout {shortened(layout)!r}, which has no plain bytes: load it with "
            "torch and save its to_dense()"
        )
    return TORCH_DTYPES[dtype]


def _box(found: Any, shape: tuple[int, ...], where: str) -> Box:
    fields = Fields(found, "ChunkStorageMetadata", where)
    box = Box(
        checked_counts(fields.get("offsets"), f"{where}: offsets"),
        checked_counts(fields.get("sizes"), f"{where}: sizes"),
    )
    if not len(box.offsets) == len(box.shape) == len(shape):
        raise BadRange(f"{where}: a chunk of other dimensions than the tensor's {len(shape)}")
    if any(a + n > whole for a, n, whole in zip(*box, shape, strict=True)):
        raise BadRange(
            f"{where}: a chunk of {list(box.shape)} at {list(box.offsets)} reaches outside of "
            f"{list(shape)}"
        )
    return box


def _spec(dtype: str, box: Box, where: str) -> tuple[TensorSpec, Box]:
    """A box as a tensor of its own, and in elements: of float4, torch counts the pairs."""
    if dtype == FLOAT4:
        if not box.shape:
            raise UnsupportedFile(f"{where}: a float4 pair without dimensions")
        box = Box((*box.offsets[:-1], 2 * box.offsets[-1]), (*box.shape[:-1], 2 * box.shape[-1]))
    spec = TensorSpec(dtype, box.shape)
    if math.prod(filter(None, box.shape)) * spec.kind.numpy.itemsize > MAX_SIZE:
        raise LimitExceeded(f"{where}: no array can have the shape {list(box.shape)}")
    return spec, box


def _check_length(item: Item, spec: TensorSpec, where: str) -> None:
    """A file of `torch.save` has more bytes than its tensor; one of safetensors is cut to them."""
    if item.length == spec.nbytes:
        raise UnsupportedFile(
            f"{where}: its item has just the bytes of the tensor, as SerializationFormat."
            "SAFETENSORS leaves it: load the folder with torch and save it again with the default, "
            "SerializationFormat.TORCH_SAVE"
        )
    if item.length < spec.nbytes:
        raise SizeMismatch(
            f"{where}: a chunk of {list(spec.shape)} has {spec.nbytes:,} bytes, but its item has "
            f"{item.length:,}"
        )


# The tree


def _paths(found: Any, names: Mapping[str, Any]) -> dict[str, Path] | None:
    if found is None:
        return None
    paths = checked(dict, found, "planner_data")
    if paths.keys() != names.keys():
        odd = min(map(str, paths.keys() ^ names.keys()))
        raise BadField(
            f"planner_data and state_dict_metadata do not have the same names: {shortened(odd)!r} "
            "is in one of them"
        )
    for name, path in paths.items():
        _check_path(name, path)
    check_paths(paths)
    return dict(paths)


def _check_path(name: str, path: Any) -> None:
    where = f"planner_data[{shortened(name)!r}]"
    if len(checked(tuple, path, where)) > MAX_DEPTH:
        raise LimitExceeded(f"{where}: a path of over {MAX_DEPTH} parts")
    for part in path:
        if type(part) is not str:
            checked_count(part, where)
    letters = sum(len(part) if type(part) is str else 1 for part in path)
    # Their number first: one long text can be every part of every path.
    is_name = letters <= len(name) and ".".join(map(str, path)) == name
    if not path or type(path[0]) is not str or not is_name:
        raise BadField(f"{where}: its path, with dots between the parts, is not its name")
