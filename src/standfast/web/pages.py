"""The pages: small shells with what the server knows already, which scripts of ours fill."""

from __future__ import annotations

import gzip
import importlib.util
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from anyio import move_on_after, to_thread
from blake3 import blake3
from jinja2 import Environment, FileSystemLoader
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from standfast.errors import StandfastError, printable
from standfast.web.api import runs
from standfast.web.api.answers import plain
from standfast.web.site import Site

_HERE: Final = Path(__file__).parent
_PATIENCE: Final = 2.0
"""So many seconds a store has for what a page knows before it asks."""
_SHORT: Final = 60

templates: Final = Environment(
    loader=FileSystemLoader(_HERE / "templates"), autoescape=True, auto_reload=False
)


def routes(site: Site) -> list[BaseRoute]:
    """All pages, and the files that they need."""

    def page(name: str, title: Callable[[Request], str]) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            boot: dict[str, Any] = {"path": dict(request.path_params)}
            with move_on_after(_PATIENCE):  # a page that asks later is better than none
                boot = await to_thread.run_sync(
                    partial(_boot, site, request, name),
                    limiter=site.light,
                    abandon_on_cancel=True,
                )
            return HTMLResponse(
                templates.get_template(f"{name}.html").render(
                    page=name,
                    title=_printed(title(request)),
                    boot=boot,
                    place=printable((boot.get("store") or {}).get("url", "")),
                )
            )

        return endpoint

    return [
        Route("/", page("runs", lambda request: "Runs")),
        Route("/runs/{run}", page("run", lambda request: _part(request, "run")[:8])),
        Route("/lineage", page("lineage", lambda request: "Lineage")),
        Route(
            "/checkpoints/{run}/{step}",
            page("checkpoint", lambda r: f"{_part(r, 'run')[:8]}@{_part(r, 'step')}"),
        ),
        Route("/compare", page("compare", lambda request: "Compare")),
        Route("/storage", page("storage", lambda request: "Storage")),
        Route("/files", page("files", lambda request: "Files")),
        Route("/plotly.js", _plotly),
        Route("/favicon.ico", _icon),
        Mount("/static", _Static(directory=_HERE / "static", check_dir=False)),
    ]


def _part(request: Request, name: str) -> str:
    part: str = request.path_params[name]
    return part


def _printed(title: str) -> str:
    return printable(title[:_SHORT])


def _boot(site: Site, request: Request, page: str) -> dict[str, Any]:
    """What a page knows before it asks; if nothing can be known now, it will ask."""
    boot: dict[str, Any] = {"path": dict(request.path_params)}
    try:
        boot["store"] = site.about()
        if page == "runs":
            boot["data"] = runs.runs(site, request)
    except (StandfastError, OSError):
        pass  # what is wrong, the API will say
    found: dict[str, Any] = plain(boot)
    return found


class _Static(StaticFiles):
    """Files of ours, which browsers ask for again each time and mostly have already."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One of them."""
        response = await super().get_response(path, scope)
        response.headers["Cache-Control"] = "no-cache"
        return response


async def _icon(request: Request) -> Response:
    icon = _HERE / "static" / "icon.svg"
    return FileResponse(icon) if icon.is_file() else Response(status_code=204)


async def _plotly(request: Request) -> Response:
    """plotly.js out of its Python package."""
    found = await to_thread.run_sync(_packed)
    if found is None:
        return PlainTextResponse("plotly is missing: pip install plotly\n", 404)
    packed, tag = found
    headers = {"ETag": tag, "Cache-Control": "private, max-age=86400", "Vary": "Accept-Encoding"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    if "gzip" not in request.headers.get("accept-encoding", ""):
        content = await to_thread.run_sync(gzip.decompress, packed)
        return Response(content, headers=headers, media_type="text/javascript")
    headers["Content-Encoding"] = "gzip"
    return Response(packed, headers=headers, media_type="text/javascript")


@cache
def _packed() -> tuple[bytes, str] | None:
    """The file, compressed once, and what tells it from another version; None if there is none."""
    spec = importlib.util.find_spec("plotly")  # which does not import all of it
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, "package_data", "plotly.min.js")
        if path.is_file():
            content = path.read_bytes()
            return gzip.compress(content, 6, mtime=0), f'"{blake3(content).hexdigest(8)}"'
    return None
