"""The dashboard of one store as an ASGI application."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from standfast.store import Store
from standfast.web import pages
from standfast.web.api import routes
from standfast.web.security import Guard
from standfast.web.site import Site


def make_app(
    store: Store,
    *,
    allow_edit: bool = False,
    token: str | None = None,
    hosts: Collection[str] = (),
    files: Path | None = None,
) -> Starlette:
    """An application that shows a store, and changes nothing in it unless `allow_edit` is given.

    It answers to loopback addresses and to the names in `hosts`; with a `token`, only to those
    who know it. `files` is the folder whose files are shown too. Its `state.site` is the Site.
    """
    site = Site(store, allow_edit=allow_edit, files=files)
    app = Starlette(
        routes=[*routes.routes(site), *pages.routes(site)],
        middleware=[Middleware(Guard, hosts=hosts, token=token)],
        exception_handlers={404: _missing, 405: _missing},
    )
    app.state.site = site
    return app


async def _missing(request: Request, error: Exception) -> Response:
    return PlainTextResponse("There is no such page.\n", getattr(error, "status_code", 404))
