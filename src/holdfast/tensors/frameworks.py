"""Tensors of other libraries: each is served by one adapter, imported when first needed."""

from __future__ import annotations

import importlib
from typing import Any, Protocol, cast

import numpy as np

from holdfast.errors import UnknownFramework, UnsupportedDType, UnsupportedTensor
from holdfast.tensors.dtypes import BY_NUMPY
from holdfast.tensors.sources import ArraySource, Packed, Source
from holdfast.tensors.spec import TensorSpec


class Framework(Protocol):
    """What an adapter module provides."""

    def source(self, value: Any) -> Source:
        """A tensor of this framework as a source; raises UnsupportedTensor or UnsupportedDType."""
        ...

    def tensor(self, array: np.ndarray[Any, Any], spec: TensorSpec) -> Any:
        """An array as a tensor of this framework, sharing its memory."""
        ...


_adapters: dict[str, str] = {}


def register_framework(name: str, adapter: str) -> None:
    """Let the module `adapter` serve the tensors whose type comes from the package `name`."""
    _adapters[name] = adapter


def framework(name: str) -> Framework:
    """The adapter registered under this name; raises UnknownFramework."""
    if name not in _adapters:
        known = ", ".join(["numpy", *_adapters])
        raise UnknownFramework(f"no framework {name!r}; there are {known}")
    try:
        return cast(Framework, importlib.import_module(_adapters[name]))
    except ImportError as error:
        raise UnknownFramework(
            f"the framework {name} cannot be imported ({error}): pip install 'holdfast[{name}]'"
        ) from error


def source_of(value: Any) -> Source:
    """Any tensor as a source of bytes; raises UnsupportedTensor or UnsupportedDType."""
    if isinstance(value, np.ndarray):
        return _numpy_source(value)
    if isinstance(value, Packed):
        return value.source()
    for base in type(value).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _adapters:
            return framework(package).source(value)
    if isinstance(value, dict | list | tuple):
        raise UnsupportedTensor(
            f"a {type(value).__name__} is not a tensor, and trees are not saved: give each tensor "
            "in it a name of its own, such as 'optimizer.state.0.exp_avg'"
        )
    raise UnsupportedTensor(
        f"a {type(value).__module__}.{type(value).__qualname__} is not a tensor: "
        "pass a NumPy array (numpy.asarray(value)) or a torch tensor"
    )


def _numpy_source(array: np.ndarray[Any, Any]) -> ArraySource:
    if isinstance(array, np.ma.MaskedArray):
        raise UnsupportedTensor(
            "a masked array has a mask that would be lost: save .data and .mask"
        )
    # Only dtypes with a byte order of their own have another form.
    swappable = array.dtype.kind in "iufcV" and array.dtype.byteorder == ">"
    kind = BY_NUMPY.get(array.dtype.newbyteorder("<") if swappable else array.dtype)
    if kind is None:
        raise UnsupportedDType(f"no tensor dtype for NumPy's {array.dtype}: convert it with astype")
    return ArraySource(array, TensorSpec(kind.name, array.shape))
