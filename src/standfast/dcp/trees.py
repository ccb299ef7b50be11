"""The tree that DCP flattened: from the paths of its leaves, checked before anything is built."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from standfast.errors import BadField, LimitExceeded, shortened

Path = tuple[str | int, ...]
"""Keys of dicts, and places in lists."""
SPARE_PLACES: Final = 1024
"""So many empty places all lists may have together, beside as many as there are members."""


class _Leaf:
    """Stands for the kind of keys of what has none."""


def check_paths(paths: Mapping[str, Path]) -> None:
    """Raise if the paths are not those of one tree, or its lists have far more places than members.

    The places of a list are counted, not believed: a path can say 2^50.
    """
    kinds: dict[Path, type] = dict.fromkeys(paths.values(), _Leaf)
    lengths: dict[Path, int] = {}
    for path in paths.values():
        for depth, part in enumerate(path):
            above = path[:depth]
            if kinds.setdefault(above, type(part)) is not type(part):
                raise BadField(
                    f"planner_data: the path {shortened(str(path))} leads through a leaf, or into "
                    "a list that is also a dict"
                )
            if type(part) is int:
                lengths[above] = max(lengths.get(above, 0), part + 1)
    if sum(lengths.values()) > SPARE_PLACES + 2 * len(kinds):
        raise LimitExceeded("planner_data: the lists have more holes than members")


def nested(leaves: Mapping[str, Any], paths: Mapping[str, Path]) -> dict[str, Any]:
    """The tree of these leaves by their paths, which were checked.

    DCP leaves out empty dicts, and nothing else: one stands in every hole of a list.
    """
    root: dict[str | int, Any] = {}
    lists: dict[Path, dict[str | int, Any]] = {}
    for name, path in paths.items():
        node = root
        for depth, part in enumerate(path[:-1], 1):
            node = node.setdefault(part, {})
            if type(path[depth]) is int:
                lists[path[:depth]] = node
        node[path[-1]] = leaves[name]
    # The deepest first: what stands above still finds them by their keys.
    for path in sorted(lists, key=len, reverse=True):
        above: Any = root
        for part in path[:-1]:
            above = above[part]
        places = lists[path]
        above[path[-1]] = [places.get(i, {}) for i in range(max(map(int, places)) + 1)]
    return {str(key): value for key, value in root.items()}
