"""Which packages lie in a folder, the newest first, and which of them are broken."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

from holdfast.errors import ChangedFile, HoldfastError, MissingFile, UnreadableFile
from holdfast.packages.checking import check_links
from holdfast.packages.inspection import Entries, check_manifest, summary_of
from holdfast.packages.json_text import read_object
from holdfast.packages.manifest import Manifest
from holdfast.packages.names import GENERATION_INFO, has_weights, is_package
from holdfast.packages.settled import while_unchanged

_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_NAMED: Final = re.compile(r"_(\d{8}_\d{6})$")


@dataclass(frozen=True)
class ModelInfo:
    """A package as a list shows it; what could not be found out is None."""

    name: str
    path: Path
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

    Small files and the headers of the weights are checked against the manifest, all others by
    their sizes alone: `verify_package` reads every byte. Broken packages are listed as broken.

    >>> [model.name for model in list_saved_models("models") if model.integrity == "whole"]
    """
    home = Path(os.fsdecode(models_dir))
    entries = while_unchanged(home, lambda: _entries(home))
    # What is hidden is nobody's model: a save that was killed leaves such folders too.
    names = [name for name, entry in entries.items() if name[0] != "." and _is_folder(entry)]
    folders = [] if has_weights(entries) else [home / name for name in sorted(names)]
    found = [info for folder in folders if (info := _look_at_one(folder))]
    if not found and is_package(entries):
        found = [info for info in [_look_at_one(Path(os.path.abspath(home)))] if info]
    return sorted(found, key=lambda info: info.creation_date, reverse=True)  # ties stay by name


def _entries(folder: Path) -> dict[str, os.DirEntry[str]]:
    try:
        with os.scandir(folder) as listed:
            return {entry.name: entry for entry in listed}
    except FileNotFoundError as error:
        raise MissingFile(error.errno, f"there is no folder {folder}") from error
    except (OSError, ValueError) as error:
        number = getattr(error, "errno", None) or errno.EINVAL
        reason = getattr(error, "strerror", None) or error
        raise UnreadableFile(number, f"cannot list {folder}: {reason}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle
        return False


def _look_at_one(folder: Path) -> ModelInfo | None:
    """What `_look` gives, of one and the same package: it may be replaced while it is read."""
    try:
        return while_unchanged(folder, lambda: _look(folder))
    except ChangedFile as error:
        # Not two looks are of the same one, and of what is mixed nobody can say that it is broken.
        info = _look(folder)
        return info and replace(info, integrity="unverified", problem=_reason(error, folder))


def _look(folder: Path) -> ModelInfo | None:
    """A folder among others as a list shows it; None if it is no package."""
    try:
        entries = _entries(folder)
    except MissingFile:  # deleted this moment
        return None
    except UnreadableFile as error:
        date = _date_in(folder.name) or _EPOCH
        return ModelInfo(folder.name, folder, date, problem=_reason(error, folder))
    # By its name, a folder is one that may have lost everything.
    is_meant = is_package(entries) or _date_in(folder.name)
    return _model_info(folder, entries) if is_meant else None


def _model_info(folder: Path, entries: Entries) -> ModelInfo:
    files = {name: entry for name, entry in entries.items() if not _is_folder(entry)}
    generation: dict[str, Any] = {}
    manifest, summary, problem = None, None, ""
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
    except (HoldfastError, OSError) as error:
        problem = _reason(error, folder)
    statuses = [status for entry in files.values() if (status := _status(entry))]
    return ModelInfo(
        name=folder.name,
        path=folder,
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
        integrity="broken" if problem else "unverified" if manifest is None else "whole",
        problem=problem,
    )


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat()
    except OSError:  # a link to nothing
        return None


def _reason(error: Exception, folder: Path) -> str:
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


def _newest(statuses: Iterable[os.stat_result]) -> datetime:
    latest = max((status.st_mtime for status in statuses), default=0.0)
    try:
        return datetime.fromtimestamp(latest, UTC)
    except (ValueError, OverflowError, OSError):  # a time that no calendar has
        return _EPOCH
