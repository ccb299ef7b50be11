"""What may be changed, where that is allowed: tags, notes, and the names of runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from standfast.errors import BadOption, RefNotFound, StandfastError
from standfast.store.schema import names
from standfast.web.api.answers import Endpoint, NotAllowed, error_answer, in_thread, run_in, step_in
from standfast.web.site import Site

LARGEST: Final = 64 << 10
"""The bytes of what may be sent."""

Edit = Callable[[Site, Request, dict[str, Any]], Any]


def editing(site: Site, edit: Edit) -> Endpoint:
    """An endpoint that changes something; raises nothing, as others answer."""

    async def endpoint(request: Request) -> Response:
        try:
            _check_allowed(site, request)
            given = await _given(request)
        except StandfastError as error:
            status = 403 if isinstance(error, NotAllowed) else 400
            return error_answer(type(error).__name__, str(error), status)
        return await in_thread(request, lambda: edit(site, request, given), site, site.light)

    return endpoint


def _check_allowed(site: Site, request: Request) -> None:
    if not site.allow_edit:
        raise NotAllowed("nothing can be changed here: start with `standfast ui --allow-edit`")
    if request.headers.get("x-standfast") != "1":
        raise NotAllowed("only pages of the dashboard change anything: X-Standfast is missing")


async def _given(request: Request) -> dict[str, Any]:
    """The fields of what was sent; a DELETE has none."""
    if request.method == "DELETE":
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise BadOption("send JSON, as application/json")
    body = bytearray()
    async for block in request.stream():
        body += block
        if len(body) > LARGEST:
            raise BadOption(f"it is over {LARGEST:,} bytes")
    try:
        return msgspec.json.decode(bytes(body), type=dict[str, Any])
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadOption("it is no JSON object") from None


def _field(given: dict[str, Any], name: str) -> str:
    value = given.get(name)
    if not isinstance(value, str) or not value:
        raise BadOption(f"{name!r} is missing, or no text")
    return value


def add_tag(site: Site, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """Give a checkpoint a tag."""
    checkpoint = site.store.checkpoint(run_in(request), step_in(request))
    checkpoint.tag(_field(given, "tag"))
    return {"ref": checkpoint.ref, "tag": given["tag"], "tags": checkpoint.tags}


def delete_tag(site: Site, request: Request, _: dict[str, Any]) -> dict[str, Any]:
    """Take a tag away from a checkpoint."""
    checkpoint = site.store.checkpoint(run_in(request), step_in(request))
    tag: str = request.path_params["tag"]
    checkpoint.untag(tag)
    return {"ref": checkpoint.ref, "deleted": tag, "tags": checkpoint.tags}


def add_note(site: Site, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """Write a note about a checkpoint."""
    checkpoint = site.store.checkpoint(run_in(request), step_in(request))
    checkpoint.note(_field(given, "text"))
    notes = [{"time": note.time, "text": note.text} for note in checkpoint.notes]
    return {"ref": checkpoint.ref, "note": given["text"], "notes": notes}


def rename(site: Site, request: Request, given: dict[str, Any]) -> dict[str, Any]:
    """Give a run another name."""
    site.refresh()
    hash, name = run_in(request), _field(given, "name")
    if not site.store.index.runs(prefix=hash):
        raise RefNotFound(f"{site.store.url} has no run {hash}")
    names.check_label(name, "a run's name")
    run = site.store.open_run(hash)
    before = run.name
    run.rename(name)
    return {"run": hash, "before": before, "name": name}
