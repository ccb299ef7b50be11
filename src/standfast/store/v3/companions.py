"""The files that layout V3 has beside the checkpoints of a run: for people, and for its readers.

The config holds all that the run file does, so that each can be restored from the other. The YAML
files end with a comment that is the digest of what comes before it: damage is found by it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec
from blake3 import blake3

from standfast.errors import (
    BadField,
    FileError,
    IndexMismatch,
    LimitExceeded,
    MissingFile,
    StandfastError,
)
from standfast.store.backends.backend import NO_ANSWER, Backend, Reads
from standfast.store.save.changing import PATIENCE, change_of
from standfast.store.schema import names
from standfast.store.schema.hyperparameters import yaml_value
from standfast.store.schema.run_file import MAX_SIZE, RunFile, encode, now, read_run
from standfast.store.v3 import data_states
from standfast.store.v3.architectures import encode_architecture, read_architecture
from standfast.store.v3.yaml_writer import block, escaped

__all__ = [
    "change_run",
    "check_data_state",
    "files_beside",
    "read_architecture",
    "read_config",
    "read_data_state",
    "recover_run",
    "write_beside",
    "write_config",
    "write_data_state",
    "write_run",
    "write_shared",
]

MAX_DATA_STATE: Final = 2 << 30
_DIGEST: Final = b"# digest: "
_LAST_LINE: Final = len(_DIGEST) + 65


def write_beside(backend: Backend, file: RunFile, model: Any, data: Any) -> None:
    """Write all that V3 has of a run, before its run file lets it exist."""
    write_config(backend, file)
    write_data_state(backend, file.run, data)
    if model is not None:
        text = encode_architecture(file.identity["model"], model)
        if text is not None:
            write_shared(backend, file.run, names.architecture_file, text)


def write_shared(backend: Backend, run: str, name_of: Callable[[str], str], content: bytes) -> None:
    """Write a file of a run, as a hard link to that of another run if one has the same content.

    Only runs with the same model or data, by their hashes, can have the same.
    """
    name = name_of(run)
    folder = name.partition("/")[0]
    part = slice(16, 24) if folder == names.SAMPLES else slice(8, 16)
    for other in backend.folders(folder) if backend.links else ():
        there = name_of(other) if names.is_run(other) and other != run else name
        if there == name or other[part] != run[part] or backend.size(there) != len(content):
            continue
        with suppress(FileError):  # deleted meanwhile, or it cannot be read
            if backend.read(there) == content and backend.link(there, name, over=True):
                backend.sync(name.rpartition("/")[0])
                return
    backend.replace(name, content)


def write_run(backend: Backend, file: RunFile) -> None:
    """Replace the run file and its copy, the config; the caller holds the lock of the run."""
    encoded = encode(file)
    write_config(backend, file)
    backend.replace(names.run_file(file.run), encoded)


def change_run(
    backend: Backend,
    run: str,
    change: Callable[[RunFile], RunFile],
    known: RunFile | None = None,
    wait: float = PATIENCE,
) -> RunFile:
    """Replace what a run file says by what `change` makes of it; returns that.

    Every change of a run file is made here, under a lock, so that none undoes another. A file
    that is not there is made from its config, or from what is `known`, which may be old; raises
    MissingFile if nothing is known.
    """
    with suppress(MissingFile):
        file = read_run(backend, run)
        if change(file) == file:
            return file
    with change_of(backend, run, wait):
        try:
            file = read_run(backend, run)
        except MissingFile:
            if known is None:
                raise
            file = recover_run(backend, run) or known
        new = change(file)
        write_run(backend, new)
    return new


def files_beside(run: str) -> list[str]:
    """The files that go with a run in other folders than its own, whether they are there or not."""
    return [names.config_file(run), names.data_state_file(run)]


def write_config(backend: Backend, file: RunFile) -> None:
    """Replace the config of a run."""
    backend.replace(names.config_file(file.run), encode_config(file))


def encode_config(file: RunFile) -> bytes:
    """The hyperparameters of a run as YAML, and in a comment all of its run file."""
    fields = {
        "hyperparameters": yaml_value(file.settings),
        "exp_hash": file.run,
        "last_updated": now(),
    }
    lines = [line for key, value in fields.items() for line in block(key, value)]
    lines.append(f"# {escaped(msgspec.json.encode(file).decode())}\n")
    return _with_digest("".join(lines))


def read_config(backend: Reads, run: str) -> RunFile:
    """What a run is, by its config; raises MissingFile, or a DamagedFile that says why."""
    path = names.config_file(run)
    text = _checked(_read(backend, path, 4 * MAX_SIZE), path)
    try:
        file = msgspec.json.decode(text.rsplit(b"\n# ", 1)[-1], type=RunFile)
    except ValueError as error:  # the digest was made to fit
        raise BadField(f"{path}: {error}") from error
    if file.run != run:
        raise BadField(f"{path}: it is that of the run {file.run!r:.40}")
    return file


def recover_run(backend: Reads, run: str) -> RunFile | None:
    """What a run without a sound run file is, by its config; None if that is not sound either."""
    try:
        return read_config(backend, run)
    except StandfastError as error:
        if isinstance(error, FileError) and error.errno in NO_ANSWER:
            raise
        return None


def write_data_state(backend: Backend, run: str, data: Any) -> None:
    """Write which samples a run sees, which of them are discarded, and their tags."""
    text = encode_data_state(data)
    if data is None:
        backend.replace(names.data_state_file(run), text)
    else:
        write_shared(backend, run, names.data_state_file, text)


def encode_data_state(data: Any) -> bytes:
    """A data state as its file has it."""
    return _with_digest("".join(data_states.lines_of(data)))


def check_data_state(backend: Backend, run: str) -> None:
    """Raise MissingFile, or a DamagedFile if the samples of a run are not what was written."""
    path = names.data_state_file(run)
    _checked(_read(backend, path, MAX_DATA_STATE), path)


def read_data_state(backend: Backend, run: str) -> dict[str, Any]:
    """The samples of a run: `uids`, `discarded`, `tags`; `data` has what is no data state.

    Raises MissingFile, or a DamagedFile that says what is wrong.
    """
    path = names.data_state_file(run)
    before, _ = _split(_read(backend, path, MAX_DATA_STATE))
    return data_states.parse(before, path)


def _read(backend: Reads, path: str, most: int) -> bytes:
    text = backend.read(path, most + 1)
    if len(text) > most:
        raise LimitExceeded(f"{path}: it has over {most:,} bytes")
    return text


def _with_digest(text: str) -> bytes:
    encoded = text.encode()
    return encoded + _digest_line(encoded)


def _digest_line(text: bytes) -> bytes:
    return _DIGEST + blake3(text).hexdigest().encode() + b"\n"


def _split(text: bytes) -> tuple[bytes, bytes]:
    """The text and its last line, the digest; which is empty if another program wrote the text."""
    at = len(text) - _LAST_LINE
    return (text[:at], text[at:]) if text[max(0, at) :].startswith(_DIGEST) else (text, b"")


def _checked(text: bytes, path: str) -> bytes:
    """The text before its digest; raises IndexMismatch if it is not what was written."""
    before, last = _split(text)
    if last != _digest_line(before):
        raise IndexMismatch(f"{path}: it does not match its own digest, in its last line")
    return before
