"""The JSON API: which path is answered by what. docs/api.md is its page."""

from __future__ import annotations

import math
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from standfast.web.api import checkpoints, edits, runs, tensors
from standfast.web.api.answers import Answer, answering, error_answer, in_thread
from standfast.web.changes import LONGEST
from standfast.web.site import Site

ROOT: Final = "/api/v1"
_CHECKPOINT: Final = "/checkpoints/{run}/{step}"

_LIGHT: Final[dict[str, Answer]] = {
    "/runs": runs.runs,
    "/runs/{run}": runs.run,
    "/runs/{run}/checkpoints": runs.checkpoints,
    "/lineage": runs.lineage,
    "/files": tensors.look,
}
_MIDDLE: Final[dict[str, Answer]] = {
    "/runs/{run}/metrics": runs.metrics,
    _CHECKPOINT: checkpoints.checkpoint,
    f"{_CHECKPOINT}/record": checkpoints.record,
}
_LONG: Final[dict[str, Answer]] = {
    "/storage": runs.storage,
    "/compare": checkpoints.compare,
}
_HEAVY: Final[dict[str, Answer]] = {
    "/compare/tensor": tensors.compare,
    "/tensor": tensors.tensor,
    "/tensor/heatmap": tensors.heatmap,
    "/mesh": tensors.blocks,
    "/mesh/field": tensors.field,
}


def routes(site: Site) -> list[Route]:
    """All paths of the API; any other below it is an error in JSON too."""

    async def store(request: Request) -> Response:
        known = request.query_params.get("wait")
        if known:
            await site.watch.changed(known, _seconds(request))
        return await in_thread(request, site.about, site, site.light)

    async def nothing(request: Request) -> Response:
        return error_answer("RefNotFound", "the API has no such path: see docs/api.md", 404)

    return [
        Route(f"{ROOT}/store", store),
        *(
            Route(f"{ROOT}{path}", answering(site, answer, limiter))
            for answers, limiter in (
                (_LIGHT, site.light),
                (_MIDDLE, site.middle),
                (_LONG, site.long),
                (_HEAVY, site.heavy),
            )
            for path, answer in answers.items()
        ),
        Route(
            f"{ROOT}{_CHECKPOINT}/verify",
            answering(site, checkpoints.verify, site.long),
            methods=["POST"],
        ),
        *(
            Route(f"{ROOT}{path}", edits.editing(site, edit), methods=[method])
            for method, path, edit in (
                ("POST", f"{_CHECKPOINT}/tags", edits.add_tag),
                ("DELETE", _CHECKPOINT + "/tags/{tag}", edits.delete_tag),
                ("POST", f"{_CHECKPOINT}/notes", edits.add_note),
                ("POST", "/runs/{run}/name", edits.rename),
            )
        ),
        Route("/api/{rest:path}", nothing, methods=["GET", "POST", "PUT", "PATCH", "DELETE"]),
    ]


def _seconds(request: Request) -> float:
    try:
        seconds = float(request.query_params.get("seconds", LONGEST))
    except ValueError:
        return LONGEST
    return seconds if math.isfinite(seconds) else LONGEST
