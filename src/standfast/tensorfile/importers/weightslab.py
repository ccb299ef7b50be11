"""Roots that weightslab wrote: what their manifest and the names of their files say.

Folders are named by all 24 characters of an experiment's hash, or by the 8 of the part that lies
in them: HP, MODEL or DATA. Nothing in a root is trusted, and nothing outside of it is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from standfast.errors import DamagedFile, FileError, UnreadableFile
from standfast.files.paths import check_local
from standfast.tensorfile.importers.contents import Ignored, entries, shown
from standfast.tensorfile.importers.weightslab_experiment import Experiment as Experiment
from standfast.tensorfile.importers.weightslab_experiment import inside, read_mapping

_HASH: Final = re.compile("[0-9a-z]{24}")
_FOLDER: Final = re.compile("[0-9a-z]{24}|[0-9a-z]{8}")
_WEIGHTS: Final = re.compile(r"([0-9a-z]{24})_step_([0-9]{6,15})\.pt")


@dataclass(frozen=True)
class Root:
    """A root that weightslab wrote."""

    path: Path
    experiments: dict[str, Experiment]
    """By their hashes, the one that was used last first."""
    latest: str | None
    """The hash of the experiment that is the current one."""
    problems: list[Ignored] = field(default_factory=list)
    """What could not be read or was not taken, and why; the names of the files count then."""


def read_root(path: str | os.PathLike[str]) -> Root:
    """What there is in a root; raises MissingFile or UnreadableFile if it is none.

    Only names and the manifest are read. A manifest that is damaged is a problem of the root, and
    what it would have said is not known.

    >>> root = read_root("experiments")
    >>> root.experiments[root.latest].checkpoints
    {100: PosixPath('experiments/checkpoints/models/b5a79a78/c2546cf6…_step_000100.pt')}
    """
    check_local(path)
    root = Path(os.fsdecode(path))
    problems: list[Ignored] = []
    checkpoints: dict[str, dict[int, Path]] = {}
    for weights, file in _weights(root, problems):
        steps = checkpoints.setdefault(weights[1], {})
        if steps.setdefault(int(weights[2]), file) is not file:
            problems.append((file, f"{shown(steps[int(weights[2])])} is of the same step"))
    manifest = _manifest(root, problems)
    listed = _listed(manifest, root, problems)
    experiments = [
        _experiment(root, hash, listed.get(hash, {}), checkpoints.get(hash, {}))
        for hash in sorted({*checkpoints, *listed})
    ]
    experiments.sort(key=_used, reverse=True)
    known = {experiment.hash: experiment for experiment in experiments}
    latest = manifest.get("latest_hash")
    if not isinstance(latest, str) or latest not in known:
        latest = next((each.hash for each in experiments if each.checkpoints), None)
    return Root(root, known, latest, problems)


def _weights(root: Path, problems: list[Ignored]) -> Iterator[tuple[re.Match[str], Path]]:
    """The files that are named as weights are."""
    models = root / "checkpoints" / "models"
    for name, folder in entries(models).folders.items():
        if not _FOLDER.fullmatch(name):
            continue
        try:
            files = entries(inside(root, folder)).files
        except FileError as error:
            problems.append((folder, error.strerror or str(error)))
            continue
        for file in files.values():
            weights = _WEIGHTS.fullmatch(file.name)
            try:
                if weights:
                    yield weights, inside(root, file)
            except FileError as error:
                problems.append((file, error.strerror or str(error)))


def _manifest(root: Path, problems: list[Ignored]) -> dict[Any, Any]:
    path = root / "checkpoints" / "manifest.yaml"
    try:
        return read_mapping(inside(root, path))
    except (FileError, DamagedFile) as error:
        problems.append((path, getattr(error, "strerror", None) or str(error)))
        return {}


def _listed(
    manifest: dict[Any, Any], root: Path, problems: list[Ignored]
) -> dict[str, dict[Any, Any]]:
    """The experiments that the manifest has."""
    listed = manifest.get("experiments") or {}
    path = root / "checkpoints" / "manifest.yaml"
    if not isinstance(listed, dict):
        problems.append((path, f"'experiments' is a {type(listed).__name__}, not a mapping"))
        return {}
    found = {}
    for hash, entry in listed.items():
        if isinstance(hash, str) and _HASH.fullmatch(hash) and isinstance(entry, dict):
            found[hash] = entry
        else:
            problems.append((path, f"{shown(hash)} is no experiment: a hash has 24 characters"))
    return found


def _experiment(
    root: Path, hash: str, entry: dict[Any, Any], checkpoints: dict[int, Path]
) -> Experiment:
    return Experiment(
        hash=hash,
        name=_text(entry.get("experiment_name")),
        created=_time(entry.get("created")),
        last_used=_time(entry.get("last_used")),
        checkpoints=dict(sorted(checkpoints.items())),
        root=root,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _time(value: Any) -> str | None:
    try:
        datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None
    return str(value)


def _used(experiment: Experiment) -> tuple[str, str]:
    """When it was used last, as far as that is known."""
    known = experiment.last_used or experiment.created or ""
    if not known and experiment.checkpoints:
        with suppress(UnreadableFile):  # it was deleted this moment
            known = max(experiment.file_of(step)[1] for step in experiment.checkpoints)
    return known, experiment.hash
