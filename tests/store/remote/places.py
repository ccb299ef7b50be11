"""What the tests of remote stores share: stores without a cache, states, and the objects.

Worker processes import it, so nothing here may import torch at the top.
"""

from __future__ import annotations

import base64
import json
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import obstore
from obstore.store import S3Store

from standfast import Run, Store
from standfast.store.backends.address import INSIDE
from standfast.store.remote.backend import RemoteBackend
from standfast.store.schema import names
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import HOST

if TYPE_CHECKING:
    from tests.kit.object_store.server import Server

MIB: Final = 1 << 20
PART: Final = 5 * MIB
"""The least that S3 takes for a part."""


class Forgetful(RemoteBackend):
    """Keeps nothing on this machine: each store on it begins with an empty index."""

    @property
    def cache(self) -> None:
        return None


def fresh(url: str) -> Store:
    """The store at a URL, as a machine sees it that has never used it."""
    return Store(Forgetful(f"{url}/{INSIDE}"))


def straight(server: Server, url: str) -> S3Store:
    """The objects of the store at a URL, past everything else."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return server.client(bucket, prefix=f"{prefix}/{INSIDE}".lstrip("/"))


def keys(client: S3Store, end: str = "") -> list[str]:
    """The keys of all objects, or of those that end so."""
    found = [meta["path"] for page in obstore.list(client) for meta in page]
    return sorted(key for key in found if key.endswith(end))


def objects(client: S3Store) -> dict[str, bytes]:
    """All objects, with their content."""
    return {key: bytes(obstore.get(client, key).bytes()) for key in keys(client)}


def unfinished(server: Server, url: str) -> list[str]:
    """The keys of multipart uploads below a URL that were neither completed nor aborted."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    folder = f"http://{HOST}:{server.filer_port}/buckets/{bucket}/.uploads/?limit=1000"
    request = urllib.request.Request(folder, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            entries = json.load(answer)["Entries"] or []
    except urllib.error.HTTPError:  # no upload in parts was ever begun in this bucket
        return []
    # A part that arrives after its upload was aborted leaves a folder without a key.
    found = [base64.b64decode((each["Extended"] or {}).get("key", "")) for each in entries]
    return [key for each in found if each and (key := each.decode()).startswith(prefix)]


def state(seed: int, size: int = 70_000) -> dict[str, Any]:
    """A small state, or one of so many bytes."""
    weights = np.frombuffer(np.random.default_rng(seed).bytes(size), np.uint8).copy()
    return {"model": {"w": weights, "b": np.full(3, seed)}, "seed": seed}


def large(seed: int) -> dict[str, Any]:
    """A state that is uploaded in three parts, where parts are small."""
    return state(seed, 2 * PART + MIB)


def check(store: Store, *expected: dict[str, Any]) -> None:
    """The store has just these states, as the steps of their seeds, each of them whole."""
    from tests.kit.stores import same

    steps = {each["seed"]: each for each in expected}
    found = [each for run in store.runs() for each in run.checkpoints()]
    assert sorted(each.step for each in found) == sorted(steps)
    for checkpoint in found:
        assert same(checkpoint.state(), steps[checkpoint.step])


def orphans(store: Store) -> set[str]:
    """The data files that no record refers to."""
    store.index.refresh()
    left = set()
    for run in store.index.runs(empty=True):
        listed = {name for name, _ in store.backend.list(names.run_folder(run.run), ".safetensors")}
        left |= listed - store.index.files(run.run).keys()
    return left


def shown(error: BaseException) -> str:
    """All that a person, or a log, can see of an error, its causes included."""
    return "".join([*traceback.format_exception(error), str(error), repr(error)])


def data_key(run: Run, step: int) -> str:
    """The key of the one data file of a step."""
    (file,) = run.checkpoint(step).head.files
    return f"{names.run_folder(run.hash)}/{file.name}"


# Requests

Match = Callable[[Request], bool]


def is_record(request: Request, step: int | None = None) -> bool:
    """Whether it writes a record."""
    end = ".json" if step is None else f"_step_{step:06d}.json"
    return request.method == "PUT" and "_step_" in request.path and request.path.endswith(end)


def is_part(request: Request) -> bool:
    """Whether it uploads a part of a data file."""
    return request.method == "PUT" and "partNumber" in request.query


def is_completion(request: Request) -> bool:
    """Whether it ends an upload in parts."""
    return request.method == "POST" and "uploadId" in request.query


def is_listing(request: Request) -> bool:
    """Whether it lists objects."""
    return request.method == "GET" and "list-type" in request.query


def gets(end: str) -> Match:
    """Matches requests for objects whose keys end so."""
    return lambda request: request.method == "GET" and request.path.endswith(end)
