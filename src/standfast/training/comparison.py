"""A saved state beside the one that it should be put into, leaf by leaf."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Final

import numpy as np

from standfast.store.load.filling import LoadReport, leaves_of, spec_of
from standfast.store.schema.boxes import slices
from standfast.tensors import Source, TensorSpec, memory_of, source_of
from standfast.tensors.frameworks import device_of, same_on_device, shards_of
from standfast.tensors.shards import Shards
from standfast.tensors.sources import Bytes

_PIECE: Final = 16 << 20
"""Of tensors that lie on several devices, so much is brought to the host at a time."""
SpecOf = Callable[[Any], TensorSpec | None]
"""The spec of a saved leaf, if it is a tensor."""


def compare(mine: Any, saved: Any, saved_spec: SpecOf, trees: Collection[str] = ()) -> LoadReport:
    """What fits and what does not.

    A container that is empty on one side is no difference: an optimizer has no state before its
    first step. Nor is, in the parts named in `trees`, the length of a list: a history grows.
    """
    report = LoadReport()
    my_leaves, saved_leaves = leaves_of(mine), leaves_of(saved)
    for path, leaf in my_leaves.items():
        if path in saved_leaves:
            problem = _problem(spec_of(leaf), saved_spec(saved_leaves[path]))
            if problem:
                report.mismatched.append(f"{path}: {problem}")
            else:
                report.loaded.append(path)
    my_open, saved_open = _empty(my_leaves), _empty(saved_leaves)
    my_containers, saved_containers = _containers(my_leaves), _containers(saved_leaves)
    for path in saved_leaves.keys() - my_leaves.keys():
        if _is_item(path, trees, my_containers) or not my_open.isdisjoint(_prefixes(path)):
            report.loaded.append(path)
        elif path not in saved_open or path not in my_containers:
            report.unexpected.append(path)
    for path in my_leaves.keys() - saved_leaves.keys():
        is_filled = path in my_open and path in saved_containers
        is_filled |= _is_item(path, trees, saved_containers)
        if not is_filled and saved_open.isdisjoint(_prefixes(path)):
            report.missing.append(path)
    for paths in (report.loaded, report.missing, report.unexpected):
        paths.sort()
    return report


def _is_item(path: str, trees: Collection[str], others: set[str]) -> bool:
    """Whether this is an item of a list of the program's own, which the other side has as well."""
    container, _, key = path.rpartition(".")
    return key.isdecimal() and path.partition(".")[0] in trees and container in others


def _problem(mine: TensorSpec | None, saved: TensorSpec | None) -> str | None:
    if mine == saved:
        return None
    if mine is None or saved is None:
        was, given = ("a tensor", "a plain value") if saved else ("a plain value", "a tensor")
        return f"{was} was saved, {given} is there now"
    return f"{saved.dtype} {list(saved.shape)} was saved, {mine.dtype} {list(mine.shape)} is there"


def _empty(leaves: dict[str, Any]) -> set[str]:
    return {p for p, leaf in leaves.items() if isinstance(leaf, dict | list | tuple) and not leaf}


def _containers(leaves: Iterable[str]) -> set[str]:
    return {prefix for path in leaves for prefix in _prefixes(path)}


def _prefixes(path: str) -> Iterator[str]:
    """The paths of the containers that a leaf lies in, and of some that there are not."""
    return itertools.accumulate(path.split(".")[:-1], "{}.{}".format)


def differences(mine: Any, saved: Any) -> Iterator[str]:
    """The paths of the leaves that both have and that are not the same, bit for bit."""
    saved_leaves = leaves_of(saved)
    for path, leaf in leaves_of(mine).items():
        if path in saved_leaves and not _same(leaf, saved_leaves[path]):
            yield path


def _same(mine: Any, saved: Any) -> bool:
    if mine is saved:
        return True
    if (shards := shards_of(mine)) is not None:
        its = shards_of(saved)
        return _same_boxes(shards, saved) if its is None else _same_shards(shards, its)
    spec = spec_of(mine)
    if spec != spec_of(saved):
        return False
    if spec is None:
        return type(mine) is type(saved) and (mine == saved or repr(mine) == repr(saved))
    memory = memory_of(mine)
    if memory is not None and memory == memory_of(saved):
        return True
    device = device_of(mine)
    if device is not None and device is device_of(saved):
        return same_on_device(mine, saved)
    return _have_same_bytes(source_of(mine), source_of(saved))


def _same_shards(mine: Shards, saved: Shards) -> bool:
    """Whether this process has the same of two tensors that are shared out."""
    boxes = [shard.box for shard in mine.shards]
    return (
        mine.spec == saved.spec
        and boxes == [shard.box for shard in saved.shards]
        and all(_same(a.tensor, b.tensor) for a, b in zip(mine.shards, saved.shards, strict=True))
    )


def _same_boxes(mine: Shards, saved: Any) -> bool:
    """Whether what this process has of a tensor is the same as in one that came back whole."""
    if spec_of(saved) != mine.spec:
        return False
    whole = mine.spec.view(_bytes(source_of(saved), 0, mine.spec.nbytes))
    return all(_same(shard.tensor, whole[slices(shard.box)]) for shard in mine.shards)


def _have_same_bytes(mine: Source, saved: Source) -> bool:
    """Whether two tensors that lie anywhere are the same, bit for bit."""
    size = mine.spec.nbytes
    pieces = ((start, min(start + _PIECE, size)) for start in range(0, size, _PIECE))
    return all(
        np.array_equal(_bytes(mine, start, stop), _bytes(saved, start, stop))
        for start, stop in pieces
    )


def _bytes(source: Source, start: int, stop: int) -> Bytes:
    flat = source.contiguous()
    if flat is not None:
        return flat[start:stop]
    piece = np.empty(stop - start, np.uint8)
    source.copy_to(piece, start)
    return piece
