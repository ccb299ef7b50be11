"""`standfast diff` of two trees of blocks: which blocks differ, where, and by how much."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np

from standfast.amr.inspect.description import group_name, problems
from standfast.amr.inspect.differences import (
    Block,
    BlockChange,
    Layout,
    Site,
    TreeDiff,
    differences,
)
from standfast.amr.inspect.snapshots import SECTIONS
from standfast.amr.inspect.trees import SavedState
from standfast.cli.commands.diff.files import code_of, diff_json, print_metadata, print_tensors
from standfast.display.output import (
    ROWS,
    count_text,
    on_terminal,
    print_json,
    print_table,
    say,
    say_more,
)
from standfast.display.trees import opened_tree, place_text
from standfast.errors import printable
from standfast.store import Checkpoint
from standfast.store.query.view import CheckpointView
from standfast.tensorfile import diff as verb
from standfast.tensorfile.diff import Comparable, Diff, compare
from standfast.tensorfile.open import TensorFile
from standfast.tensors import TensorSpec

_HEADER: Final = re.compile(r"rank\d+\.header\.")
"""Beside a tree that only one of two has, its header says nothing."""
_LINES: Final = {
    "order": ("list of blocks is in another order", "lists of blocks are in another order"),
    "slots": ("block is in another slot", "blocks are in other slots"),
    "dead": ("dead block differs", "dead blocks differ"),
    "free": ("free list differs", "free lists differ"),
    "stale": ("stale word of a free list differs", "stale words of free lists differ"),
    "unused": (
        "slot of no live block has other bytes",
        "slots of no live block have other bytes",
    ),
    "dead_links": ("dead block has other links", "dead blocks have other links"),
    "arenas": ("arena has more or fewer slots", "arenas have more or fewer slots"),
    "records": (
        "record has other bytes in its padding",
        "records have other bytes in their padding",
    ),
}
"""What is said of each part of the layout, of one and of several."""


@dataclass(frozen=True)
class TreesCompared:
    """What was found, or what kept it from being found."""

    diff: TreeDiff | None
    problems: tuple[str, ...] = ()
    """What is wrong with the trees, if they are not sound."""
    several: bool = False
    """Whether any of both is of several ranks."""

    def __bool__(self) -> bool:
        return bool(self.problems or self.diff)

    def as_json(self) -> dict[str, Any]:
        """All of it, for scripts."""
        if self.diff is None:
            return {"problems": list(self.problems)}
        found = asdict(self.diff)
        found["header"] = {
            name: {"before": a, "after": b} for name, (a, b) in self.diff.header.items()
        }
        return {"problems": [], "same_blocks": self.diff.same_blocks, **found}

    def print(self, every: bool, header: bool = True) -> None:
        """Print it; `every` block that differs, or the worst of them."""
        if self.diff is None:
            say(("blocks cannot be compared:", "bold red"))
            for problem in self.problems:
                say((printable(f"  {problem}"), "red"))
            return
        _print(self.diff, self.several, every or not on_terminal(), header)


def compare_trees(old: TensorFile | Checkpoint, new: TensorFile | Checkpoint) -> TreesCompared:
    """Compare the trees of two files or checkpoints."""
    with opened_tree(old) as before, opened_tree(new) as after:
        wrong = tuple(_problems(before, "before") + _problems(after, "after"))
        if wrong:
            return TreesCompared(None, wrong)
        several = len(before.trees) > 1 or len(after.trees) > 1
        return TreesCompared(differences(before, after), several=several)


def _problems(state: SavedState, side: str) -> list[str]:
    return [
        f"{side}, {tree.label}: {problem}" for tree in state.trees for problem in problems(tree)
    ]


def diff_trees(
    before: str,
    after: str,
    old: TensorFile | Checkpoint,
    new: TensorFile | Checkpoint,
    *,
    as_json: bool,
    every: bool,
) -> int:
    """Print what differs between two trees, one of them at least in a file; the exit code."""
    trees = compare_trees(old, new)
    found = None
    if isinstance(old, TensorFile) and isinstance(new, TensorFile):
        # Of unsound trees all that can be told is which sections differ.
        is_part = _is_nothing if trees.problems else _is_section
        found = compare(_Beside(old, is_part), _Beside(new, is_part))
    if as_json:
        rest = {} if found is None else diff_json(found)
        print_json({"before": before, "after": after, **rest, "tree": trees.as_json()})
    else:
        if found is not None:
            print_metadata(found, every or not on_terminal())
        if found is not None and (found.added or found.removed or found.changed):
            print_tensors(found, every or not on_terminal())
        trees.print(every, header=found is None)
    return 1 if trees.problems else code_of(found or trees, old, new)


def compare_beside(old: Checkpoint, new: Checkpoint) -> Diff:
    """What differs between two snapshots beside their trees."""
    a, b = CheckpointView(old), CheckpointView(new)
    both = a.values.keys() & b.values.keys()
    values = [
        {
            "epoch": each.epoch,
            "metrics": each.metrics,
            "state": {
                name: value
                for name, value in view.values.items()
                if name in both or not _HEADER.match(name)
            },
        }
        for each, view in ((old, a), (new, b))
    ]
    found = compare(_Beside(a, _is_slab), _Beside(b, _is_slab))
    return replace(found, metadata=verb.differences(*values))


class _Beside:
    """The tensors of a file or checkpoint that are not parts of a tree."""

    def __init__(self, whole: Comparable, is_part: Callable[[str], bool]) -> None:
        self._whole = whole
        self._names = dict.fromkeys(name for name in whole if not is_part(name))

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self._whole.metadata

    def spec(self, name: str) -> TensorSpec:
        return self._whole.spec(name)

    def stored_digests(self) -> Mapping[str, bytes]:
        return self._whole.stored_digests()

    def chunks(self, name: str) -> Callable[[int], np.ndarray[Any, Any]] | None:
        return self._whole.chunks(name)

    def reading(self, names: Iterable[str], /) -> AbstractContextManager[None]:
        return self._whole.reading(names)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __contains__(self, name: object, /) -> bool:
        return name in self._names

    def __getitem__(self, name: str, /) -> np.ndarray[Any, Any]:
        return self._whole[name]


def _is_nothing(name: str) -> bool:
    return False


def _is_section(name: str) -> bool:
    return name in SECTIONS


def _is_slab(name: str) -> bool:
    """Whether a tensor's path is that of a rank's tree: rank3.storage.17."""
    rank, _, rest = name.partition(".")
    return rank.startswith("rank") and rest.partition(".")[0] in SECTIONS


def _print(found: TreeDiff, several: bool, every: bool, header: bool) -> None:
    for name, (old, new) in found.header.items() if header else ():
        if name == "link_group":
            old, new = (group_name(group) if group else "none" for group in (old, new))
            name = "links"
        say(f"{name}: {old} → {new}")
    if not found.comparable:
        say(("blocks cannot be compared: they are of another kind", "yellow"))
        return
    rows = [_change_row(change, several) for change in found.changed]
    rows += [_lone_row(block, "only before", several) for block in found.removed]
    rows += [_lone_row(block, "only after", several) for block in found.added]
    if rows:
        shown = rows if every else rows[:ROWS]
        columns = ("block", "level", "origin", "what", "first", "worst", "by", "how many")
        print_table(columns, shown, right=("level", "by", "how many"))
        say_more(len(rows) - len(shown))
    _print_summary(found)


def _change_row(change: BlockChange, several: bool) -> tuple[str, ...]:
    blocks = [_index_text(block, several) for block in (change.before, change.after)]
    index = blocks[0] if blocks[0] == blocks[1] else " → ".join(blocks)
    how_many = "" if change.by is None else f"{change.count:,}/{change.of:,}"
    return (
        index,
        f"{change.before.level}",
        place_text(change.before.origin),
        change.what,
        _site_text(change.first),
        _site_text(change.worst),
        "" if change.by is None else f"{change.by:.3g}",
        how_many,
    )


def _lone_row(block: Block, what: str, several: bool) -> tuple[str, ...]:
    index = _index_text(block, several)
    return index, f"{block.level}", place_text(block.origin), what, "", "", "", ""


def _index_text(block: Block, several: bool) -> str:
    """The index in the list; of several ranks, behind the rank."""
    return f"{block.rank}:{block.index}" if several else f"{block.index}"


def _site_text(site: Site | None) -> str:
    if site is None:
        return ""
    direction = "" if site.direction is None else f" μ={site.direction}"
    return f"{place_text(site.coordinates)}{direction}"


def _print_summary(found: TreeDiff) -> None:
    lines = [] if found.layout is None else list(_layout_lines(found.layout))
    verb = "is" if found.same == 1 else "are"
    count = f"{count_text(found.same, 'block')} {verb} the same, bit for bit"
    if found.by_digests:
        count = (
            f"no difference found in {count_text(found.same, 'block')}; {found.by_digests:,} "
            "fields and links have the same digests in both (verify reads them)"
        )
    if found.same_blocks and lines:
        say((f"{count}; what differs is where they lie", "green"))
    else:
        say((count, "green" if found.same_blocks else "dim"))
    for line in lines:
        say(f"  {line}")
    if found.layout is None:
        say(("  lists and slots are not compared, since the ranks are not as many", "dim"))


def _layout_lines(layout: Layout) -> Iterator[str]:
    for name, (one, several) in _LINES.items():
        count = getattr(layout, name)
        if count:
            yield f"{count:,} {one if count == 1 else several}"
