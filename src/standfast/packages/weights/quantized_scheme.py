"""What the metadata of a quantized file says: which tensors were what before."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from standfast.errors import BadField, UnsupportedFile, printable, shortened
from standfast.tensors import TensorSpec

SCHEME: Final = "int8 per row"
QUANTIZABLE: Final = frozenset({"float16", "bfloat16", "float32", "float64"})


def scale_name(name: str) -> str:
    """The name of the tensor that holds the scales of another."""
    return f"{name}.scale"


def column_count(spec: TensorSpec) -> int:
    """How many elements a row has: what is not the first dimension counts as columns; 0 if none."""
    return math.prod(spec.shape[1:]) if len(spec.shape) >= 2 else 0


def dequantized_specs(specs: Mapping[str, TensorSpec], scheme: Any) -> dict[str, TensorSpec]:
    """The tensors of a quantized file as they were before, without their scales.

    Nothing that the file says is believed: raises BadField or UnsupportedFile.
    """
    dtypes = _dtypes(scheme)
    scales = {scale_name(name) for name in dtypes}
    for name, dtype in dtypes.items():
        _check(name, dtype, specs)
    return {
        name: TensorSpec(dtypes[name], spec.shape) if name in dtypes else spec
        for name, spec in specs.items()
        if name not in scales
    }


def _dtypes(scheme: Any) -> dict[str, Any]:
    if not isinstance(scheme, dict):
        raise BadField(
            f"quantization should be an object with scheme and tensors, found {_found(scheme)}"
        )
    kind = scheme.get("scheme")
    if not isinstance(kind, str):
        raise BadField(f"quantization: scheme should be a text, found {_found(kind)}")
    if kind != SCHEME:
        raise UnsupportedFile(
            f"the quantization scheme is {_shown(kind)}, and only {SCHEME!r} is read here: a newer "
            "version of Standfast may know it"
        )
    tensors = scheme.get("tensors")
    if not isinstance(tensors, dict):
        raise BadField(
            f"quantization: tensors should be an object of names and dtypes, found "
            f"{_found(tensors)}"
        )
    return tensors


def _check(name: str, dtype: Any, specs: Mapping[str, TensorSpec]) -> None:
    if not isinstance(dtype, str) or dtype not in QUANTIZABLE:
        raise BadField(
            f"quantization: the dtype of {_shown(name)} should be one of "
            f"{', '.join(sorted(QUANTIZABLE))}, found {_found(dtype)}"
        )
    numbers = specs.get(name)
    if numbers is None:
        raise BadField(f"quantization: the tensor {_shown(name)} is listed and not in the file")
    if numbers.dtype != "int8" or column_count(numbers) < 2:
        raise BadField(
            f"quantization: the tensor {_shown(name)} should be a matrix of int8, found "
            f"{numbers.dtype} {list(numbers.shape)}"
        )
    scales = specs.get(scale_name(name))
    expected = TensorSpec("float32", numbers.shape[:1])
    if scales != expected:
        found = f"{scales.dtype} {list(scales.shape)}" if scales else "no such tensor"
        raise BadField(
            f"quantization: {_shown(scale_name(name))} should be float32 {list(expected.shape)}, "
            f"found {found}"
        )


def _shown(name: str) -> str:
    return repr(shortened(printable(name)))


def _found(value: Any) -> str:
    return "nothing" if value is None else printable(f"{value!r:.80}")
