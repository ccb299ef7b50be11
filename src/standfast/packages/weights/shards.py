"""Weights in several files: which tensor goes into which shard, and the index that says so."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Final

from standfast.errors import BadField, BadOption
from standfast.packages.documents import names
from standfast.packages.remote.places import File, opened
from standfast.policies import as_bytes
from standfast.tensorfile.importers.contents import shown
from standfast.tensorfile.importers.weight_map import weight_map_in
from standfast.tensors import TensorSpec

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
