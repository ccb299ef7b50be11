"""What a tensor is, without any file: dtypes, specs, and the sources of its bytes."""

from standfast.tensors.adapter import Memory
from standfast.tensors.dtypes import DTYPES, DType
from standfast.tensors.frameworks import (
    fill,
    framework,
    kind_of,
    memory_of,
    register_framework,
    source_of,
    stretch_of,
    tensor_of,
    why_not_fillable,
)
from standfast.tensors.sources import ArraySource, Packed, Source
from standfast.tensors.spec import TensorSpec

__all__ = [
    "DTYPES",
    "ArraySource",
    "DType",
    "Memory",
    "Packed",
    "Source",
    "TensorSpec",
    "fill",
    "framework",
    "kind_of",
    "memory_of",
    "register_framework",
    "source_of",
    "stretch_of",
    "tensor_of",
    "why_not_fillable",
]
