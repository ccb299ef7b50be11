"""Load all tensors of a file, verified."""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any, BinaryIO

from holdfast.errors import NotVerified
from holdfast.tensors import framework as framework_named
from holdfast.verbs.open import TensorFile


def load(
    source: str | os.PathLike[str] | BinaryIO,
    framework: str = "numpy",
    verify: bool = True,
    mapped: bool | None = None,
    *,
    names: Sequence[str] | None = None,
    tensors_only: bool = False,
) -> dict[str, Any]:
    """Load all tensors of a file as writable arrays, or as tensors of another framework.

    Every byte is checked against the digests in the file; one that holds none loads with a
    NotVerified warning. The tensors lie in a private mapping of the file: what is written to
    them stays in memory. `mapped=False` reads them into fresh memory instead, which is slower
    and does not care what becomes of the file. A binary stream is read as far as its content
    reaches. `names` and `tensors_only` are those of `open`.

    >>> weights = holdfast.load("model.safetensors", framework="torch")
    """
    adapter = None if framework == "numpy" else framework_named(framework)
    with TensorFile(
        source,
        mapped=mapped,
        writable=True,
        verify=verify,
        names=names,
        tensors_only=tensors_only,
    ) as file:
        arrays = file.arrays()
        if verify and not file.has_digests:
            checked = (
                "only its CRC-32 sums were checked" if file.has_crcs else "nothing was verified"
            )
            warnings.warn(
                f"{file.path} holds no digests: it was loaded, but {checked}",
                NotVerified,
                stacklevel=2,
            )
        if adapter is None:
            return arrays
        return {name: adapter.tensor(array, file.spec(name)) for name, array in arrays.items()}
