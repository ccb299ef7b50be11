"""`standfast doctor`: what is wrong with a store, and what could be mended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from standfast.cli.commands.verify import named
from standfast.display.output import count_text, print_json, progress_bar, say, size_text
from standfast.errors import printable
from standfast.store import Store
from standfast.store.maintenance.doctor import Diagnosis, clean, examine


def examine_store(store: Store, *, yes: bool, as_json: bool) -> int:
    """Examine a store, and with `yes` delete what crashes have left; returns the exit code."""
    store.index.refresh()
    total = sum(
        file.used for run in store.index.runs() for file in store.index.files(run.run).values()
    )
    with progress_bar("examining", total) as report:
        found = examine(store.backend, store.index, report)
    deleted: dict[str, int] = {}
    if yes:
        clean(store.backend, store.index)
        deleted = {
            name: size for name, size in found.orphans.items() if not store.backend.exists(name)
        }
    if as_json:
        print_json({**asdict(found), "deleted": deleted, "sound": found.sound})
    else:
        _print(found, deleted, yes)
    return found.code


def _print(found: Diagnosis, deleted: Mapping[str, int], yes: bool) -> None:
    for what, how in found.restored.items():
        say(("restored    ", "green"), printable(f"{what}: {how}"))
    for what, why in found.damaged.items():
        say(("damaged     ", "bold red"), printable(named(what, why)))
    for what, why in found.unverified.items():
        say(("unverified  ", "yellow"), printable(named(what, why)))
    for what, size in found.orphans.items():
        label = "deleted     " if what in deleted else "no record   "
        say((label, "yellow"), printable(f"{what}: {size_text(size)}"))
    for what in found.foreign:
        say(("foreign     ", "dim"), printable(f"{what}: it is not ours, and was let be"))
    say(
        f"{count_text(found.checkpoints, 'checkpoint')} of {count_text(found.runs, 'run')}, "
        f"{size_text(found.nbytes)} read; index and manifest were made again"
    )
    if found.orphans and not yes:
        nbytes = size_text(sum(found.orphans.values()))
        say(f"--yes deletes the files without a record, {nbytes}")
