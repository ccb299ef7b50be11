"""`standfast show REF`: what a checkpoint is, and what it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from standfast.cli.commands.log.retention import verdict_text
from standfast.cli.commands.show.file import print_tensors, tensors_json, value_text
from standfast.display.output import (
    ROWS,
    age_text,
    count_text,
    hash_text,
    on_terminal,
    print_json,
    print_table,
    say,
    say_more,
    shape_text,
    size_text,
    time_text,
)
from standfast.display.trees import is_tree
from standfast.errors import printable, shortened
from standfast.store import Checkpoint, Run
from standfast.store.load.needed import is_all_of
from standfast.store.query.listing import written
from standfast.store.query.view import CheckpointView, run_of
from standfast.store.retention.verdicts import Verdict, verdicts
from standfast.store.schema.record import Head, Record, summary
from standfast.tensors.shards import Box

_RANK: Final = re.compile(r"-rank([0-9]+)[^.]*\.safetensors$")
"""In the name of a data file, the rank that wrote it."""


def show_checkpoint(checkpoint: Checkpoint, *, as_json: bool, every: bool) -> int:
    """Print a checkpoint's place, metrics, files, plain values and tensors, or its tree.

    Returns the exit code.
    """
    view = CheckpointView(checkpoint)
    if is_tree(checkpoint):
        return _show_snapshot(checkpoint, view, as_json, every)
    if as_json:
        print_json(checkpoint_json(checkpoint, view))
    else:
        _print_facts(checkpoint, view)
        _print_files(checkpoint)
        say()
        _print_content(checkpoint, view, every or not on_terminal())
    return 0


def _show_snapshot(checkpoint: Checkpoint, view: CheckpointView, as_json: bool, every: bool) -> int:
    """A snapshot of a simulation: its tree; the slabs that it lies in only if asked for."""
    from standfast.cli.commands.show.tree import print_tree, tree_json

    if as_json:
        tree = tree_json(checkpoint, every=every)
        print_json({**checkpoint_json(checkpoint, view), "tree": tree})
        return 1 if tree["problems"] else 0
    _print_facts(checkpoint, view)
    sound = print_tree(checkpoint, every=every)
    say()
    _print_files(checkpoint)
    if every:
        say()
        _print_content(checkpoint, view, every)
    return 0 if sound else 1


def checkpoint_json(checkpoint: Checkpoint, view: CheckpointView) -> dict[str, Any]:
    """A checkpoint for scripts."""
    run = run_of(checkpoint)
    return {
        "ref": checkpoint.ref,
        "name": run.name if run else None,
        **summary(checkpoint.head),
        "metrics": checkpoint.metrics,
        "hyperparameters": run.file.hyperparameters if run else None,
        "written": written(checkpoint.head),
        "retention": _retention_json(run, checkpoint),
        "tags": checkpoint.tags,
        "notes": [{"time": note.time, "text": note.text} for note in checkpoint.notes],
        "values": view.values,
        "tensors": _tensors_json(checkpoint, view),
    }


def _tensors_json(checkpoint: Checkpoint, view: CheckpointView) -> list[dict[str, Any]]:
    """Tensors for scripts, those that are in boxes with these."""
    boxes = _boxes(checkpoint.record)
    tensors = tensors_json((name, view.spec(name)) for name in view)
    for tensor in tensors:
        if tensor["name"] in boxes:
            tensor["boxes"] = [box._asdict() for box in boxes[tensor["name"]]]
    return tensors


def _boxes(record: Record) -> dict[str, Sequence[Box]]:
    """The boxes of each tensor that is in several, or tied to one that is."""
    found = dict(record.boxes)
    for number, view in record.views.items():
        if view.base in record.boxes and is_all_of(record, number):
            found[number] = record.boxes[view.base]
    return {record.names[number]: boxes for number, boxes in found.items()}


def _print_facts(checkpoint: Checkpoint, view: CheckpointView) -> None:
    head, run = checkpoint.head, run_of(checkpoint)
    name = run.name if run else None
    say((printable(f"{name}@{head.step}" if name else checkpoint.ref), "bold"))
    say(
        f"{size_text(head.nbytes)} in {count_text(len(view), 'tensor')}, "
        f"{size_text(written(head))} written for it"
    )
    for label, text in _facts(checkpoint):
        say(printable(f"  {label}: {text}"))
    say()


def _print_files(checkpoint: Checkpoint) -> None:
    parts = [
        (printable(key), f"{count:,}", size_text(nbytes))
        for key, count, nbytes in _parts(checkpoint)
    ]
    print_table(("part", "tensors", "size"), parts, right="tensors size")
    say()
    files = [
        (file.name, size_text(file.size), size_text(file.held), size_text(file.used))
        for file in checkpoint.head.files
    ]
    print_table(("file", "size", "held", "used"), files, right="size held used")


def _print_content(checkpoint: Checkpoint, view: CheckpointView, every: bool) -> None:
    _print_values(view, every)
    specs = [(name, view.spec(name)) for name in view]
    boxes = _boxes(checkpoint.record)
    if not boxes:
        print_tensors(specs, every)
        return
    shown = specs if every else specs[:ROWS]
    rows = [
        (
            printable(name),
            spec.dtype,
            shape_text(spec.shape),
            size_text(spec.nbytes),
            f"{len(boxes[name]):,}" if name in boxes else "",
        )
        for name, spec in shown
    ]
    print_table(("tensor", "dtype", "shape", "size", "boxes"), rows, right="size boxes")
    say_more(len(specs) - len(rows))


def _facts(checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    head = checkpoint.head
    yield "run", hash_text(head.run)
    yield "step", f"{head.step}"
    if head.epoch is not None:
        yield "epoch", f"{head.epoch}"
    yield "saved", f"{time_text(head.time)} UTC, {age_text(head.time)} ago"
    for name, value in checkpoint.metrics.items():
        yield f"metric {name}", value_text(value)
    run = run_of(checkpoint)
    if run is not None and run.file.hyperparameters is not None:
        yield "hyperparameters", value_text(run.file.hyperparameters)
    if head.best:
        yield "best", "saved as the best of its run"
    if head.parent is not None:
        gone = "" if checkpoint.parent else ", which is gone"
        yield "parent", f"{head.parent.run}@{head.parent.step}{gone}"
    if checkpoint.tags:
        yield "tags", ", ".join(checkpoint.tags)
    for note in checkpoint.notes:
        yield f"note of {time_text(note.time)}", note.text
    if head.dropped:
        yield "deleted parts", ", ".join(head.dropped)
    yield from _kept(run, checkpoint)
    ranks = _writers(head)
    if len(ranks) > 1:
        yield "written by", f"{len(ranks):,} ranks"
    yield "software", ", ".join(f"{name} {version}" for name, version in head.software.items())


def _writers(head: Head) -> set[str]:
    """The ranks that wrote files for it; none that can be told if one process did."""
    own = f"{head.run}_step_{head.step:06d}."
    found = (_RANK.search(file.name) for file in head.files if file.name.startswith(own))
    return {match[1] for match in found if match}


def _kept(run: Run | None, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """What its run keeps, and what becomes of it."""
    if run is not None and run.file.retention is not None:
        yield "its run keeps", str(run.file.retention)
    verdict = _verdict(run, checkpoint)
    if verdict is not None:
        yield verdict_text(verdict), "; ".join(verdict.why)


def _verdict(run: Run | None, checkpoint: Checkpoint) -> Verdict | None:
    found = verdicts(run.store, run.hash) if run else []
    return next((each for each in found if each.sequence == checkpoint.sequence), None)


def _retention_json(run: Run | None, checkpoint: Checkpoint) -> dict[str, Any]:
    retention, verdict = run.file.retention if run else None, _verdict(run, checkpoint)
    return {
        "run": None if retention is None else msgspec.to_builtins(retention),
        "checkpoint": None if verdict is None else msgspec.to_builtins(verdict),
    }


def _parts(checkpoint: Checkpoint) -> Iterator[tuple[str, int, int]]:
    """The parts, with the number of tensors in each and their bytes."""
    for part in checkpoint.head.parts:
        view = CheckpointView(checkpoint, part)
        nbytes = sum(view.spec(name).nbytes for name in view)
        yield part.label if part.key is None else part.key, len(view), nbytes


def _print_values(view: CheckpointView, every: bool) -> None:
    if not view.values:
        return
    say(f"{count_text(len(view.values), 'plain value')}{'' if every else '; --all lists them'}")
    if every:
        for name, value in view.values.items():
            say(printable(f"  {shortened(name)}: {shortened(value_text(value))}"))
    say()
