"""Convert a file to another format, and prove it."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from standfast.errors import AlreadyExists, DigestMismatch, WriteFailed, shortened
from standfast.files import disk
from standfast.files.digests import (
    DIGEST,
    chunk_counts,
    tensor_digest,
)
from standfast.files.writer import write_file
from standfast.tensorfile.open import TensorFile
from standfast.tensorfile.portable import portable
from standfast.tensorfile.save import cast_sources, chosen_format
from standfast.tensors import Source
from standfast.tensors.cast import Cast


@dataclass(frozen=True, slots=True)
class Converted:
    """What was converted; each tensor's digest was found equal on both sides."""

    source: str
    """The name of the old format."""
    target: str
    """The name of the new one."""
    digests: Mapping[str, str]
    """The digest of each tensor, as it is in the new file."""
    nbytes: int
    verified: bool
    """Whether the old file held digests, and so was itself proven to be what was saved."""
    casts: Sequence[Cast]
    """The tensors that are not the same in the new file."""
    metadata: Sequence[str]
    """What became of metadata that is not the same in the new file, a sentence each."""


def convert(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: str | None = None,
    cast: bool = False,
    extras: bool = True,
    names: Sequence[str] | None = None,
    tensors_only: bool = False,
    replace: bool = False,
) -> Converted:
    """Convert a file to another format: by the suffix of `target`, or by `format`.

    A file that is there already is replaced only with `replace=True`; else AlreadyExists is raised.

    It streams, so its memory does not grow with the file. The new file is read back from the
    disk, and takes its name only when each tensor has the digest that it has in the old one,
    or, with `cast=True`, that it has once cast. The other arguments are those of `save` and
    `open`.

    >>> standfast.convert("model.pt", "model.safetensors").casts
    []
    """
    if not isinstance(target, str | bytes | os.PathLike):
        raise WriteFailed(errno.EINVAL, f"{target!r} is no path; a conversion is read back")
    kind = chosen_format(path := os.fsdecode(target), format)
    if not replace and os.path.lexists(target):
        raise AlreadyExists(errno.EEXIST, f"{path} exists: replace=True or --yes replaces it")
    with TensorFile(source, names=names, tensors_only=tensors_only) as file:
        sources = [(name, file.source(name)) for name in file]
        casts: list[Cast] = []
        if cast:
            sources, casts = cast_sources(sources, kind)
        for each in casts:
            file.check(each.name)  # now, for what will be hashed are not its own bytes
        metadata, changes = _metadata(file, kind, cast=cast, extras=extras)
        changes += [f"{path}: a {what}, left out" for path, what in file.left_out.items()]
        layout = kind.layout([(name, each.spec) for name, each in sources], metadata, extras)
        proof = Proof(file, sources, {each.name for each in casts})
        file.expect_in_order()
        write_file(
            os.fsdecode(target), layout, [each for _, each in sources], disk.LOCAL, proof.check
        )
        return Converted(
            source=file.format,
            target=kind.NAME,
            digests=proof.digests,
            nbytes=sum(each.spec.nbytes for _, each in sources),
            verified=file.has_digests,
            casts=casts,
            metadata=changes,
        )


def _metadata(
    file: TensorFile, kind: Any, *, cast: bool, extras: bool
) -> tuple[dict[str, Any] | bytes, list[str]]:
    if file.format == kind.NAME and file.metadata_text is not None:
        return file.metadata_text, []
    return portable(file.metadata, kind, cast=cast, extras=extras)


class Proof:
    """Compares what was read with what was written, tensor by tensor."""

    def __init__(
        self, file: TensorFile, sources: Sequence[tuple[str, Source]], casts: set[str]
    ) -> None:
        self._file = file
        self._sources = dict(sources)
        self._casts = casts
        self.digests: dict[str, str] = {}

    def check(self, written: Path, chunks: bytes) -> None:
        """Raise unless the old file is what was saved and the new one holds the same."""
        read = _by_tensor(self._sources, chunks)
        self._file.check_unchanged()
        stored = self._file.stored_digests()
        self._require(
            [name for name in stored if name not in self._casts and stored[name] != read[name]],
            f"{self._file.path}: it does not match the digests that were saved with it",
        )
        with TensorFile(written, names=list(self._sources)) as new:
            again = new.digests_on_disk()
            self._require(
                [name for name in {**read, **again} if read.get(name) != again.get(name)]
                or [name for name in again if not self._same_spec(name, new)],
                "the new file does not hold what was written to it",
            )
        self.digests = {name: tensor_digest(read[name]).hex() for name in self._sources}

    def _same_spec(self, name: str, new: TensorFile) -> bool:
        old = self._sources[name].spec
        # A file of sections knows them by their bytes; their dtype is how we show them.
        return new.spec(name) == old or (
            new.format == "sunc" and new.spec(name).nbytes == old.nbytes
        )

    @staticmethod
    def _require(differing: list[str], otherwise: str) -> None:
        if differing:
            more = f" and {len(differing) - 1} more" if len(differing) > 1 else ""
            raise DigestMismatch(
                f"{otherwise}: tensor {shortened(differing[0])!r}{more}; nothing was converted",
                tuple(differing),
            )


def _by_tensor(sources: Mapping[str, Source], chunks: bytes) -> dict[str, bytes]:
    sizes = np.fromiter((source.spec.nbytes for source in sources.values()), np.int64)
    ends = (np.cumsum(chunk_counts(sizes)) * DIGEST).tolist()
    return {name: chunks[a:b] for name, a, b in zip(sources, [0, *ends], ends, strict=False)}
