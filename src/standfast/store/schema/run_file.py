"""The file that says what a run is."""

from __future__ import annotations

import platform
import sys
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import msgspec

from standfast.errors import BadField, DamagedFile, RefusedState
from standfast.policies import Mode, Retention
from standfast.store.backends.backend import Reads
from standfast.store.schema import names
from standfast.store.schema.record import Head, Place
from standfast.store.schema.seal import seal, unseal

FORMAT: Final = "standfast run 1"
MAX_SIZE: Final = 64 << 20


class Monitor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metric that decides which checkpoint of a run is its best."""

    metric: str
    mode: Mode = "min"


class RunFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a run is."""

    run: str
    identity: dict[str, str | None]
    """The full digests of `hp`, `model` and `data`."""
    name: str | None
    trial: Any
    created: str
    parent: Place | None
    """The checkpoint that the run came from."""
    hyperparameters: Any
    environment: dict[str, str]
    retention: Retention | None = None
    """Which of its checkpoints are kept; not in the file of a run that never said."""
    monitor: Monitor | None = None
    """What decides on its best; not there if nothing does."""


def encode(file: RunFile) -> bytes:
    """The whole file."""
    fields = msgspec.structs.asdict(file)
    for name in ("retention", "monitor"):
        if fields[name] is None:  # older releases read what has neither
            del fields[name]
    text = seal(FORMAT, fields) + b"\n"
    if len(text) > MAX_SIZE:
        raise RefusedState(
            f"the hyperparameters take {len(text):,} bytes as text, over {MAX_SIZE:,}: what is "
            "that large is part of the state, or of the data"
        )
    return text


def decode(text: bytes) -> RunFile:
    """What a run file says; raises a DamagedFile that says what is wrong."""
    fields = unseal(text.removesuffix(b"\n"), FORMAT)
    try:
        return msgspec.convert(fields, RunFile)
    except msgspec.ValidationError as error:
        raise BadField(f"{error}") from error


def read_run(backend: Reads, run: str) -> RunFile:
    """What a run is; raises MissingFile, or a DamagedFile that says what is wrong."""
    path = names.run_file(run)
    try:
        file = decode(backend.read(path, MAX_SIZE))
        if file.run != run:
            raise BadField(f"it is that of the run {file.run!r:.40}")
    except DamagedFile as error:
        error.args = (f"{path}: {error}", *error.args[1:])
        raise
    return file


def known_from(head: Head) -> RunFile:
    """What a record knows of its run, whose own file is lost."""
    return RunFile(head.run, head.identity, None, None, head.time, None, None, head.software)


def environment() -> dict[str, str]:
    """Where a run is made."""
    return {"host": platform.node(), "platform": platform.platform(), **software()}


def software() -> dict[str, str]:
    """The versions of what writes checkpoints here; of frameworks, those that are in use."""
    packages = ("standfast", "numpy", "torch", "jax")
    found = {package: _version(package) for package in packages if package in sys.modules}
    return {"python": platform.python_version(), **found}


@cache
def _version(package: str) -> str:
    from importlib import metadata  # which takes its time, and is not needed to read a store

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "unknown"


def now() -> str:
    """The time, for people."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
