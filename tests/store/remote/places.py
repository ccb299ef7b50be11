"""What the tests of remote stores share: stores without a memory, states, and a look past both."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import obstore
import pytest
from obstore.store import S3Store

from standfast import Run, Store
from standfast.files import ring
from standfast.store.backends.address import INSIDE
from standfast.store.remote import new_file
from standfast.store.remote.backend import RemoteBackend
from standfast.store.schema import names
from tests.kit.object_store.messages import Request
from tests.kit.object_store.server import Server
from tests.kit.stores import MIB, random_bytes, same

PART = 5 * MIB
"""The least that S3 takes for a part."""


class Forgetful(RemoteBackend):
    """Keeps nothing on this machine: each store on it begins with an empty index."""

    @property
    def cache(self) -> None:
        return None


def fresh(url: str, **options: Any) -> Store:
    """The store at a URL, seen by somebody who knows nothing of it."""
    return Store(Forgetful(f"{url}/{INSIDE}", **options))


def straight(server: Server, url: str) -> S3Store:
    """The objects of the store at a URL, past everything else."""
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    return server.client(bucket, prefix=f"{prefix}/{INSIDE}".lstrip("/"))


def objects(client: S3Store) -> dict[str, bytes]:
    """All of them, with their content."""
    keys = [meta["path"] for page in obstore.list(client) for meta in page]
    return {key: bytes(obstore.get(client, key).bytes()) for key in sorted(keys)}


def data_keys(client: S3Store) -> list[str]:
    """The keys of all data files."""
    keys = [meta["path"] for page in obstore.list(client) for meta in page]
    return sorted(key for key in keys if key.endswith(".safetensors"))


def state(seed: int, size: int = 70_000) -> dict[str, Any]:
    """A small state, or one of so many bytes."""
    return {"model": {"w": random_bytes(size, seed), "b": np.full(3, seed)}, "seed": seed}


def large(seed: int) -> dict[str, Any]:
    """A state that is uploaded in three parts, where parts are small."""
    return state(seed, 2 * PART + MIB)


def use_small_parts(patch: pytest.MonkeyPatch) -> None:
    """Let what is large enough for a few parts be uploaded as what is much larger is."""
    patch.setattr(ring, "BLOCK", MIB)
    patch.setattr(new_file, "_PART", PART)


def check(store: Store, *expected: dict[str, Any]) -> None:
    """The store has just these states, as the steps of their seeds, each of them whole."""
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
        listed = {name for name, _ in store.backend.list(names.run_folder(run.run))}
        left |= {name for name in listed if name.endswith(".safetensors")}
        left -= store.index.files(run.run).keys()
    return left


def shown(error: BaseException) -> str:
    """All that a person, or a log, can see of an error, its causes included."""
    return "".join([*traceback.format_exception(error), str(error), repr(error)])


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


def folder(run: Run) -> str:
    """Where the objects of a run are."""
    return names.run_folder(run.hash)
