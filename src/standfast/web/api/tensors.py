"""What the API tells of tensors, trees and files: numbers for pictures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request

from standfast.errors import BadOption
from standfast.store import Checkpoint
from standfast.store.query.view import CheckpointView
from standfast.tensorfile.open import TensorFile
from standfast.web import files, mesh, numbers
from standfast.web.api.answers import NotAllowed, number, text
from standfast.web.site import Site

_MOST: Final = 999_999_999
_MOST_INDICES: Final = 64


def tensor(site: Site, request: Request) -> dict[str, Any]:
    """A summary of one tensor."""
    name, bins = text(request, "name"), number(request, "bins", 64, 8, 512)
    with _source(site, request) as source:
        return numbers.summary(source, name, bins)


def heatmap(site: Site, request: Request) -> dict[str, Any]:
    """A picture of one tensor."""
    name = text(request, "name")
    rows, columns = number(request, "rows", 256, 1, 256), number(request, "columns", 256, 1, 256)
    with _source(site, request) as source:
        return numbers.heatmap(source, name, rows, columns, _indices(request))


def compare(site: Site, request: Request) -> dict[str, Any]:
    """Summaries of a tensor in two checkpoints, and of the difference."""
    name, bins = text(request, "name"), number(request, "bins", 64, 8, 512)
    site.store.check_exists()
    before, after = (
        CheckpointView(site.store.resolve(text(request, side))) for side in ("before", "after")
    )
    return numbers.difference(before, after, name, bins)


def blocks(site: Site, request: Request) -> dict[str, Any]:
    """The blocks of a tree."""
    component = number(request, "component", 0, 0, _MOST)
    with _tree(site, request) as what:
        return mesh.blocks(what, component)


def field(site: Site, request: Request) -> dict[str, Any]:
    """The field of one block."""
    block, component = (number(request, name, 0, 0, _MOST) for name in ("block", "component"))
    with _tree(site, request) as what:
        return mesh.field(what, block, component)


def look(site: Site, request: Request) -> dict[str, Any]:
    """What is in a folder, or in a file of it."""
    page, per_page = number(request, "page", 1, 1, _MOST), number(request, "per_page", 50, 1, 200)
    return files.look(_root(site), request.query_params.get("path", ""), page, per_page)


@contextmanager
def _source(site: Site, request: Request) -> Iterator[CheckpointView | TensorFile]:
    """The checkpoint of `ref=`, or the file of `path=`, as what tensors are read from."""
    with _tree(site, request) as what:
        yield CheckpointView(what) if isinstance(what, Checkpoint) else what


@contextmanager
def _tree(site: Site, request: Request) -> Iterator[Checkpoint | TensorFile]:
    """The checkpoint of `ref=`, or the file of `path=`."""
    ref, path = request.query_params.get("ref"), request.query_params.get("path")
    if bool(ref) == bool(path):
        raise BadOption("give either ref=RUN@STEP or path=FILE")
    if path:
        with files.opened(_root(site), path) as file:
            yield file
        return
    site.store.check_exists()
    yield site.store.resolve(str(ref))


def _root(site: Site) -> Path:
    if site.files is None:
        raise NotAllowed("no folder of files is shown: start with `standfast ui --files FOLDER`")
    return site.files


def _indices(request: Request) -> list[int]:
    """The leading indices of a picture: `2,0`."""
    given = request.query_params.get("index", "").strip()
    if not given:
        return []
    parts = given.split(",")
    if len(parts) > _MOST_INDICES or not all(
        part.strip().isascii() and part.strip().isdecimal() and len(part) < 19 for part in parts
    ):
        raise BadOption(f"index={given[:40]}: give whole numbers with commas between them")
    return [int(part) for part in parts]
