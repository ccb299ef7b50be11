"""What the API tells of checkpoints, and of what is compared."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from starlette.requests import Request

from standfast.cli.commands.diff.runs import runs_diff_json
from standfast.cli.commands.show.checkpoint import checkpoint_json
from standfast.display.trees import is_tree
from standfast.errors import DamagedFile, MissingFile
from standfast.store import Checkpoint
from standfast.store.query.view import CheckpointView
from standfast.store.schema import names
from standfast.store.schema.decoder import decode_head
from standfast.store.schema.record import MAX_RECORD, Part
from standfast.web.api.answers import run_in, step_in, text
from standfast.web.site import Site
from standfast.web.storage import kept_json, verdicts_of

_KNOWN: Final = "a data file of it was found damaged when it was last read"


def checkpoint(site: Site, request: Request) -> dict[str, Any]:
    """One checkpoint, as far as it can be read."""
    found = _found(site, request)
    view = CheckpointView(found)
    verdict = verdicts_of(site.store, found.head.run).get(found.step)
    told = {
        **checkpoint_json(found, view),
        "integrity": integrity(found),
        "kept": kept_json(verdict),
    }
    for tensor, part in zip(told["tensors"], _parts_of(found), strict=True):
        tensor["part"] = part
    if is_tree(found):
        from standfast.cli.commands.show.tree import tree_json  # with what only trees need

        told["tree"] = tree_json(found, every=False)
    return told


def _found(site: Site, request: Request) -> Checkpoint:
    run, step = run_in(request), step_in(request)
    site.store.check_exists()
    return site.store.checkpoint(run, step)


def _parts_of(checkpoint: Checkpoint) -> list[str | None]:
    """The part of each tensor, in their order."""
    record = checkpoint.record
    parts: list[Part] = record.head.parts
    by_number = {
        number: part.key for part in parts for number in range(part.first, part.first + part.count)
    }
    numbers = {name: number for number, name in enumerate(record.names)}
    return [by_number.get(numbers[name]) for name in CheckpointView(checkpoint)]


def integrity(checkpoint: Checkpoint) -> dict[str, Any]:
    """What is known of a checkpoint, and what a look at its files tells, without reading them."""
    index, head = checkpoint.store.index, checkpoint.head
    try:
        checkpoint.check_files()
    except DamagedFile as error:
        return {"state": "damaged", "problem": str(error)}
    if index.damaged_files() & {file.name for file in head.files}:
        return {"state": "damaged", "problem": _KNOWN}
    is_verified = head.step in index.verified(head.run)
    return {"state": "verified" if is_verified else "unverified", "problem": None}


def verify(site: Site, request: Request) -> dict[str, Any]:
    """Read and check every byte of a checkpoint; raises a DamagedFile that says what is wrong."""
    found = _found(site, request)
    verified = found.verify()
    return {
        "intact": True,
        "bytes": verified.nbytes,
        "tensors": verified.tensors,
        "files": verified.files,
    }


def record(site: Site, request: Request) -> dict[str, Any]:
    """The head of a record, and what its other lines take."""
    run, step = run_in(request), step_in(request)
    site.store.check_exists()
    name = names.record_file(run, step)
    try:
        content = site.store.backend.read(name, MAX_RECORD)
    except MissingFile:
        site.store.checkpoint(run, step)  # which says what became of it
        raise
    lines = content.split(b"\n")[:-1]
    told = [{"name": _line_name(line, at), "bytes": len(line) + 1} for at, line in enumerate(lines)]
    head = msgspec.to_builtins(decode_head(lines[0] if lines else b"", run, step))
    return {"file": name, "bytes": len(content), "head": head, "lines": told}


def _line_name(line: bytes, at: int) -> str:
    """What a line of a record is: they have one key each, but for the head and the tree."""
    if at < 2:
        return ("head", "tree")[at]
    key, quote, _ = line[2:40].partition(b'"')
    return key.decode("utf-8", "replace") if quote and line[:2] == b'{"' else "?"


def compare(site: Site, request: Request) -> dict[str, Any]:
    """What differs between two checkpoints and their runs."""
    before, after = text(request, "before"), text(request, "after")
    site.store.check_exists()
    return runs_diff_json(site.store, before, after)
