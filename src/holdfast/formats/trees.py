"""Trees of dicts, lists and tuples, seen flat: every leaf by its dotted path."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

from holdfast.errors import DuplicateKey, LimitExceeded, shortened
from holdfast.files.layout import Row

MAX_DEPTH: Final = 100
ROOT: Final = "tensor"
"""The name of a tensor that is the whole tree."""


def leaves(tree: Any) -> dict[str, Any]:
    """All leaves by their paths, `model.0.weight`; two of one path are refused.

    Containers without a leaf, and sets, which have no order, leave no trace here.
    """
    found: dict[str, Any] = {}
    for path, leaf in _walk(tree, ROOT, 0):
        if path in found:
            raise DuplicateKey(
                f"two leaves of the tree have the path {shortened(path)!r}: a key with a dot in "
                "it is the same as two keys; tree() keeps them apart"
            )
        found[path] = leaf
    return found


def _walk(tree: Any, path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > MAX_DEPTH:
        raise LimitExceeded(f"{shortened(path)!r}: a tree of more than {MAX_DEPTH} levels")
    if isinstance(tree, dict):
        members: Any = tree.items()
    elif isinstance(tree, list | tuple) and not isinstance(tree, Row):
        members = enumerate(tree)
    elif isinstance(tree, set | frozenset):
        return
    else:
        yield path, tree
        return
    for key, member in members:
        yield from _walk(member, f"{path}.{key}" if depth else str(key), depth + 1)


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
