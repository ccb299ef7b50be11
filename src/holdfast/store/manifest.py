"""`manifest.yaml`: the runs of a store for people, and for programs that know layout V3. A view."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from holdfast.errors import WriteFailed
from holdfast.store import names
from holdfast.store.backend import Backend
from holdfast.store.index import Index
from holdfast.store.runfile import now


def write_manifest(backend: Backend, index: Index) -> None:
    """Write it anew, in one rename. That it cannot be written is nobody's loss."""
    with suppress(WriteFailed):
        backend.replace(names.MANIFEST, "".join(_lines(index)).encode())


def _lines(index: Index) -> Iterator[str]:
    latest = next(index.newest(), None)
    yield f"latest_hash: {_text(latest.run) if latest else 'null'}\n"
    yield f"last_updated: {_text(now())}\n"
    runs = index.runs()
    yield "experiments:\n" if runs else "experiments: {}\n"
    for run, name, created, used, _ in runs:
        made = created or used or now()
        yield f"  {_text(run)}:\n"
        if name is not None:
            yield f"    name: {_text(name)}\n"
        for i, part in enumerate(("hp", "model", "data")):
            yield f"    {part}_hash: {_text(run[8 * i : 8 * i + 8])}\n"
        yield f"    created: {_text(made)}\n"
        yield f"    last_used: {_text(used or made)}\n"


def _text(value: str) -> str:
    """Text in YAML, in the one style that never means anything else."""
    return "'" + value.replace("'", "''") + "'"
