"""What the command line takes for a tree of blocks: a `.sunc` file, or a snapshot in a store.

What only trees need is imported when one was found.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from standfast.formats.sunc import file as sunc
from standfast.tensorfile.open import TensorFile

if TYPE_CHECKING:
    from standfast.amr.inspect.trees import SavedState
    from standfast.store import Checkpoint


def is_tree(what: TensorFile | Checkpoint) -> bool:
    """Whether an open file or a checkpoint has a tree."""
    if isinstance(what, TensorFile):
        return what.format == sunc.NAME
    if b"standfast snapshot " not in what.record.tree:
        return False
    from standfast.amr.inspect.snapshots import is_snapshot

    return is_snapshot(what)


def opened_tree(what: TensorFile | Checkpoint) -> AbstractContextManager[SavedState]:
    """The state that an open file or a checkpoint has."""
    from standfast.amr.inspect.trees import opened

    return opened(what.path if isinstance(what, TensorFile) else what)


def live_blocks(what: TensorFile | Checkpoint) -> int | None:
    """How many blocks of a tree live; None if there is no tree, a DamagedFile if it is unsound."""
    if not is_tree(what):
        return None
    from standfast.amr.inspect.description import check

    with opened_tree(what) as state:
        for tree in state.trees:
            check(tree)
        return sum(int(tree.is_live.sum()) for tree in state.trees)


def place_text(numbers: Sequence[int]) -> str:
    """An origin, or a site, for people: 16,0."""
    return ",".join(map(str, numbers))
