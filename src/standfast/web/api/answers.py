"""How the API answers: JSON, errors as JSON, each answer worked out by a thread."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Awaitable, Callable
from typing import Any, Final

from anyio import CapacityLimiter, to_thread
from starlette.requests import Request
from starlette.responses import Response

from standfast.display.output import message_of
from standfast.errors import (
    AlreadyExists,
    BadOption,
    BlockNotFound,
    DamagedFile,
    FellBack,
    MissingFile,
    NotAStore,
    Protected,
    RefNotFound,
    RunBusy,
    RunCollision,
    RunExists,
    StandfastError,
    StepExists,
    TensorNotFound,
    UnreadableFile,
    WriteFailed,
)
from standfast.store.schema import names
from standfast.web.files import OutsideRoot
from standfast.web.site import Site

_DEEPEST: Final = 250
"""Containers within each other beyond this many are no longer told of."""
_LEFT: Final = 499
"""The status for who has left, which nobody sees."""
_NUMBER: Final = re.compile("[0-9]{1,9}")


class NotAllowed(StandfastError):
    """What this dashboard was not started for, or who asks may not have."""


_STATUS: Final[tuple[tuple[type[BaseException], int], ...]] = (
    (NotAllowed, 403),
    (OutsideRoot, 403),
    (NotAStore, 410),
    (RefNotFound, 404),
    (TensorNotFound, 404),
    (BlockNotFound, 404),
    (MissingFile, 404),
    (DamagedFile, 422),
    (FellBack, 422),
    (UnreadableFile, 422),
    (AlreadyExists, 409),
    (RunBusy, 409),
    (RunExists, 409),
    (RunCollision, 409),
    (StepExists, 409),
    (Protected, 409),
    (WriteFailed, 403),
    (StandfastError, 400),
)
"""The first that fits."""

Answer = Callable[[Site, Request], Any]
Endpoint = Callable[[Request], Awaitable[Response]]


def answering(site: Site, answer: Answer, limiter: CapacityLimiter) -> Endpoint:
    """An endpoint that a thread works out, when the limiter has room for it."""

    async def endpoint(request: Request) -> Response:
        return await in_thread(request, lambda: answer(site, request), site, limiter)

    return endpoint


async def in_thread(
    request: Request, work: Callable[[], Any], site: Site, limiter: CapacityLimiter
) -> Response:
    """What some work comes to, as an answer; what it raises, as another."""

    def encoded() -> Response:
        try:
            return as_answer(work())
        except Exception as error:
            return _as_error(error, site)

    async with limiter:
        if await request.is_disconnected():  # while it waited for its turn
            return Response(status_code=_LEFT)
        return await to_thread.run_sync(encoded, limiter=site.threads)


def as_answer(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Half of a character, in a name out of a file, becomes an escape that JSON has as well.
    body = text.encode("utf-8", "backslashreplace")
    return Response(body, status, media_type="application/json")


def error_answer(kind: str, message: str, status: int) -> Response:
    """An error as JSON."""
    return as_answer({"error": {"kind": kind, "message": message}}, status)


def _as_error(error: Exception, site: Site) -> Response:
    """What went wrong. Where a store vanishes in the middle, anything may."""
    kind = type(error).__name__
    for each, status in _STATUS:
        if isinstance(error, each):
            text = message_of(error) if isinstance(error, StandfastError) else str(error)
            return error_answer(kind, text, status)
    try:
        site.store.check_exists()
    except NotAStore as gone:
        return error_answer("NotAStore", message_of(gone), 410)
    except StandfastError as unknown:
        return error_answer(type(unknown).__name__, message_of(unknown), 422)
    if isinstance(error, FileNotFoundError):
        return error_answer("MissingFile", "a file of it is gone: it was deleted meanwhile", 404)
    logging.getLogger("standfast.web").error("an answer could not be worked out", exc_info=error)
    return error_answer(kind, "something went wrong here; the terminal tells more", 500)


def plain(value: Any, depth: int = 0) -> Any:
    """A value as JSON has it, or as text; what is not finite is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | bool):
        return value
    if isinstance(value, int):
        return value if value.bit_length() <= 64 else hex(value)
    if isinstance(value, dict | list | tuple) and depth > _DEEPEST:
        return "…"
    if isinstance(value, dict):
        return {
            key if isinstance(key, str) else str(key): plain(member, depth + 1)
            for key, member in value.items()
        }
    if isinstance(value, list | tuple):
        return [plain(member, depth + 1) for member in value]
    return repr(value)


# What is asked for


def number(request: Request, name: str, default: int, least: int, most: int) -> int:
    """A number of the query; raises BadOption for any other text, and beyond the limits."""
    text = request.query_params.get(name)
    if text is None or text == "":
        return default
    if not _NUMBER.fullmatch(text) or not least <= int(text) <= most:
        raise BadOption(f"{name}={text[:40]}: give a number between {least:,} and {most:,}")
    return int(text)


def text(request: Request, name: str) -> str:
    """A text of the query; raises BadOption if there is none."""
    found = request.query_params.get(name)
    if not found:
        raise BadOption(f"{name}= is missing")
    return found


def run_in(request: Request) -> str:
    """The hash of a run in the path; raises RefNotFound for what is none."""
    run: str = request.path_params["run"]
    if not names.is_run(run):
        raise RefNotFound(f"{run[:100]!r} is no hash of a run: it has 24 characters")
    return run


def step_in(request: Request) -> int:
    """The step in the path; raises RefNotFound for what is none."""
    step: str = request.path_params["step"]
    if not step.isascii() or not step.isdecimal() or len(step) > 16 or int(step) >= names.MAX_STEP:
        raise RefNotFound(f"{step[:100]!r} is no step")
    return int(step)


def paged(request: Request, total: int) -> tuple[slice, dict[str, int]]:
    """Which of so many are on the page that is asked for, and what is told of it."""
    per_page = number(request, "per_page", 50, 1, 200)
    page = number(request, "page", 1, 1, 999_999_999)
    first = (page - 1) * per_page
    told = {
        "total": total,
        "page": page,
        "pages": max(1, -(-total // per_page)),
        "per_page": per_page,
    }
    return slice(first, first + per_page), told
