"""Where runs came from: the lineage of a store, and the history of one run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from standfast.policies import KeepBest
from standfast.store.index.index import Index, ListedRun
from standfast.store.query.listing import Entry, checkpoints, metrics_of
from standfast.store.schema.record import Head, Place
from standfast.store.schema.run_file import RunFile

_DEEPEST: Final = 16
"""Branches of branches beyond these are no longer set off from each other."""


@dataclass(frozen=True)
class Node:
    """A run in the lineage of a store."""

    run: str
    name: str | None
    file: RunFile | None
    """None if it cannot be read."""
    time: str | None
    """When its latest checkpoint was committed, or the run made."""
    steps: tuple[int, ...]
    """Those of its checkpoints, in order."""
    best: Head | None
    metrics: Mapping[str, Any]
    """Those of its best."""
    parent: Place | None
    """The checkpoint that it came from, whether it is there or not."""


@dataclass(frozen=True)
class Branch:
    """A run with its place in the tree."""

    node: Node
    parent: Node | None
    """The run that it hangs under; None for a root."""
    lasts: tuple[bool, ...]
    """Of the nearest runs above it, and of itself: whether it is the last branch there."""


@dataclass(frozen=True)
class Lineage:
    """The runs of a store, by where they came from."""

    nodes: Mapping[str, Node]
    """All of them, the one with the latest checkpoint first."""

    def roots(self) -> list[Node]:
        """Those that came from no run of the store, the one with the newest activity first.

        Its branches count as its own. Of runs that came from each other, as no program writes
        them, one is a root.
        """
        heads: dict[str, Node] = {}
        known: dict[str, str] = {}
        for node in self.nodes.values():
            root = self._root_of(node, known)
            heads.setdefault(root.run, root)
        return list(heads.values())

    def _root_of(self, node: Node, known: dict[str, str]) -> Node:
        """The root above a node; `known` remembers it for all runs on the way."""
        way: dict[str, None] = {}
        while node.run not in known and node.run not in way:
            way[node.run] = None
            above = self._above(node)
            if above is None:
                break
            node = above
        root = known.get(node.run, node.run)
        known.update(dict.fromkeys(way, root))
        return self.nodes[root]

    def _above(self, node: Node) -> Node | None:
        return self.nodes.get(node.parent.run) if node.parent else None

    def branches(self) -> Iterator[Branch]:
        """All runs, each after the one that it hangs under, its newest branch first."""
        roots = self.roots()
        tops = {root.run for root in roots}
        children: dict[str, list[Node]] = {}
        for node in self.nodes.values():
            above = self._above(node)
            if above is not None and node.run not in tops:
                children.setdefault(above.run, []).append(node)
        waiting = [Branch(root, None, ()) for root in reversed(roots)]
        while waiting:  # no recursion: a run may have come from one of thousands
            branch = waiting.pop()
            yield branch
            below = children.get(branch.node.run, [])
            waiting += [
                Branch(child, branch.node, (*branch.lasts, child is below[-1])[-_DEEPEST:])
                for child in reversed(below)
            ]


def lineage(index: Index) -> Lineage:
    """The lineage of a store, as it was at the last refresh of its index."""
    files = index.run_files()
    return Lineage({each.run: _node(index, each, files.get(each.run)) for each in index.runs()})


def _node(index: Index, listed: ListedRun, file: RunFile | None) -> Node:
    best = index.best(listed.run)
    late = index.late_metrics(listed.run) if best else {}
    return Node(
        run=listed.run,
        name=listed.name,
        file=file,
        time=listed.used or listed.created,
        steps=tuple(index.steps(listed.run)),
        best=best.head if best else None,
        metrics=metrics_of(best.head, late.get(best.step)) if best else {},
        parent=file.parent if file else None,
    )


def monitored(file: RunFile | None) -> list[str]:
    """The metrics by which the best of a run is chosen, the one that decides first."""
    if file is None:
        return []
    decides = [file.monitor.metric] if file.monitor else []
    kept = file.retention.keep if file.retention else ()
    by_policy = [policy.metric for policy in kept if isinstance(policy, KeepBest) and policy.metric]
    return list(dict.fromkeys((*decides, *by_policy)))


@dataclass(frozen=True)
class Stretch:
    """What a history has of one run: its checkpoints up to where the next run came from them."""

    run: str
    file: RunFile | None
    """None if the run is gone, or its file cannot be read."""
    entries: Sequence[Entry]
    """The newest first."""
    parent: Place | None
    """The checkpoint of another run that it came from."""


def history(index: Index, run: str) -> Iterator[Stretch]:
    """A run, the run that it came from, and so on back to the beginning."""
    known: set[str] = set()
    before: Place | None = None
    while run not in known:  # runs that came from each other are told once
        known.add(run)
        entries = checkpoints(index, run)
        if before is not None:
            at = before.sequence
            entries = [each for each in entries if each.head and each.head.sequence <= at]
        file = index.run_file(run)
        before = file.parent if file else None
        yield Stretch(run, file, entries, before)
        if before is None:
            return
        run = before.run
