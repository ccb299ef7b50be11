"""The dtypes of torch by the names that Standfast has for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import torch

from standfast.tensors import DTYPES, TensorSpec

NAME_OF: Final = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}
_DTYPE_OF: Final[dict[str, torch.dtype]] = {name: dtype for dtype, name in NAME_OF.items()}
FLOAT4_NAME: Final = "float4_e2m1fn"
FLOAT4: Final[torch.dtype | None] = getattr(torch, "float4_e2m1fn_x2", None)
"""Two elements a byte; older releases of torch lack it."""


def dtype_of(name: str) -> torch.dtype:
    """The dtype of that name; those that torch has not are bytes to it."""
    return _DTYPE_OF.get(name, torch.uint8)


def seen_as(spec: TensorSpec, dimensions: int) -> torch.dtype:
    """The dtype of the tensor that stands for an array of `spec`, of so many dimensions."""
    if spec.dtype == FLOAT4_NAME and FLOAT4 is not None and dimensions == len(spec.shape):
        return FLOAT4
    return dtype_of(spec.dtype)


def empty(spec: TensorSpec, device: torch.device) -> torch.Tensor:
    """A new tensor of this spec, with any content."""
    shape = spec.array_shape
    if spec.dtype in _DTYPE_OF:
        return torch.empty(shape, dtype=_DTYPE_OF[spec.dtype], device=device)
    flat = torch.empty(spec.nbytes, dtype=torch.uint8, device=device)
    width = spec.kind.numpy.itemsize  # records of several numbers are rows of bytes
    rows = flat.view(shape if width == 1 else (*shape, width))
    return rows.view(seen_as(spec, len(shape)))


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in C order, where they lie."""
    # Not reshaped: a tensor of one element or none would keep a stride that torch sees no bytes in.
    return tensor.detach().as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def view(base: Any, spec: TensorSpec, offset: int, strides: Sequence[int]) -> torch.Tensor:
    """A tensor within the bytes of another, which is in C order; offset and strides in bytes."""
    dtype = dtype_of(spec.dtype)
    width = dtype.itemsize
    elements = bytes_of(base)[offset % width :]
    elements = elements[: elements.numel() // width * width].view(dtype)
    steps = [step // width for step in strides]
    found = torch.as_strided(
        elements, spec.array_shape, steps, elements.storage_offset() + offset // width
    )
    return found.view(seen_as(spec, len(spec.array_shape))) if dtype == torch.uint8 else found
