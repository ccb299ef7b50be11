"""The packages in a folder, newest first, and which of them are broken.

Weights are not read, only their headers."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from standfast.errors import (
    BadField,
    ChangedFile,
    DigestMismatch,
    FileError,
    MissingData,
    MissingFile,
    StandfastError,
    UnreadableFile,
    shortened,
)
from standfast.files.layout import Index
from standfast.files.threads import Threads
from standfast.formats.reader import Options
from standfast.formats.safetensors import file as safetensors
from standfast.packages.documents.json_text import named, read_object
from standfast.packages.documents.manifest import FileDigest, Manifest, ModelSummary, digest_of
from standfast.packages.documents.names import (
    CONFIG,
    GENERATION_INFO,
    INDEX,
    MANIFEST,
    MODEL,
    TOKENIZER,
    has_weights,
    is_package,
)
from standfast.packages.model.config import MODEL_TYPE, plain_name
from standfast.packages.remote.folder import RemoteFolder, RemotePath, Status
from standfast.packages.remote.places import (
    Entries,
    Entry,
    File,
    Folder,
    entries_of,
    folder_at,
    opened,
    shown_path,
    while_unchanged,
)
from standfast.packages.verify import check_links, check_size
from standfast.packages.weights.quantized import dequantized_specs
from standfast.packages.weights.weights import SCHEME, find_weights

SMALL: Final = 64 << 10
"""Bytes of the largest file that is read as a whole."""


def check_manifest(folder: Folder, entries: Entries, manifest: Manifest) -> None:
    """Raise a DamagedFile unless the files are those of the manifest, as far as a glance can tell.

    Files up to SMALL and the headers of the weights are compared by their digests, others by their
    sizes.
    """
    weights, places = _weights(folder, entries)
    manifest.check_names((CONFIG, TOKENIZER, *weights, *([INDEX] if places else [])))
    for name, expected in manifest.files.items():
        _check_file(name, entries.get(name), expected)


def summary_of(folder: Folder, entries: Entries) -> ModelSummary:
    """What the headers of the weights say, in a package without a manifest."""
    weights, places = _weights(folder, entries)
    kind = read_object(folder / CONFIG).get("model_type", MODEL_TYPE)
    if not isinstance(kind, str):
        raise BadField(f"{CONFIG}: model_type is {shortened(repr(kind))}: it must be a text")
    indices = {name: _index(folder / name) for name in weights}
    _check_places(indices, places)
    counts = Counter[str]()
    for index in indices.values():
        for name, dtype, shape in _tensors(index):
            if kind != MODEL_TYPE or plain_name(name) is not None:
                counts[dtype] += math.prod(shape)
    return ModelSummary(
        type=kind,
        parameters=counts.total(),
        nbytes=sum(int(index.sizes.sum()) for index in indices.values()),
        dtype=max(counts, key=lambda dtype: counts[dtype], default=""),
        quantization="int8" if any(map(_scheme, indices.values())) else None,
    )


def _weights(folder: Folder, entries: Entries) -> tuple[list[str], dict[str, str] | None]:
    """The files of the weights, and the index if there is one; raises MissingData.

    It is raised for any file without which there is no model.
    """
    for name in (CONFIG, TOKENIZER):
        if name not in entries:
            raise MissingData(f"{name} is missing")
    if MODEL in entries:
        return [MODEL], None
    paths, places = find_weights(folder)
    return [path.name for path in paths], places


def _index(path: File) -> Index:
    with closing(opened(path)) as file:
        return named(path, lambda: safetensors.read_index(file.read, file.size, Options()))


def _scheme(index: Index) -> Any:
    """How the tensors of a file were quantized; None if they were not."""
    return index.metadata.get(SCHEME)


def _tensors(index: Index) -> Iterable[tuple[str, str, Sequence[int]]]:
    """The names, dtypes and shapes of the tensors, as they were before they were quantized."""
    if _scheme(index) is None:
        return zip(index.rows, index.dtypes, index.shapes, strict=True)
    specs = {name: index.spec(row) for name, row in index.rows.items()}
    before = dequantized_specs(specs, _scheme(index))
    return [(name, spec.dtype, spec.shape) for name, spec in before.items()]


def _check_places(indices: Mapping[str, Index], places: Mapping[str, str] | None) -> None:
    for tensor, shard in (places or {}).items():
        if tensor not in indices[shard].rows:
            raise MissingData(
                f"{shard} lacks the tensor {shortened(tensor)!r}, which {INDEX} names"
            )


def _check_file(name: str, entry: Entry | None, expected: FileDigest) -> None:
    if entry is None:
        raise MissingData(f"{name} is missing, which {MANIFEST} names")
    try:
        size = entry.stat().st_size
    except FileNotFoundError:
        raise MissingData(f"{name} is a link to a file that is missing") from None
    check_size(name, size, expected)
    if (expected.of_header or size <= SMALL) and digest_of(entry.path) != expected:
        what = "its header is" if expected.of_header else "its bytes are"
        raise DigestMismatch(f"{name} is damaged: {what} not what was saved", ())


_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_AT_ONCE: Final = 16
_NAMED: Final = re.compile(r"_(\d{8}_\d{6})$")


@dataclass(frozen=True)
class ModelInfo:
    """A package as a list shows it; what could not be found out is None."""

    name: str
    path: Path | RemotePath
    """At a URL, one that joins by `/` and is taken by all functions of packages."""
    creation_date: datetime
    """By `generation_info.json`, else the folder's name, else the time when it was written."""
    files: tuple[str, ...] = ()
    nbytes: int = 0
    """The bytes of all files."""
    model_type: str | None = None
    model_size: str | None = None
    """The label that `generation_info.json` has: small, 12M."""
    parameters: int | None = None
    dtype: str | None = None
    """That of most weights; of quantized ones, before they were."""
    quantization: str | None = None
    integrity: Literal["whole", "unverified", "broken"] = "broken"
    """Whole as far as can be told without reading the weights; unverified without a manifest.

    One that is replaced all the time while it is looked at is unverified too.
    """
    problem: str = ""
    """Why it is broken, or could not be read at rest."""


def list_saved_models(models_dir: str | os.PathLike[str]) -> list[ModelInfo]:
    """The packages in a folder, the newest first; of a folder that is a package, that one.

    A URL may stand for the folder.

    Small files and the headers of the weights are checked against the manifest, all others by
    their sizes alone: `verify_package` reads every byte. Broken packages are listed as broken.

    >>> [model.name for model in list_saved_models("models") if model.integrity == "whole"]
    """
    home = folder_at(models_dir)
    entries = while_unchanged(home, lambda: entries_of(home))
    # What is hidden is nobody's model: a save that was killed leaves such folders too.
    names = [name for name, entry in entries.items() if name[0] != "." and _is_folder(entry)]
    folders = [] if has_weights(entries) else [_below(home, name) for name in sorted(names)]
    found = _look_at_all(folders)
    if not found and is_package(entries):
        found = _look_at_all([Path(os.path.abspath(home)) if isinstance(home, Path) else home])
    return sorted(found, key=lambda info: info.creation_date, reverse=True)  # ties stay by name


def _below(home: Folder, name: str) -> Folder:
    return home / name if isinstance(home, Path) else home.folder(name)


def _look_at_all(folders: Sequence[Folder]) -> list[ModelInfo]:
    """Those that are packages; at a URL several are looked at together, because each waits."""
    if any(isinstance(folder, RemoteFolder) for folder in folders):
        with Threads(_AT_ONCE) as pool:
            looked = list(pool.map(_look_at_one, folders))
    else:
        looked = [_look_at_one(folder) for folder in folders]
    return [info for info in looked if info]


def _is_folder(entry: Entry) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _look_at_one(folder: Folder) -> ModelInfo | None:
    """What `_look` gives, of one and the same package: it may be replaced while it is read."""
    try:
        return while_unchanged(folder, lambda: _look(folder))
    except ChangedFile as error:
        # Not two looks are of the same one, and of what is mixed nobody can say that it is broken.
        info = _look(folder)
        return info and replace(info, integrity="unverified", problem=_reason(error, folder))


def _look(folder: Folder) -> ModelInfo | None:
    """A folder among others as a list shows it; None if it is no package."""
    try:
        entries = entries_of(folder)
    except MissingFile:  # deleted just now
        return None
    except UnreadableFile as error:
        date = _date_in(folder.name) or _EPOCH
        return ModelInfo(
            folder.name,
            shown_path(folder),
            date,
            integrity="unverified" if _was_not_fetched(error, folder) else "broken",
            problem=_reason(error, folder),
        )
    # By its name, a folder is one that may have lost everything.
    is_meant = is_package(entries) or _date_in(folder.name)
    return _model_info(folder, entries) if is_meant else None


def _model_info(folder: Folder, entries: Entries) -> ModelInfo:
    files = {name: entry for name, entry in entries.items() if not _is_folder(entry)}
    generation: dict[str, Any] = {}
    manifest, summary, problem, is_known = None, None, "", True
    try:
        check_links(folder, entries.values())
        if GENERATION_INFO in files:
            generation = read_object(folder / GENERATION_INFO)
        manifest = Manifest.read(folder)
        if manifest is None:
            summary = summary_of(folder, files)
        else:
            summary = manifest.model
            check_manifest(folder, files, manifest)
    except (StandfastError, OSError) as error:
        problem = _reason(error, folder)
        is_known = not _was_not_fetched(error, folder)
    statuses = [status for entry in files.values() if (status := _status(entry))]
    return ModelInfo(
        name=folder.name,
        path=shown_path(folder),
        creation_date=_date(generation.get("creation_date"))
        or _date_in(folder.name)
        or _date(manifest and manifest.created)
        or _newest(statuses),
        files=tuple(sorted(files)),
        nbytes=sum(status.st_size for status in statuses),
        model_type=summary.type if summary else None,
        model_size=_text(generation.get("model_size")),
        parameters=summary.parameters if summary else None,
        dtype=summary.dtype if summary else None,
        quantization=summary.quantization if summary else None,
        integrity=_integrity(problem, is_known and manifest is not None, is_known),
        problem=problem,
    )


def _integrity(
    problem: str, has_manifest: bool, is_known: bool
) -> Literal["whole", "unverified", "broken"]:
    if problem and is_known:
        return "broken"
    return "whole" if has_manifest else "unverified"


def _was_not_fetched(error: Exception, folder: Folder) -> bool:
    """Whether an object store did not answer, of which a package is not broken."""
    is_remote = isinstance(folder, RemoteFolder)
    return is_remote and isinstance(error, FileError) and not isinstance(error, MissingFile)


def _status(entry: Entry) -> Status | None:
    try:
        status = entry.stat()
        return Status(status.st_size, status.st_mtime)
    except OSError:  # a link to nothing
        return None


def _reason(error: Exception, folder: Folder) -> str:
    """The error in a sentence, without the folder, which is named beside it."""
    reason = str(getattr(error, "strerror", None) or error)
    return reason.replace(f"{folder}{os.sep}", "")


def _date_in(name: str) -> datetime | None:
    """When a folder of this name was made, in local time."""
    found = _NAMED.search(name)
    return _date(found[1].replace("_", "T")) if found else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _date(value: Any) -> datetime | None:
    """A date of ISO 8601, with the local time zone if it has none; None if it is no date."""
    try:
        date = datetime.fromisoformat((_text(value) or "").replace(" UTC", "+00:00"))
        return date if date.tzinfo else date.astimezone()
    except (ValueError, OverflowError):
        return None


def _newest(statuses: Iterable[Status]) -> datetime:
    latest = max((status.st_mtime for status in statuses), default=0.0)
    try:
        return datetime.fromtimestamp(latest, UTC)
    except (ValueError, OverflowError, OSError):  # a time that no calendar has
        return _EPOCH
