"""The index of a model in shards: which of them holds which tensor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from standfast.errors import BadField, printable, shortened
from standfast.files.input.file import SourceFile
from standfast.files.input.ranges import SourceRanges
from standfast.tensorfile.importers.contents import shown
from standfast.tensorfile.importers.json_files import json_in


def read_weight_map(index: Path, is_shard: Callable[[str], bool]) -> dict[str, str]:
    """The name of a file for each tensor; one that `is_shard` does not take raises BadField.

    So a name out of the index becomes a path only if it is one that shards have.
    """
    with closing(SourceFile(index)) as file:
        return weight_map_in(file, is_shard)


def weight_map_in(
    file: SourceFile | SourceRanges, is_shard: Callable[[str], bool]
) -> dict[str, str]:
    """The same of an index that is open."""
    index = file.path
    places = json_in(file).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise BadField(f"{shown(index)}: weight_map should be an object of names and files")
    for tensor, shard in places.items():
        if not isinstance(shard, str):
            raise BadField(
                f"{place(index, tensor)} should be the name of a file, found {shard!r:.80}"
            )
        if not is_shard(shard):
            raise BadField(
                f"{place(index, tensor)} is {shown(shard)!r}, which is not the name of a "
                "shard: they are called model-00001-of-00003.safetensors and so on"
            )
    return places


def place(index: object, tensor: str) -> str:
    """Where the index says which shard has the tensor, for a message."""
    return f"{shown(index)}: weight_map[{shortened(printable(tensor))!r}]"
