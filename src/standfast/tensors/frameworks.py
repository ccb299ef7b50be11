"""Tensors of other libraries: each is served by one adapter, imported when first needed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any, cast

import numpy as np

from standfast.errors import (
    BadField,
    UnknownFramework,
    UnsupportedDType,
    UnsupportedTensor,
    shortened,
)
from standfast.tensors.adapter import OVERLAPS, Framework, Guard, Memory, may_overlap
from standfast.tensors.devices import Device
from standfast.tensors.dtypes import BY_NUMPY
from standfast.tensors.shards import Shards
from standfast.tensors.sources import ArraySource, Packed, Source
from standfast.tensors.spec import TensorSpec

_adapters: dict[str, str] = {}


def register_framework(name: str, adapter: str) -> None:
    """Let the module `adapter` serve the tensors whose type comes from the package `name`."""
    _adapters[name] = adapter
    _framework_of.cache_clear()


def framework(name: str) -> Framework:
    """The adapter registered under this name; raises UnknownFramework."""
    if name not in _adapters:
        known = ", ".join(["numpy", *_adapters])
        raise UnknownFramework(f"no framework {shortened(name)!r}; there are {known}")
    try:
        return _imported(_adapters[name])
    except ImportError as error:
        raise UnknownFramework(
            f"the framework {name} cannot be imported ({error}): pip install {name}"
        ) from error


@cache  # it is asked for with every tensor
def _imported(adapter: str) -> Framework:
    return cast(Framework, importlib.import_module(adapter))


def source_of(value: Any) -> Source:
    """Any tensor as a source of bytes; raises UnsupportedTensor or UnsupportedDType."""
    if isinstance(value, np.ndarray):
        return _numpy_source(value)
    if isinstance(value, Packed):
        return value.source()
    if isinstance(value, dict | list | tuple):
        raise UnsupportedTensor(
            f"a {type(value).__name__} is not a tensor, and trees are not saved: give each tensor "
            "in it a name of its own, such as 'optimizer.state.0.exp_avg'"
        )
    return _adapter(value).source(value)


def kind_of(value: Any) -> str:
    """What must be remembered of a tensor, besides its spec, so that `tensor_of` gives it back.

    Raises UnsupportedTensor for what is no tensor, or would come back as another type.
    """
    if type(value) is np.ndarray:
        return "numpy"
    if type(value) is Packed:
        return "packed"
    if isinstance(value, np.ndarray):
        raise UnsupportedTensor(
            f"a {type(value).__qualname__} would come back as a plain array: "
            "pass numpy.asarray(value)"
        )
    return _adapter(value).kind(value)


def tensor_of(array: np.ndarray[Any, Any], spec: TensorSpec, kind: str) -> Any:
    """An array as a tensor of the kind that `kind_of` named, sharing its memory.

    Raises UnknownFramework for a kind that nobody here has, BadField for one that cannot be.
    """
    if kind == "numpy":
        return array
    if kind == "packed":
        if not spec.kind.packed:
            raise BadField(f"a tensor of {spec.dtype} is not packed, though its kind says so")
        return Packed(array, spec.dtype, spec.shape)
    adapter = framework(kind.partition(":")[0])
    return adapter.as_kind(adapter.tensor(array, spec), kind)


def memory_of(value: Any) -> Memory | None:
    """Where a tensor lies; None if it is empty, or if its memory does not hold its values."""
    if isinstance(value, Packed):
        # Strides of the packed bytes mean something only in the shape that comes back.
        shape = TensorSpec(value.dtype, value.shape).array_shape
        return _numpy_memory(value.data.reshape(shape)) if value.data.flags.c_contiguous else None
    if isinstance(value, np.ndarray):
        return _numpy_memory(value)
    return _adapter(value).memory(value)


def stretch_of(value: Any, start: int, stop: int) -> Source:
    """The bytes between two addresses in the memory around a tensor, which is kept alive.

    All of them must belong to memory that is in use, as the span of any tensor does.
    """
    if isinstance(value, np.ndarray | Packed):
        return memory_source(value, start, stop)
    return _adapter(value).stretch(value, start, stop)


def blank(value: Any, path: Sequence[Any], spec: TensorSpec) -> Any:
    """A tensor that is shared out, for what an object will have at a path of its state.

    None for what it would have in another way.
    """
    for adapter in frameworks_in_use().values():
        make = getattr(adapter, "blank", None)
        if make is not None and (made := make(value, path, spec)) is not None:
            return made
    return None


def shards_of(value: Any) -> Shards | None:
    """What this process has of a tensor that is cut up; None for all others."""
    adapter = _adapter_of(type(value))
    shards = getattr(adapter, "shards", None)  # an adapter of somebody else's may know of none
    found: Shards | None = shards(value) if shards is not None else None
    return found


def why_not_fillable(value: Any) -> str | None:
    """Why a tensor cannot be written to; None if it can."""
    target = value.data if isinstance(value, Packed) else value
    if isinstance(target, np.ndarray):
        if not target.flags.writeable:
            return "it is read-only"
        overlaps = may_overlap(target.shape, target.strides, target.itemsize)
        return OVERLAPS if overlaps else None
    return _adapter(value).why_not_fillable(value)


def fill(value: Any, array: np.ndarray[Any, Any], spec: TensorSpec) -> None:
    """Copy an array into a tensor of the same spec, in place.

    Raises UnsupportedTensor for a tensor that cannot be written to.
    """
    if why := why_not_fillable(value):
        raise UnsupportedTensor(f"the tensor cannot be filled: {why}")
    if not isinstance(value, np.ndarray | Packed):
        _adapter(value).fill(value, array, spec)
        return
    target = value.data if isinstance(value, Packed) else value
    np.copyto(target, array.reshape(target.shape))


def held(value: Any) -> Any:
    """A copy of a tensor of one number, made without waiting for it; `item()` reads it.

    Raises UnsupportedTensor for any other value.
    """
    return _adapter(value).held(value)


def frameworks_in_use() -> dict[str, Framework]:
    """Those of the registered frameworks that the program has imported, by name."""
    return {name: framework(name) for name in _adapters if sys.modules.get(name) is not None}


def generator_state(value: Any) -> Any | None:
    """A copy of the state of a framework's random generator; None for any other value."""
    adapter = _adapter_of(type(value))
    return adapter.generator_state(value) if adapter else None


def restore_generator(value: Any, state: Any) -> None:
    """Put the state of a framework's generator back; raises BadField or StateMismatch."""
    _adapter(value).restore_generator(value, state)


def describe(value: Any) -> Mapping[str, Any] | TensorSpec | None:
    """What a model or a tensor of a framework is, whatever its values; None for other values."""
    adapter = _adapter_of(type(value))
    return adapter.describe(value) if adapter else None


def unwrapped(value: Any) -> Any:
    """The object whose names a wrapper, such as a compiled model, is saved under; others as is."""
    adapter = _adapter_of(type(value))
    return adapter.unwrapped(value) if adapter else value


def plain(value: Any) -> str | None:
    """The name that a framework's dtype, device or the like is no more than, if it is one."""
    adapter = _adapter_of(type(value))
    return adapter.plain(value) if adapter else None


def device_of(value: Any) -> Device | None:
    """The device that a tensor of a framework lies on; None for the host and all other values."""
    adapter = _adapter_of(type(value))
    return adapter.device_of(value) if adapter else None


def guard(value: Any, before_step: Callable[[], None]) -> Guard | None:
    """Have an optimizer say when it is about to change its tensors; None for other values."""
    adapter = _adapter_of(type(value))
    return adapter.guard(value, before_step) if adapter else None


def home(value: Any, path: Sequence[Any]) -> Device | None:
    """Where an object will keep a tensor that it is given at this path of its state."""
    adapter = _adapter_of(type(value))
    return adapter.home(value, path) if adapter else None


def view_on_device(base: Any, spec: TensorSpec, offset: int, strides: Sequence[int]) -> Any:
    """A tensor within the bytes of one that a device made; both counted in bytes."""
    return _adapter(base).view(base, spec, offset, strides)


def copy_on_device(value: Any, given: Any) -> None:
    """Copy a tensor into one of the same shape, cast if that is of another dtype."""
    _adapter(value).copy(value, given)


def same_on_device(a: Any, b: Any) -> bool:
    """Whether two tensors of one spec and device have the same bits, seen where they lie."""
    return _adapter(a).same(a, b)


def memory_source(owner: Any, start: int, stop: int) -> ArraySource:
    """The bytes between two addresses of the CPU, as long as they belong to a living `owner`."""
    spec = TensorSpec("uint8", (stop - start,))
    return ArraySource(np.asarray(_Window(owner, start, stop)), spec)


class _Window:
    """Memory that NumPy can look at; the array that it makes of it keeps the owner alive."""

    def __init__(self, owner: Any, start: int, stop: int) -> None:
        self.owner = owner
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (stop - start,),
            "data": (start, True),  # read-only
        }


def _adapter(value: Any) -> Framework:
    adapter = _adapter_of(type(value))
    if adapter is None:
        raise UnsupportedTensor(
            f"a {type(value).__module__}.{type(value).__qualname__} is not a tensor: "
            "pass a NumPy array (numpy.asarray(value)) or a torch tensor"
        )
    return adapter


def _adapter_of(type_: type) -> Framework | None:
    name = _framework_of(type_)
    return framework(name) if name else None


@lru_cache(1024)  # it is asked several times with every tensor
def _framework_of(type_: type) -> str | None:
    packages = (base.__module__.partition(".")[0] for base in type_.__mro__)
    return next((package for package in packages if package in _adapters), None)


def _numpy_memory(array: np.ndarray[Any, Any]) -> Memory | None:
    # A foreign byte order is turned on the way out, so that its bytes are not those saved.
    if not array.size or not array.dtype.isnative:
        return None
    address = array.__array_interface__["data"][0]
    return Memory("cpu", address, array.itemsize, array.shape, array.strides)


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
