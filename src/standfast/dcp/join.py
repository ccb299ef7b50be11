"""What all ranks have written for DCP becomes the one record of a state dict with its nesting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch.distributed.checkpoint.metadata import Metadata

from standfast.dcp.items import NAMED, Handed, Item, paths_of, shown, spec_of
from standfast.dcp.trees import check_paths, nested
from standfast.errors import RanksDisagree, shortened
from standfast.store.save.held import Skeleton, hold_leaves
from standfast.store.save.joining import Place, joined
from standfast.store.schema.record import Record
from standfast.store.tree import tree
from standfast.store.tree.tree import Leaf
from standfast.tensors.shards import Shards

Key = tuple[str | int, int]
"""A tensor: its name and NAMED, or the rank that has it in its plain values and its number."""


def join(metadata: Metadata, handed: Sequence[Handed], records: Sequence[Record]) -> Record:
    """The record of all; each rank's, and what it has handed over, stand at the same place."""
    items = _items(handed)
    skeleton, numbers = _skeleton(metadata, handed, items)
    places = []
    for rank, each in enumerate(handed):
        keys = [_key(rank, item) for item in each.items]
        places.append([Place(numbers[keys[r.item]], r.offsets, r.shape) for r in each.rows])
    nothing: list[Sequence[Place]] = [()] * len(handed)
    return joined(skeleton, records, places, [b""] * len(handed), nothing)


def _key(rank: int, item: Item) -> Key:
    return (item.name, NAMED) if item.number == NAMED else (rank, item.number)


def _items(handed: Sequence[Handed]) -> dict[Key, Item]:
    """All tensors; raises RanksDisagree if two ranks mean different ones by one name."""
    items: dict[Key, Item] = {}
    for rank, each in enumerate(handed):
        for item in each.items:
            other = items.setdefault(_key(rank, item), item)
            if other != item:
                raise RanksDisagree(
                    f"{shortened(item.name)}: one rank has {other.dtype} {list(other.shape)}, and "
                    f"rank {rank} has {item.dtype} {list(item.shape)}"
                )
    return items


def _skeleton(
    metadata: Metadata, handed: Sequence[Handed], items: Mapping[Key, Item]
) -> tuple[Skeleton, Mapping[Key, int]]:
    """The state without its bytes, and the number that each tensor has in it."""
    stands: dict[int, Key] = {}
    keep: list[Any] = []

    def stand_in(key: Key) -> Any:
        """An array that stands for a tensor, until the tree is flat again."""
        array = np.empty(0, np.uint8)
        keep.append(array)
        stands[id(array)] = key
        return array

    state = _state(metadata, handed, items, stand_in)
    node, found = tree.flatten(state)
    keys = [stands[id(leaf.value)] for leaf in found]
    leaves = [
        Leaf(leaf.path, None, items[key].kind, Shards(spec_of(items[key]), ()))
        for leaf, key in zip(found, keys, strict=True)
    ]
    skeleton = hold_leaves(state, node, leaves, ()).skeleton
    return skeleton, dict(zip(keys, skeleton.numbers, strict=True))


def _state(
    metadata: Metadata,
    handed: Sequence[Handed],
    items: Mapping[Key, Item],
    stand_in: Callable[[Key], Any],
) -> dict[str, Any]:
    """The state dict with its nesting, in which something stands for each tensor."""
    found: dict[str, Any] = {}
    for rank, each in enumerate(handed):
        count = sum(item.number != NAMED for item in each.items)
        for name, value in tree.decode(each.values, count).items():
            found[name] = tree.build(value, partial(_of_rank, stand_in, rank))
    found |= {str(name): stand_in((name, n)) for name, n in items if n == NAMED}
    wanted = metadata.state_dict_metadata
    if found.keys() != wanted.keys():
        raise RanksDisagree(f"what was planned and not written: {shown([*wanted.keys() ^ found])}")
    told = paths_of(metadata.planner_data)
    # In the order of the state dict, which the planner's own names are in.
    paths = {name: told[name] for name in told if name in found}
    paths |= {name: (name,) for name in wanted if name not in paths}
    check_paths(paths)
    return nested(found, paths)


def _of_rank(stand_in: Callable[[Key], Any], rank: int, number: int) -> Any:
    return stand_in((rank, number))
