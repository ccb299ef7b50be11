"""One experiment of weightslab, and the files in which it lies."""

from __future__ import annotations

import errno
import os
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

from standfast.errors import BadField, UnreadableFile
from standfast.files.input.file import SourceFile
from standfast.files.yaml_text import MAX_BYTES, read_yaml
from standfast.tensorfile.importers.contents import Found, shown
from standfast.tensorfile.importers.values import as_part, read_content, report
from standfast.tensorfile.importers.weightslab_data import as_data_state, read_snapshot
from standfast.tensorfile.open import TensorFile
from standfast.tensors import TensorSpec

_MODEL: Final = "model_state_dict."


@dataclass(frozen=True)
class Experiment:
    """What weightslab calls an experiment, and a store a run."""

    hash: str
    """All 24 characters of it."""
    name: str | None
    created: str | None
    """As the manifest has it: in ISO 8601, by the clock on the wall."""
    last_used: str | None
    checkpoints: dict[int, Path]
    """The files of weights by their steps, in the order of these."""
    root: Path

    def config(self) -> dict[str, Any] | None:
        """Its hyperparameters; None if there is no file of them."""
        path = self._file("HP", self.hash[:8], "config.yaml")
        if path is None:
            return None
        content = read_mapping(path)
        config = content.get("hyperparameters")
        if not isinstance(config, dict):
            raise BadField(
                f"{shown(path)}: expected a mapping under 'hyperparameters', found "
                f"{type(config).__name__}"
            )
        return config

    def data_state(self) -> dict[str, Any] | None:
        """Its samples: `uids`, `discarded`, `tags`; None if there is no file of them.

        A table of another shape is under `data`, as it is. Raises UnsupportedFile if the table is
        in a Parquet file and pyarrow is not installed.
        """
        path = self._file("data", self.hash[-8:], "data_state.yaml")
        if path is not None:
            return as_data_state(read_mapping(path), path)
        path = self._file("data", self.hash[-8:], "data_snapshot.json")
        return None if path is None else read_snapshot(path, partial(inside, self.root))

    def model(self, step: int) -> dict[str, TensorSpec] | None:
        """What its model is made of, by the weights of a checkpoint; None if it has none."""
        with TensorFile(self.checkpoints[step], tensors_only=True) as file:
            names = [name for name in file if name.startswith(_MODEL)]
            return {name.removeprefix(_MODEL): file.spec(name) for name in names} or None

    def file_of(self, step: int) -> tuple[int, str]:
        """The bytes of a checkpoint's file, and when it was written; "" if no calendar has that."""
        path = self.checkpoints[step]
        try:
            status = os.stat(path)
        except OSError as error:
            raise UnreadableFile(error.errno, f"{shown(path)}: {error.strerror}") from error
        try:
            return status.st_size, datetime.fromtimestamp(status.st_mtime, UTC).isoformat()
        except (ValueError, OverflowError, OSError):
            return status.st_size, ""

    def found(self, step: int) -> Found:
        """One of its checkpoints, which is not read yet."""
        path = self.checkpoints[step]
        left_out: dict[str, str] = {}
        return Found(step, None, {}, partial(_state, path, left_out), (path,), left_out)

    def _file(self, kind: str, part: str, what: str) -> Path | None:
        """The file of this experiment, in either layout."""
        for name in (self.hash, part):
            path = self.root / "checkpoints" / kind / name / f"{name}_{what}"
            if os.path.lexists(path):
                return inside(self.root, path)
        return None


def inside(root: Path, path: Path) -> Path:
    """The path; raises UnreadableFile if links lead out of the root."""
    if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root)):
        raise UnreadableFile(
            errno.EPERM, f"{shown(path)} is a link out of the root, which is not followed"
        )
    return path


def read_mapping(path: Path) -> dict[Any, Any]:
    """The mapping in a YAML file."""
    with closing(SourceFile(path)) as file:
        # One byte more than is read at most, so that the reader says so.
        text = file.read(0, min(file.size, MAX_BYTES + 1))
    content = read_yaml(text, shown(path))
    if not isinstance(content, dict):
        raise BadField(f"{shown(path)}: expected a mapping, found {type(content).__name__}")
    return content


def _state(path: Path, left_out: dict[str, str]) -> dict[str, Any]:
    content = read_content(path, tensors_only=True)
    state, missing = content.tree, content.left_out
    if content.flat or not isinstance(state, dict):
        state, missing = as_part(content, _MODEL.removesuffix("."))
    report(missing, left_out)
    return dict(state)
