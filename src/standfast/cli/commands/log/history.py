"""`standfast log RUN`: the history of a run, through those that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from standfast.cli.commands.log.lineage import known_changes
from standfast.cli.commands.ls import entry_json, print_checkpoints
from standfast.display.changes import changes_text
from standfast.display.output import hash_text, print_json, say
from standfast.errors import printable
from standfast.store import Store
from standfast.store.query.filters import Filter, chosen_runs
from standfast.store.query.lineage import Stretch, history, monitored
from standfast.store.schema.record import Place


def print_history(store: Store, ref: str, *, number: int | None, as_json: bool) -> None:
    """Print the checkpoints of a run, those of the run that it came from, and so on.

    Where several runs go by the name, it is done for each of them.
    """
    store.index.refresh()
    runs = chosen_runs(store.index, Filter(ref)) or []
    histories = {run: list(history(store.index, run)) for run in runs}
    if as_json:
        print_json([_stretch_json(run, each) for run in runs for each in histories[run]])
        return
    for at, run in enumerate(runs):
        if at:
            say()
        _print_stretches(store, histories[run], number)


def _print_stretches(store: Store, stretches: list[Stretch], number: int | None) -> None:
    if stretches[-1].file is None and not stretches[-1].entries and len(stretches) > 1:
        stretches.pop()  # a run that is gone: the line that names it says so
    left = number
    for at, stretch in enumerate(stretches):
        name = stretch.file.name if stretch.file else None
        say((printable(name or "—"), "bold"), printable(f"  {hash_text(stretch.run)}"))
        shown = stretch.entries[:left]
        if shown:
            print_checkpoints(shown, monitored(stretch.file), one_run=True)
        elif not stretch.entries:
            say("no checkpoint")
        if left is not None:
            left -= len(shown)
        if len(shown) < len(stretch.entries):
            older = sum(len(each.entries) for each in stretches[at:]) - len(shown)
            say((f"… and {older:,} older; --all lists them", "dim"))
            return
        if stretch.parent is not None:
            _print_origin(store, stretch, stretches[at + 1 :])


def _print_origin(store: Store, stretch: Stretch, older: Sequence[Stretch]) -> None:
    place, above = stretch.parent, older[0].file if older else None
    assert place is not None
    found = known_changes(store, above, stretch.file)
    text = f": {changes_text(found)}" if found else ""
    label = above.name if above and above.name else f"{place.run:.24}"
    gone = "" if _is_there(store, place) else ", which is gone"
    say()
    say((printable(f"branched from {label}@{place.step}{gone}{text}"), "yellow"))
    if older:
        say()


def _is_there(store: Store, place: Place) -> bool:
    listed = store.index.record(place.run, place.step)
    return listed is not None and listed.head.sequence == place.sequence


def _stretch_json(run: str, stretch: Stretch) -> dict[str, Any]:
    return {
        "history_of": run,
        "run": stretch.run,
        "name": stretch.file.name if stretch.file else None,
        "checkpoints": [entry_json(entry) for entry in stretch.entries],
        "branched_from": msgspec.to_builtins(stretch.parent),
    }
