"""A tree out of a torch pickle, once it is whole: it can be walked through, and is all data."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Final

from standfast.errors import BadPickle, LimitExceeded, RefusedPickle, printable, shortened
from standfast.formats.torch.globals import Globals
from standfast.formats.torch.values import HINT, StoredTensor, Stub

MAX_DEPTH: Final = 500
"""Python's own functions over a tree (repr, ==, deepcopy) call themselves at every level."""
_LEAVES: Final = {
    *(str, bytes, bytearray, int, float, complex, bool, type(None), set, frozenset),
    StoredTensor,
}
_CONTAINERS: Final = (list, tuple, dict, OrderedDict)


def check_tree(tree: Any, globals: Globals, most: int) -> None:
    """Refuses a tree that a walk would never come out of, or only after years.

    Each container is looked into once, whatever the number of places that refer to it.
    """
    top = [tree]
    walks: dict[int, tuple[int, int]] = {}  # containers seen: values that a walk meets, levels
    entered = set()  # those that the search is inside of
    todo: list[tuple[Any, list[Any] | None]] = [(top, None)]
    while todo:
        node, inner = todo.pop()
        if inner is not None:
            walks[id(node)] = _walk(node, [walks[id(value)] for value in inner], most)
            entered.discard(id(node))
        elif id(node) in entered:
            raise BadPickle(f"a {type(node).__name__} that holds itself")
        elif id(node) not in walks:
            inner = [v for v in _values(node) if type(v) not in _LEAVES and _is_inner(v, globals)]
            entered.add(id(node))
            if len(entered) > MAX_DEPTH + 1:
                raise _too_deep()
            todo.append((node, inner))
            todo += [(value, None) for value in inner]


def _walk(node: Any, inner: list[tuple[int, int]], most: int) -> tuple[int, int]:
    met = 1 + len(node) + sum(values for values, _ in inner)
    levels = 1 + max((below for _, below in inner), default=0)
    if met > most:
        raise LimitExceeded(f"a walk through the tree meets over {most:,} values")
    if levels > MAX_DEPTH + 1:
        raise _too_deep()
    return met, levels


def _too_deep() -> LimitExceeded:
    return LimitExceeded(f"the tree nests deeper than {MAX_DEPTH} levels")


def _values(node: Any) -> Iterable[Any]:
    if type(node) is OrderedDict and vars(node):
        return [*node.values(), *vars(node).values()]
    return node.values() if isinstance(node, dict) else node


def _is_inner(value: Any, globals: Globals) -> bool:
    """Whether a value of the tree has values of its own; one that is no data is refused."""
    if type(value) in _CONTAINERS:
        return True
    if id(value) in globals.unfinished:
        raise RefusedPickle("an array whose content is no plain numbers stands in two places")
    if isinstance(value, Stub) and not globals.tensors_only:
        name = shortened(printable(value.what))
        raise RefusedPickle(f"{name} stands in the tree itself, and is no data{HINT}")
    return False
