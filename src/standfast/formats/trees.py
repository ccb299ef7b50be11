"""Trees of dicts, lists and tuples, seen flat: every leaf by its dotted path."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

from standfast.errors import DuplicateKey, LimitExceeded, shortened
from standfast.files.layout import Row

MAX_DEPTH: Final = 100
NODES: Final = 200_000
NODES_PER_BYTE: Final = 4
LETTERS: Final = 64 << 20
LETTERS_PER_BYTE: Final = 64
"""A long list of small numbers has the longest paths for the fewest bytes."""
ROOT: Final = "tensor"
"""The name of a tensor that is the whole tree."""


def leaves(tree: Any, size: int) -> dict[str, Any]:
    """All leaves by their paths, `model.0.weight`; two of one path are refused.

    Sets, which have no order, and containers without a member are leaves themselves. `size` is
    that of what the tree was read from: values that stand there once can hang on the tree in a
    million places, which is refused.
    """
    found: dict[str, Any] = {}
    nodes, letters = NODES + NODES_PER_BYTE * size, LETTERS + LETTERS_PER_BYTE * size
    for path, node in walk(tree, ROOT, 0):
        nodes -= 1
        if nodes < 0:
            raise LimitExceeded("the same values hang on the tree again and again")
        if isinstance(node, dict | list | tuple) and (node or node is tree):
            continue
        if path in found:
            raise DuplicateKey(
                f"two leaves of the tree have the path {shortened(path)!r}: a key with a dot in "
                "it is the same as two keys"
            )
        letters -= len(path)
        if letters < 0:
            raise LimitExceeded(f"{shortened(path)!r}: the paths of all leaves are too long")
        found[path] = node
    return found


def walk(tree: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    """All nodes by their paths, each before those below it; begin with ROOT and 0."""
    if depth > MAX_DEPTH:
        raise LimitExceeded(f"{shortened(path)!r}: a tree of more than {MAX_DEPTH} levels")
    yield path, tree
    if isinstance(tree, dict):
        members: Any = tree.items()
    elif isinstance(tree, list | tuple) and not isinstance(tree, Row):
        members = enumerate(tree)
    else:
        return
    for key, member in members:
        yield from walk(member, f"{path}.{key}" if depth else str(key), depth + 1)


def with_leaves(tree: Any, replace: Callable[[Any], Any]) -> Any:
    """The tree, new, with each of its leaves replaced, in the order of `leaves`."""
    if isinstance(tree, OrderedDict):
        copy = OrderedDict((key, with_leaves(member, replace)) for key, member in tree.items())
        copy.__dict__.update(tree.__dict__)  # the versions of a state dict's modules
        return copy
    if isinstance(tree, dict):
        return {key: with_leaves(member, replace) for key, member in tree.items()}
    if isinstance(tree, list):
        return [with_leaves(member, replace) for member in tree]
    if isinstance(tree, tuple) and not isinstance(tree, Row):
        return tuple(with_leaves(member, replace) for member in tree)
    return replace(tree)
