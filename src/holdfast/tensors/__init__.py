"""What a tensor is, without any file: dtypes, specs, and the sources of its bytes."""

from holdfast.tensors.adapter import Memory
from holdfast.tensors.dtypes import DTYPES, DType
from holdfast.tensors.frameworks import (
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
from holdfast.tensors.sources import ArraySource, Packed, Source
from holdfast.tensors.spec import TensorSpec

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
