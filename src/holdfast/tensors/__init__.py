"""What a tensor is, without any file: dtypes, specs, and the sources of its bytes."""

from holdfast.tensors.dtypes import DTYPES, DType
from holdfast.tensors.frameworks import framework, register_framework, source_of
from holdfast.tensors.sources import ArraySource, Packed, Source
from holdfast.tensors.spec import TensorSpec

__all__ = [
    "DTYPES",
    "ArraySource",
    "DType",
    "Packed",
    "Source",
    "TensorSpec",
    "framework",
    "register_framework",
    "source_of",
]
