"""`standfast log`: which runs of a store came from which, as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from standfast.display.changes import UNCOUNTED, changes_json, changes_text, value_text
from standfast.display.output import (
    age_text,
    count_text,
    cut,
    hash_groups,
    metric_text,
    on_terminal,
    print_json,
    say,
    time_text,
    width,
)
from standfast.errors import printable
from standfast.store import Run, Store
from standfast.store.query.changes import (
    RunChanges,
    changes,
    named_hyperparameters,
    trial_of,
    uncounted,
    varying,
)
from standfast.store.query.lineage import Branch, Lineage, Node, lineage, monitored
from standfast.store.schema.run_file import RunFile

_LARGEST: Final = 4 << 20
"""Descriptions of models and data beyond this many bytes are not read for a line of text."""
_VARYING: Final = 4
"""Of the hyperparameters in which roots differ, so many are shown."""
_WIDEST: Final = 40
"""The characters of a line's beginning, up to which all are brought to one length."""


def print_lineage(store: Store, *, number: int | None, as_json: bool) -> None:
    """Print all runs, each under the one that it came from."""
    store.index.refresh()
    if as_json:
        print_json(lineage_json(store))
        return
    found = lineage(store.index)
    if not found.nodes:
        say("no runs yet")
        return
    branches = list(found.branches())
    shown = branches[:number]
    apart = _told_apart(found)
    length = max(len(_left(branch)) for branch in shown)
    for at, branch in enumerate(shown):
        has_more = at + 1 < len(branches) and branches[at + 1].parent is branch.node
        _print_branch(store, branch, min(length, _WIDEST), has_more, apart)
    if len(shown) < len(branches):
        say((f"… and {len(branches) - len(shown):,} more; --all lists them", "dim"))


def lineage_json(store: Store) -> list[dict[str, Any]]:
    """All runs, each after the one that it came from, for scripts."""
    return [_branch_json(store, branch) for branch in lineage(store.index).branches()]


def _print_branch(
    store: Store, branch: Branch, length: int, has_more: bool, apart: Mapping[str, str]
) -> None:
    node, above = branch.node, branch.parent
    left = _left(branch)
    indent, name = left[: _depth(branch)], left[_depth(branch) :]
    say(
        (indent, "dim"),
        (name, "bold"),
        " " * (length - len(left) + 2),
        *_hash_pieces(node.run, above.run if above else None),
        f"  {_extent(node)}",
        (f"  {_when(node.time)}", "dim"),
    )
    changed = "; ".join(filter(None, (*_origin(store, branch), apart.get(node.run))))
    best = _best(node)
    if changed or best:
        under = "".join("   " if last else "│  " for last in branch.lasts)
        under += "│  " if has_more else "   "
        room = width() - len(under) if on_terminal() else None
        say((under, "dim"), _details(printable(changed), printable(best), room))


def _details(changed: str, best: str, room: int | None) -> str:
    """What a run changed, and its best, for which there is room first."""
    if room is None or not changed or not best:
        text = "; ".join(filter(None, (changed, best)))
        return text if room is None else cut(text, room)
    return cut(f"{cut(changed, max(1, room - len(best) - 2))}; {best}", room)


def _depth(branch: Branch) -> int:
    return 3 * len(branch.lasts)


def _left(branch: Branch) -> str:
    """The lines of the tree, and the name."""
    name = printable(branch.node.name or "—")
    if not branch.lasts:
        return name
    lines = "".join("   " if last else "│  " for last in branch.lasts[:-1])
    return f"{lines}{'└─ ' if branch.lasts[-1] else '├─ '}{name}"


def _hash_pieces(run: str, above: str | None) -> Iterator[tuple[str, str]]:
    """A hash; the groups that are those of the run above are dimmed."""
    others = hash_groups(above) if above else ("", "", "")
    for at, (group, other) in enumerate(zip(hash_groups(run), others, strict=True)):
        if at:
            yield "_", "dim"
        yield group, "dim" if group == other else ("yellow" if above else "")


def _extent(node: Node) -> str:
    """How many checkpoints there are, and from which step to which."""
    if not node.steps:
        return "no checkpoint"
    first, last = node.steps[0], node.steps[-1]
    steps = f"{first}" if first == last else f"{first}–{last}"
    return f"{count_text(len(node.steps), 'checkpoint')}, {steps}"


def _when(time: str | None) -> str:
    if time is None:
        return ""
    return age_text(time) if on_terminal() else printable(time_text(time))


def _origin(store: Store, branch: Branch) -> Iterator[str]:
    """Where a run came from, and what it changed."""
    node, above = branch.node, branch.parent
    if node.parent is None:
        return
    if above is None or above.run != node.parent.run:
        yield f"from {node.parent.run:.24}@{node.parent.step}, which is gone"
        return
    gone = "" if node.parent.step in above.steps else ", which is deleted"
    found = known_changes(store, above.file, node.file)
    text = f": {changes_text(found)}" if found else ""
    yield f"from {node.parent.step}{gone}{text}"


def known_changes(store: Store, before: RunFile | None, after: RunFile | None) -> RunChanges | None:
    """What differs between two runs; None if the file of one cannot be read."""
    if before is None or after is None:
        return None
    return changes(Run(store, before), Run(store, after), largest=_LARGEST)


def _best(node: Node) -> str:
    if node.best is None:
        return ""
    name = _monitored(node)
    metric = f": {name} {metric_text(node.metrics[name])}" if name is not None else ""
    return f"best {node.best.step}{metric}"


def _monitored(node: Node) -> str | None:
    """The metric by which the best of a run is chosen, or else its first."""
    return next(
        (name for name in (*monitored(node.file), *node.metrics) if name in node.metrics), None
    )


def _told_apart(found: Lineage) -> dict[str, str]:
    """Of roots that have one name, what tells them apart: hyperparameters, and the trial."""
    named: dict[str, list[Node]] = {}
    for root in found.roots():
        if root.name is not None and root.file is not None:
            named.setdefault(root.name, []).append(root)
    texts: dict[str, str] = {}
    for roots in named.values():
        if len(roots) > 1:
            texts |= _differing(roots)
    return texts


def _differing(roots: Sequence[Node]) -> dict[str, str]:
    """What differs, those that do not count last."""
    files = [root.file for root in roots if root.file]
    settings = [named_hyperparameters(file.hyperparameters) for file in files]
    keys, last = varying(settings), uncounted(files)
    trials = [trial_of(file) for file in files]
    texts: dict[str, str] = {}
    parts = [
        *((key, settings, "") for key in keys if key not in last),
        *(("trial", trials, "") for _ in varying(trials)),
        *((key, settings, UNCOUNTED) for key in keys if key in last),
    ]
    more = f" and {len(parts) - _VARYING:,} more" if len(parts) > _VARYING else ""
    for at, file in enumerate(files):
        shown = (
            f"{key} {value_text(values[at][key])}{beside}"
            for key, values, beside in parts[:_VARYING]
            if key in values[at]
        )
        texts[file.run] = ", ".join(shown) + more
    return texts


def _branch_json(store: Store, branch: Branch) -> dict[str, Any]:
    node, above = branch.node, branch.parent
    found = known_changes(store, above.file, node.file) if above else None
    return {
        "run": node.run,
        "name": node.name,
        "parent": msgspec.to_builtins(node.parent),
        "parent_is_there": bool(above and node.parent and node.parent.step in above.steps),
        "checkpoints": len(node.steps),
        "first_step": node.steps[0] if node.steps else None,
        "last_step": node.steps[-1] if node.steps else None,
        "time": node.time,
        "best": {"step": node.best.step, "metrics": node.metrics} if node.best else None,
        "hyperparameters": node.file.hyperparameters if node.file else None,
        "changes": changes_json(found) if found else None,
    }
