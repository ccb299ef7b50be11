"""Verify a file against the digests it holds."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

from standfast.errors import DigestMismatch, NothingToVerify
from standfast.files.input.ranges import SourceRanges
from standfast.files.reader import Progress
from standfast.tensorfile.open import TensorFile

_PART: Final = 256 << 20
"""Bytes in memory at once of a file that is not mapped, or one tensor if that is larger."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What was verified, every byte of it."""

    format: str
    tensors: int
    nbytes: int
    """The bytes of the tensors; the header was verified too."""


def verify(
    path: str | os.PathLike[str] | SourceRanges, progress: Progress | None = None
) -> Verified:
    """Read a whole file and check every byte; raises a DamagedFile that says what is wrong.

    A DigestMismatch names all damaged tensors in `.tensors`. A file that holds no digests
    raises NothingToVerify.
    """
    with TensorFile(path) as file:
        if not file.has_digests:
            raise NothingToVerify(
                f"{file.path} holds no digests; save it with standfast, and extras=True, to give "
                "it some"
            )
        sizes: list[int] = []
        damaged: list[DigestMismatch] = []
        for names in [None] if file.is_mapped else file.turns(_PART):
            try:
                sizes += [array.nbytes for array in file.arrays(progress, names).values()]
            except DigestMismatch as error:
                damaged.append(error)
        if damaged:
            raise _joined(damaged)
        return Verified(file.format, len(sizes), sum(sizes))


def _joined(damaged: list[DigestMismatch]) -> DigestMismatch:
    if len(damaged) == 1:
        return damaged[0]
    tensors = tuple(name for error in damaged for name in error.tensors)
    return DigestMismatch(f"{damaged[0]}; {len(tensors):,} tensors are damaged in all", tensors)
