"""What a model is made of, whatever its weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from standfast.errors import UnstableValue, UnsupportedDType, UnsupportedTensor
from standfast.identity.canonical import Canonical
from standfast.identity.names import qualified_name
from standfast.identity.reduction import Named, reduced
from standfast.tensors import Packed, source_of
from standfast.tensors.frameworks import describe


def canonical_model(model: Any) -> bytes:
    """The canonical bytes of a model: a framework's, tensors by name, or any plain value.

    Tensors count by dtype and shape alone, wherever they stand.
    """
    return Canonical("model", reduce=_described).encode(model)


def _described(value: Any) -> Any:
    if isinstance(value, type):
        return Named(qualified_name(value))  # of a model built in a function or a notebook too
    try:
        if isinstance(value, np.ndarray | Packed):
            return source_of(value).spec
        description = describe(value)
    except (UnsupportedTensor, UnsupportedDType) as error:
        raise UnstableValue(f"cannot be described: {error}") from error
    return reduced(value) if description is None else description
