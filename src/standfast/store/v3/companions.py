"""The files that layout V3 has beside the checkpoints of a run: for people, and for its readers.

They are views of what a run was made with: nothing of ours depends on them.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from standfast.errors import BadField, LimitExceeded
from standfast.files.yaml_text import MAX_BYTES, read_yaml
from standfast.identity import recorded
from standfast.store.backends.backend import Backend
from standfast.store.schema import names
from standfast.store.schema.run_file import now
from standfast.store.v3 import data_states
from standfast.store.v3.architectures import read_architecture, write_architecture
from standfast.store.v3.yaml_writer import block

__all__ = [
    "Config",
    "files_beside",
    "read_architecture",
    "read_config",
    "read_data_state",
    "write_architecture",
    "write_beside",
    "write_config",
    "write_data_state",
]

MAX_DATA_STATE: Final = 2 << 30


class Config(msgspec.Struct, frozen=True):
    """The hyperparameters of a run, as its config has them."""

    hyperparameters: Any
    exp_hash: str
    last_updated: str


def write_beside(backend: Backend, run: str, hp: Any, model: Any, data: Any) -> None:
    """Write all that V3 has of a run, before its run file lets it exist."""
    write_config(backend, run, hp)
    write_data_state(backend, run, data)
    if model is not None:
        write_architecture(backend, run, model)


def files_beside(run: str) -> list[str]:
    """The files that go with a run in other folders than its own, whether they are there or not."""
    return [names.config_file(run), names.data_state_file(run)]


def write_config(backend: Backend, run: str, hp: Any) -> None:
    """Write the hyperparameters of a run, volatile ones too."""
    fields = {"hyperparameters": recorded(hp), "exp_hash": run, "last_updated": now()}
    lines = (line for key, value in fields.items() for line in block(key, value))
    backend.replace(names.config_file(run), "".join(lines).encode())


def read_config(backend: Backend, run: str) -> Config:
    """The hyperparameters of a run; raises MissingFile, or a DamagedFile that says why."""
    path = names.config_file(run)
    fields = read_yaml(_read(backend, path, MAX_BYTES), path)
    try:
        config = msgspec.convert(fields, Config)
    except msgspec.ValidationError as error:
        raise BadField(f"{path}: {error}") from error
    if config.exp_hash != run:
        raise BadField(f"{path}: it is that of the run {config.exp_hash!r:.40}")
    return config


def write_data_state(backend: Backend, run: str, data: Any) -> None:
    """Write which samples a run sees, which of them are discarded, and their tags."""
    text = "".join(data_states.lines_of(data)).encode()
    backend.replace(names.data_state_file(run), text)


def read_data_state(backend: Backend, run: str) -> dict[str, Any]:
    """The samples of a run: `uids`, `discarded`, `tags`; `data` has what is no data state.

    Raises MissingFile, or a DamagedFile that says what is wrong.
    """
    path = names.data_state_file(run)
    return data_states.parse(_read(backend, path, MAX_DATA_STATE), path)


def _read(backend: Backend, path: str, most: int) -> bytes:
    text = backend.read(path, most + 1)
    if len(text) > most:
        raise LimitExceeded(f"{path}: it has over {most:,} bytes")
    return text
