"""The file that says what a run is."""

from __future__ import annotations

import platform
import sys
import time
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final

import msgspec

from standfast.errors import BadField, RefusedState
from standfast.policies import Mode, Retention
from standfast.store.backends.backend import Reads
from standfast.store.schema import names
from standfast.store.schema.hyperparameters import exact_value
from standfast.store.schema.record import Head, Place
from standfast.store.schema.seal import Sealed, read
from standfast.store.schema.seal import encode as encode_sealed

FORMAT: Final = "standfast run 1"
MAX_SIZE: Final = 64 << 20
_TIME: Final = "%Y-%m-%dT%H:%M:%S.%fZ"


class Monitor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The metric that decides which checkpoint of a run is its best."""

    metric: str
    mode: Mode = "min"


class RunFile(Sealed, frozen=True):
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
    """As JSON, for people."""
    environment: dict[str, str]
    retention: Retention | None = None
    """Which of its checkpoints are kept; None if it was never set."""
    monitor: Monitor | None = None
    """What decides on its best, if anything does."""
    exact: Any = None
    """The hyperparameters with all their types, where `hyperparameters` does not have them."""
    last_used: str | None = None
    """When an experiment was loaded or made the current one, where that is after its commits."""
    named: bool = False
    """Whether the name that it was made with identifies it: no trial was given."""
    incomplete: bool = False
    """Whether it was deleted and made again by a save, without its data state or architecture."""

    @property
    def settings(self) -> Any:
        """The hyperparameters with the values and types that they were given with."""
        return exact_value(self.hyperparameters, self.exact)


def encode(file: RunFile) -> bytes:
    """The whole file."""
    text = encode_sealed(FORMAT, file) + b"\n"
    if len(text) > MAX_SIZE:
        raise RefusedState(
            f"the hyperparameters take {len(text):,} bytes as text, over {MAX_SIZE:,}: what is "
            "that large is part of the state, or of the data"
        )
    return text


def read_run(backend: Reads, run: str) -> RunFile:
    """What a run is; raises MissingFile, TooNew or a DamagedFile."""
    path = names.run_file(run)
    file = read(backend, path, FORMAT, RunFile, MAX_SIZE)
    if file.run != run:
        raise BadField(f"{path}: it is that of the run {file.run!r:.40}")
    return file


def known_from(head: Head) -> RunFile:
    """What a record tells of its run. The rest is unknown: this is never written to a store."""
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
    return datetime.fromtimestamp(time.time(), UTC).strftime(_TIME)


def local_time(text: Any) -> str | None:
    """A time in ISO 8601 in the same form; without a zone it is by the clock of this machine."""
    try:
        return datetime.fromisoformat(text).astimezone(UTC).strftime(_TIME)
    except (TypeError, ValueError, OverflowError, OSError):
        return None
