"""Pytrees of any kind as trees that a store keeps, and back into the pytrees of a program.

A dict, list or tuple stays what it is. Any other node, such as the named tuple of an optimizer or
a registered dataclass, becomes a dict by the names of its members, or a list if they have none.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import (
    DictKey,
    FlattenedIndexKey,
    GetAttrKey,
    SequenceKey,
    tree_flatten_with_path,
    tree_structure,
    tree_unflatten,
)

from standfast.errors import RefusedState, StateMismatch
from standfast.jax.arrays import is_key, on_host, words_of
from standfast.jax.boxes import cut
from standfast.store.load.filling import LoadReport, spec_of
from standfast.store.schema.names import dotted
from standfast.store.tree.nodes import MAX_DEPTH

Path = tuple[Any, ...]
Problem = Callable[[Any, Any], str | None]
"""Why a saved leaf cannot take the place of one of the program's, if it cannot."""


class Pytree:
    """A pytree of any kind as a part of a training state.

    >>> state = standfast.TrainingState(params=Pytree(params), opt=Pytree(opt_state))
    >>> state.params.value = optax.apply_updates(state.params.value, updates)
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        """The pytree, as the program has it; what is saved is what this is set to."""

    def state_dict(self) -> Any:
        """The pytree as a tree of dicts, lists and tuples; its leaves are not copied."""
        return plain_tree(self.value)

    def load_state_dict(self, saved: Any) -> None:
        """Put saved leaves in the place of the old ones, on the same devices.

        Raises StateMismatch, with the paths, if the structure, a shape or a dtype is another.
        """
        found = matched(self.value, saved, _problem)
        leaves = [_placed(mine, leaf) for _, mine, leaf in found]
        self.value = tree_unflatten(tree_structure(self.value), leaves)

    def __repr__(self) -> str:
        return f"Pytree({tree_structure(self.value)})"


def plain_tree(tree: Any, path: Path = ()) -> Any:
    """A pytree as dicts, lists and tuples; raises RefusedState for one that holds itself."""
    if len(path) > MAX_DEPTH:
        raise RefusedState(f"{dotted(path)}: a tree of more than {MAX_DEPTH} levels, or a cycle")
    members = _members(tree)
    if members is None:
        return tree
    made = [(key, plain_tree(member, (*path, key))) for key, member in members]
    if tree is None or type(tree) in (list, tuple):
        return None if tree is None else type(tree)(member for _, member in made)
    if len({key for key, _ in made}) < len(made):
        raise RefusedState(f"{dotted(path)}: a {type(tree).__name__} has two members of one name")
    if made and all(type(key) is int for key, _ in made) and not isinstance(tree, dict):
        return [member for _, member in made]
    return OrderedDict(made) if type(tree) is OrderedDict else dict(made)


def _members(node: Any) -> list[tuple[Any, Any]] | None:
    """The members of a node by their keys, in jax's order; None for a leaf."""
    root = iter([False])  # is asked about first, and is to be opened; nothing below it is
    found, _ = tree_flatten_with_path(node, is_leaf=lambda _: next(root, True))
    if len(found) == 1 and not found[0][0]:
        return None
    return [(_key(path[0]), member) for path, member in found]


def _key(key: Any) -> Any:
    match key:
        case DictKey(key=name) | FlattenedIndexKey(key=name):
            return name
        case SequenceKey(idx=name) | GetAttrKey(name=name):
            return name
        case _:
            return str(key)


class Match(NamedTuple):
    """A leaf of a program's pytree, and the saved one that takes its place."""

    path: Path
    mine: Any
    saved: Any


def matched(tree: Any, saved: Any, problem: Problem) -> list[Match]:
    """The leaves of a pytree, in jax's order, with those of a saved tree; raises StateMismatch."""
    report = LoadReport()
    found = list(_matches(tree, saved, (), report))
    for path, mine, leaf in found:
        if reason := problem(mine, leaf):
            report.mismatched.append(f"{dotted(path)}: {reason}")
    if not report.exact:
        raise StateMismatch(
            "\n".join(["what was saved and the pytree differ:", *report.differences()])
        )
    return found


def _matches(tree: Any, saved: Any, path: Path, report: LoadReport) -> Iterator[Match]:
    members, saved_members = _members(tree), _saved_members(saved)
    if members is None:
        if saved_members is None:
            yield Match(path, tree, saved)
            return
        report.missing.append(dotted(path))
        report.unexpected.extend(_leaf_paths(saved, path))
        return
    if saved_members is None:
        report.unexpected.append(dotted(path))
        saved_members = {}
    for key, member in members:
        if key in saved_members:
            yield from _matches(member, saved_members[key], (*path, key), report)
        else:
            report.missing.extend(_leaf_paths(plain_tree(member), (*path, key)))
    for key in saved_members.keys() - {key for key, _ in members}:
        report.unexpected.extend(_leaf_paths(saved_members[key], (*path, key)))


def _saved_members(saved: Any) -> dict[Any, Any] | None:
    """The members of a saved tree by their keys; None for a leaf."""
    if isinstance(saved, dict):
        return saved
    if isinstance(saved, list | tuple):
        return dict(enumerate(saved))
    return {} if saved is None else None


def _leaf_paths(saved: Any, path: Path) -> Iterator[str]:
    members = _saved_members(saved)
    if members is None:
        yield dotted(path)
    else:
        for key, member in members.items():
            yield from _leaf_paths(member, (*path, key))


def _problem(mine: Any, saved: Any) -> str | None:
    my_spec, spec = spec_of(mine), spec_of(saved)
    if my_spec is None or spec is None:
        if my_spec is None and spec is None:
            return None
        was, now = ("a plain value", "an array") if spec is None else ("an array", "a plain value")
        return f"{was} was saved, {now} is there now"
    if my_spec != spec or _is_keys(mine) != _is_keys(saved):
        return f"{_text(saved)} was saved, {_text(mine)} is there now"
    if _is_keys(mine) and mine.dtype != saved.dtype:
        return f"{_text(saved)} was saved, {_text(mine)} is there now"
    return None


def _is_keys(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and is_key(leaf)


def _text(leaf: Any) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}"


def _placed(mine: Any, saved: Any) -> Any:
    """A saved leaf as what the program has in its place: of NumPy or of jax, and where it lies."""
    if isinstance(mine, np.ndarray) and isinstance(saved, jax.Array):
        return np.array(saved)
    if not isinstance(mine, jax.Array):
        return saved
    if not isinstance(saved, jax.Array):
        return cut(mine, saved)
    if not mine.committed:
        return saved
    if mine.sharding.is_fully_addressable:
        return jax.device_put(saved, mine.sharding)
    return cut(mine, on_host(words_of(saved)))
