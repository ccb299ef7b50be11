"""What every format refuses to write, before a byte is written."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from typing import Final

from standfast.errors import BadName, DuplicateName, UnsupportedDType, UnsupportedShape, shortened
from standfast.tensors import TensorSpec

MAX_NAME: Final = 65_535
"""The longest name, in bytes, in every format."""
MAX_RANK: Final = 64
"""As many dimensions as NumPy has."""
MAX_SIZE: Final = 1 << 58
"""The most bytes that the dimensions of a tensor may stand for, an empty one's too."""


def refuse(
    tensors: Sequence[tuple[str, TensorSpec]],
    format: str,
    dtypes: Collection[str],
    max_rank: int = MAX_RANK,
    reserved: Collection[str] = (),
) -> None:
    """Raise, with the tensor named, for what the format cannot hold."""
    _refuse_names(tensors, reserved)
    for name, spec in tensors:
        if spec.dtype not in dtypes:
            raise UnsupportedDType(
                f"tensor {name!r}: {format} has no dtype {spec.dtype}; cast=True saves it as "
                "another where there is one that fits"
            )
        if math.prod(filter(None, spec.shape)) * spec.kind.numpy.itemsize > MAX_SIZE:
            raise UnsupportedShape(f"tensor {name!r}: no array can have {list(spec.shape)}")
        if len(spec.shape) > max_rank:
            raise UnsupportedShape(
                f"tensor {name!r}: {len(spec.shape)} dimensions, but {format} has at most "
                f"{max_rank}; cast=True joins the first ones"
            )


def _refuse_names(tensors: Sequence[tuple[str, TensorSpec]], reserved: Collection[str]) -> None:
    seen = set()
    for name, _ in tensors:
        check_name(name)
        if name in reserved:
            raise BadName(f"tensor {name!r}: the format reserves this name")
        if name in seen:
            raise DuplicateName(f"tensor {shortened(name)!r}: two tensors have this name")
        seen.add(name)


def check_name(name: object) -> None:
    """Raise BadName for what no format can have as the name of a tensor."""
    if type(name) is not str:
        raise BadName(f"tensor {name!r}: a name must be a str, not a {type(name).__name__}")
    try:
        length = len(name.encode())
    except UnicodeEncodeError as error:
        raise BadName(f"tensor {name!r}: the name is not valid Unicode ({error})") from error
    if length > MAX_NAME:
        raise BadName(f"tensor {name[:40]!r}…: a name of {length:,} bytes, over {MAX_NAME:,}")
