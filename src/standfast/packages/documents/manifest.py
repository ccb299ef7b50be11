"""The manifest of a package: the digest of each file, what the model is, where it came from."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Final, Self

import msgspec
from blake3 import blake3

from standfast.errors import (
    BadField,
    IndexMismatch,
    LimitExceeded,
    MissingData,
    MissingFile,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.files import disk
from standfast.files.input.file import SourceFile
from standfast.files.input.ranges import SourceRanges
from standfast.files.lines import replace_lines
from standfast.formats.metadata import from_json
from standfast.packages.documents import json_text
from standfast.packages.documents.names import MANIFEST
from standfast.packages.remote.folder import FORMAT as POINTER
from standfast.packages.remote.folder import SAVES
from standfast.packages.remote.places import Folder, opened

LIBRARIES: Final = ("standfast", "numpy", "safetensors", "tokenizers", "torch", "transformers")

_GIT: Final = (
    "git",
    # Neither may run a program that the repository names.
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "--no-optional-locks",
    "status",
    "--porcelain=v2",
    "--branch",
    "--untracked-files=no",
    "--ignore-submodules=dirty",
)
_PATIENCE: Final = 5.0
"""Seconds that git may take: a folder on a disk that does not answer must not hold up a save."""
_ELSEWHERE: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
"""Variables that a git hook is given, and that name another repository than the folder's."""
_REVISION: Final = re.compile(r"^# branch\.oid ([0-9a-f]{40,64})$", re.MULTILINE)


def provenance(checkpoint: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the manifest says of this program, and of the checkpoint if there was one."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": library_versions(),
    }
    if git := git_state(program_folder()):
        found["git"] = git
    if checkpoint is not None:
        found["checkpoint"] = dict(checkpoint)
    return found


def library_versions() -> dict[str, str]:
    """The versions of those of our libraries that are installed; none is imported for it."""
    versions = {}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def program_folder() -> Path:
    """The folder of the running program; the current one if it has no file, or is our own."""
    script = Path(sys.argv[0] if sys.argv else "")
    if script.name == "standfast" or not script.is_file():
        return Path()
    return Path(os.path.realpath(script)).parent


def git_state(folder: Path) -> dict[str, Any] | None:
    """The git revision of a folder, and whether files of it were changed; None if there is none."""
    status = _git_status(folder)
    revision = _REVISION.search(status)
    if revision is None:
        return None
    is_dirty = any(not line.startswith("#") for line in status.splitlines())
    return {"revision": revision[1], "dirty": is_dirty}


def _git_status(folder: Path) -> str:
    """What git says; nothing if there is no git, or none that answers."""
    environment = {key: value for key, value in os.environ.items() if key not in _ELSEWHERE}
    try:
        process = subprocess.Popen(
            _GIT,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        output, _ = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        _end(process)
        return ""
    return output.decode(errors="replace") if process.returncode == 0 else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End git with all that it has started, without waiting for what cannot be ended."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    if process.stdout is not None:
        process.stdout.close()


FORMAT: Final = "standfast package 1"
_NO_DIGEST: Final = "0" * 64
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_BLOCK: Final = 1 << 20
_LARGEST: Final = 16 << 20
"""Bytes of the largest manifest that is read: one of 100,000 files."""
_LONGEST_HEADER: Final = 100_000_000
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class ModelSummary(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """What the weights are, for those who list packages."""

    type: str
    parameters: _Count
    nbytes: _Count
    """The bytes of the tensors, as they lie in the package."""
    dtype: str
    quantization: str | None = None


@dataclass(frozen=True, slots=True)
class FileDigest:
    """The size of a file, and BLAKE3 over it, or over the header that has its digests."""

    size: int
    digest: str
    of_header: bool = False

    def as_dict(self) -> dict[str, Any]:
        """What the manifest says of the file."""
        return {"size": self.size, "header" if self.of_header else "blake3": self.digest}


@dataclass(frozen=True)
class Manifest:
    """What `manifest.json` says."""

    created: str
    files: Mapping[str, FileDigest]
    model: ModelSummary
    provenance: Mapping[str, Any]

    @classmethod
    def read(cls, folder: Folder) -> Self | None:
        """The manifest of a package; None if it has none, a DamagedFile if it is not sound."""
        path = folder / MANIFEST
        try:
            with closing(opened(path)) as file:
                if file.size > _LARGEST:
                    raise LimitExceeded(f"{path}: {file.size:,} bytes, over {_LARGEST:,}")
                text = file.read(0, file.size)
        except MissingFile:
            return None
        return json_text.named(path, lambda: cls._of_text(text))

    @classmethod
    def _of_text(cls, text: bytes) -> Self:
        given = from_json(text, "manifest")
        if given.get("format") == POINTER:
            raise UnsupportedFile(
                "this is a copy of what an object store has: the package is the folder "
                f"{SAVES}/{given.get('folder')!s:.80} in it"
            )
        if given.get("format") != FORMAT:
            raise UnsupportedFile(f"format is {given.get('format')!r:.80}: expected {FORMAT!r}")
        digest = given.get("digest")
        if not isinstance(digest, str) or text.count(digest.encode()) != 1:
            raise BadField("digest should be 64 hexadecimal digits")
        if blake3(text.replace(digest.encode(), _NO_DIGEST.encode())).hexdigest() != digest:
            raise IndexMismatch("the manifest is not the one that was written: its digest differs")
        files, provenance = given.get("files"), given.get("provenance")
        if not isinstance(files, dict) or not isinstance(provenance, dict):
            raise BadField("files and provenance should be objects")
        try:
            model = msgspec.convert(given.get("model"), ModelSummary)
            created = msgspec.convert(given.get("created"), str)
        except msgspec.ValidationError as error:
            raise BadField(f"model or created: {error}") from error
        digests = {name: _file_digest(name, entry) for name, entry in files.items()}
        return cls(created, digests, model, provenance)

    def check_names(self, needed: Iterable[str]) -> None:
        """Raise MissingData for a file that a reader needs and the manifest does not vouch for."""
        for name in needed:
            if name not in self.files:
                raise MissingData(
                    f"{MANIFEST} does not name {name}: it was added to the package later"
                )

    def write(self, folder: Path) -> None:
        """Put it into a folder, durably."""
        content = {
            "created": self.created,
            "digest": _NO_DIGEST,
            "files": {name: entry.as_dict() for name, entry in self.files.items()},
            "format": FORMAT,
            "model": msgspec.to_builtins(self.model),
            "provenance": dict(self.provenance),
        }
        text = json_text.text(content).encode()
        digest = blake3(text + b"\n").hexdigest()
        signed = text.replace(_NO_DIGEST.encode(), digest.encode(), 1)
        replace_lines(folder / MANIFEST, [signed], disk.LOCAL)


def digest_of(path: str | os.PathLike[str]) -> FileDigest:
    """The digest of a file as it is now: of a safetensors file that of its header."""
    with closing(opened(path)) as file:
        of_header = file.path.endswith(".safetensors")
        end = _header_end(file) if of_header else file.size
        hasher = blake3()
        for start in range(0, end, _BLOCK):
            hasher.update(file.read(start, min(_BLOCK, end - start)))
        return FileDigest(file.size, hasher.hexdigest(), of_header)


def _header_end(file: SourceFile | SourceRanges) -> int:
    length = int.from_bytes(file.read(0, 8), "little") if file.size >= 8 else _LONGEST_HEADER
    if length > min(_LONGEST_HEADER, file.size - 8):
        raise TruncatedFile(f"{file.path}: it ends before its header does")
    return 8 + length


def _file_digest(name: str, entry: Any) -> FileDigest:
    if "/" in name or name in ("", ".", "..", MANIFEST):
        raise BadField(f"files[{name!r:.80}] is not the name of a file in the folder")
    if isinstance(entry, dict):
        size, of_header = entry.get("size"), "header" in entry
        digest = entry.get("header" if of_header else "blake3")
        if (
            type(size) is int
            and 0 <= size < 1 << 63
            and isinstance(digest, str)
            and _DIGEST.fullmatch(digest)
        ):
            return FileDigest(size, digest, of_header)
    raise BadField(f"files[{name!r:.80}] should have a size and a digest")
