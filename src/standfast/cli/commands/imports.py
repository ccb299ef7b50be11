"""`standfast import`: checkpoints that another program wrote become a run, or several."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from standfast.display.output import count_text, print_json, say, size_text
from standfast.errors import printable
from standfast.store import Store
from standfast.store.copies.imports import Imported, Problem, Taken, import_folder, import_root


def import_run(store: Store, folder: Path, name: str | None, *, as_json: bool) -> None:
    """Import a folder, and print what was taken and what was not."""
    if as_json:
        print_json(_as_json(import_folder(store, folder, name)))
        return
    _print_done(import_folder(store, folder, name, _print_taken))


def import_runs(store: Store, root: Path, name: str | None, *, as_json: bool) -> int:
    """Import a root that weightslab wrote, and print what was taken; 1 if not all could be read."""
    if as_json:
        done = import_root(store, root, name)
        runs = [{"experiment": each.experiment, **_as_json(each)} for each in done.runs]
        print_json({"kind": "weightslab", "runs": runs, "ignored": _problems_json(done.problems)})
    else:
        done = import_root(store, root, name, _print_taken, _print_done)
        _print_problems(done.problems)
    return 1 if done.problems or any(each.ignored for each in done.runs) else 0


def _print_done(done: Imported) -> None:
    for step in done.skipped:
        say(("skipped     ", "dim"), f"step {step}: the run has it already")
    _print_problems(done.ignored)
    of = f", experiment {done.experiment}" if done.experiment else ""
    count = count_text(len(done.taken), "checkpoint")
    say(printable(f"{done.kind}{of}: {count} into run {done.run.hash} ({done.run.name})"))


def _print_problems(problems: list[Problem]) -> None:
    for path, why in problems:
        say(("ignored     ", "yellow"), printable(f"{path}: {why}"))


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
        "ignored": _problems_json(done.ignored),
    }


def _problems_json(problems: list[Problem]) -> list[dict[str, str]]:
    return [{"path": str(path), "why": why} for path, why in problems]
