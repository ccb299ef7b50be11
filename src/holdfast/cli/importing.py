"""`holdfast import`: a folder of checkpoints that another program wrote becomes a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from holdfast.cli.output import count_text, print_json, say, size_text
from holdfast.errors import printable
from holdfast.store import Store
from holdfast.store.importing import Imported, Taken, import_folder


def import_run(store: Store, folder: Path, name: str | None, *, as_json: bool) -> None:
    """Import a folder, and print what was taken and what was not."""
    if as_json:
        print_json(_as_json(import_folder(store, folder, name)))
        return
    done = import_folder(store, folder, name, _print_taken)
    for step in done.skipped:
        say(("skipped     ", "dim"), f"step {step}: the run has it already")
    for path, why in done.ignored:
        say(("ignored     ", "yellow"), printable(f"{path}: {why}"))
    say(
        printable(
            f"{done.kind}: {count_text(len(done.taken), 'checkpoint')} into run {done.run.hash} "
            f"({done.run.name})"
        )
    )


def _print_taken(taken: Taken) -> None:
    checkpoint = taken.checkpoint
    files = ", ".join(path.name for path in taken.paths[:3])
    more = f" and {len(taken.paths) - 3} more" if len(taken.paths) > 3 else ""
    size = size_text(checkpoint.nbytes)
    say(("imported    ", "green"), printable(f"step {checkpoint.step}: {files}{more}, {size}"))
    for path, what in taken.left_out.items():
        say(("            left out    ", "yellow"), printable(f"{path}: a {what}"))


def _as_json(done: Imported) -> dict[str, Any]:
    return {
        "run": done.run.hash,
        "name": done.run.name,
        "kind": done.kind,
        "taken": [
            {
                "ref": taken.checkpoint.ref,
                "step": taken.checkpoint.step,
                "files": [str(path) for path in taken.paths],
                "bytes": taken.checkpoint.nbytes,
                "left_out": taken.left_out,
            }
            for taken in done.taken
        ],
        "skipped": done.skipped,
        "ignored": [{"path": str(path), "why": why} for path, why in done.ignored],
    }
