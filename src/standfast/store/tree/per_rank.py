"""What each rank has for itself, in a state that all of them save as one."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

from standfast.store.tree.nodes import Ranks


class Rank(NamedTuple):
    """One of so many ranks."""

    rank: int = 0
    size: int = 1


ALONE = Rank()


class PerRank:
    """A tree that may be another on each rank; `per_rank` makes it."""

    __slots__ = ("tree",)

    def __init__(self, tree: Any) -> None:
        self.tree = tree

    def __repr__(self) -> str:
        return f"per_rank({self.tree!r})"


def per_rank(tree: Any) -> PerRank:
    """Mark a part of a state that is this rank's own: tensors and plain values of any kind.

    All else in a state is one thing for all ranks: tensors that know how they are shared out, and
    others, which must be the same everywhere. It is loaded by as many ranks as saved it, each
    gets its own again; any other number of ranks finds all of them, in a list.

    >>> run.save(step, {"model": model.state_dict(), "seen": standfast.per_rank(seen)})
    """
    return PerRank(tree)


def own_of(tree: Any, ranks: Rank) -> Any:
    """A decoded tree as one rank has it: its own where there is one for each of so many ranks.

    Where another number of ranks saved it, all that they had stays, in a list.
    """
    if type(tree) is Ranks and len(tree) == ranks.size:
        return own_of(tree[ranks.rank], ranks)
    if isinstance(tree, dict):
        for key, member in tree.items():
            tree[key] = own_of(member, ranks)
        if type(tree) is OrderedDict:
            for name, value in vars(tree).items():
                setattr(tree, name, own_of(value, ranks))
    elif isinstance(tree, list):
        tree[:] = [own_of(member, ranks) for member in tree]
    elif isinstance(tree, tuple):
        return tuple([own_of(member, ranks) for member in tree])
    return tree
