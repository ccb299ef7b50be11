"""What the API tells of a store and its runs."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request

from standfast.cli.commands.du import usage_numbers
from standfast.cli.commands.log.lineage import known_changes, lineage_json
from standfast.cli.commands.ls import entry_json
from standfast.display.changes import changes_json
from standfast.errors import BadOption, DamagedFile, RefNotFound
from standfast.store import Store
from standfast.store.query.listing import checkpoints as listed_checkpoints
from standfast.store.query.mirrors import read_mirrors
from standfast.store.retention.usage import measure_run
from standfast.store.schema.run_file import RunFile
from standfast.web.api.answers import number, paged, run_in
from standfast.web.curves import marked
from standfast.web.lists import Runs, Wanted
from standfast.web.site import Site
from standfast.web.storage import kept_json, storage_json, verdicts_of

_LONGEST = 500
"""A filter of more characters is a mistake."""


def runs(site: Site, request: Request) -> dict[str, Any]:
    """A page of the runs that fit."""
    asked = request.query_params
    for name, value in asked.items():
        if len(value) > _LONGEST:
            raise BadOption(f"{name}= has {len(value):,} characters: at most {_LONGEST} can be")
    groups = tuple(asked.get(part, "").strip().lower() for part in ("hp", "model", "data"))
    wanted = Wanted(
        asked.get("q", "").strip(),
        (groups[0], groups[1], groups[2]),
        asked.get("metric", "").strip(),
        asked.get("sort", "").strip(),
    )
    site.refresh()
    known = Runs(site.store)
    chosen = known.chosen(wanted)
    part, told = paged(request, len(chosen))
    described = known.described(chosen[part])
    return {"runs": described, "metrics": known.metrics(described), **told}


def run(site: Site, request: Request) -> dict[str, Any]:
    """One run, with all that is known of it."""
    site.refresh()
    hash, store = run_in(request), site.store
    known = Runs(store)
    found = known.find(hash)
    if found is None:
        raise RefNotFound(f"{store.url} has no run {hash}")
    file = found[1]
    above = store.index.run_file(file.parent.run) if file and file.parent else None
    return {
        **known.described([hash])[0],
        "hyperparameters": file.hyperparameters if file else None,
        "retention": msgspec.to_builtins(file.retention) if file else None,
        "environment": file.environment if file else None,
        "monitor": msgspec.to_builtins(file.monitor) if file else None,
        "trial": file.trial if file else None,
        "usage": {
            **usage_numbers(measure_run(store.backend, store.index, hash)),
            "budget": file.retention.budget if file and file.retention else None,
        },
        "children": known.children(hash),
        "changes": _changes(store, above, file),
        "mirror": _mirror(store, hash),
    }


def _changes(store: Store, above: RunFile | None, file: RunFile | None) -> dict[str, Any] | None:
    found = known_changes(store, above, file)
    return changes_json(found) if found else None


def _mirror(store: Store, run: str) -> str | None:
    try:
        return read_mirrors(store.backend).get(run)
    except DamagedFile:  # `standfast doctor` tells of it
        return None


def checkpoints(site: Site, request: Request) -> dict[str, Any]:
    """A page of the checkpoints of a run, the newest first."""
    site.refresh()
    hash, store = run_in(request), site.store
    _check_known(store, hash)
    entries = listed_checkpoints(store.index, hash)
    part, told = paged(request, len(entries))
    found = verdicts_of(store, hash)
    shown = [
        {**entry_json(each), "kept": kept_json(found.get(each.step))} for each in entries[part]
    ]
    return {"checkpoints": shown, **told}


def metrics(site: Site, request: Request) -> dict[str, Any]:
    """The curves of a run, with its checkpoints on the same axis."""
    points = number(request, "points", 2000, 100, 20000)
    site.refresh()
    hash, store = run_in(request), site.store
    _check_known(store, hash)
    why = {step: each.why for step, each in verdicts_of(store, hash).items()}
    return {**site.curves.of_run(store, hash, points), "checkpoints": marked(store, hash, why)}


def lineage(site: Site, request: Request) -> list[dict[str, Any]]:
    """The runs, each after the one that it came from."""
    site.refresh()
    return lineage_json(site.store)


def storage(site: Site, request: Request) -> dict[str, Any]:
    """Where the bytes are."""
    site.refresh()
    return storage_json(site.store)


def _check_known(store: Store, run: str) -> None:
    if not store.index.runs(prefix=run):
        raise RefNotFound(f"{store.url} has no run {run}")
