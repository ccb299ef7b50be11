"""Verify a file against the digests it holds."""

from __future__ import annotations

import os
from dataclasses import dataclass

from holdfast.errors import NothingToVerify
from holdfast.files.reader import Progress
from holdfast.verbs.open import TensorFile


@dataclass(frozen=True, slots=True)
class Verified:
    """What was verified, every byte of it."""

    format: str
    tensors: int
    nbytes: int
    """The bytes of the tensors; the header was verified too."""


def verify(path: str | os.PathLike[str], progress: Progress | None = None) -> Verified:
    """Read a whole file and check every byte; raises a DamagedFile that says what is wrong.

    A DigestMismatch names all damaged tensors in `.tensors`. A file that holds no digests
    raises NothingToVerify.
    """
    with TensorFile(path) as file:
        if not file.has_digests:
            raise NothingToVerify(
                f"{file.path} holds no digests; save it with holdfast, and extras=True, to give it "
                "some"
            )
        arrays = file.arrays(progress)
        return Verified(file.format, len(arrays), sum(array.nbytes for array in arrays.values()))
