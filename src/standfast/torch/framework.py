"""Torch tensors in and out, sharing memory with NumPy wherever they lie on the CPU."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import numpy as np
import torch

from standfast.errors import (
    BadField,
    UnknownFramework,
    UnsupportedDType,
    UnsupportedTensor,
    shortened,
)
from standfast.tensors import ArraySource, Source, TensorSpec
from standfast.tensors.adapter import OVERLAPS, Memory, may_overlap
from standfast.tensors.frameworks import memory_source
from standfast.torch.devices import DeviceSource, device, device_of
from standfast.torch.dtypes import FLOAT4, FLOAT4_NAME, NAME_OF, bytes_of, seen_as, view
from standfast.torch.modules import describe, unwrapped
from standfast.torch.optimizers import blank, guard, home
from standfast.torch.random import (
    generator_state,
    random_states,
    restore_generator,
    restore_random_states,
)
from standfast.torch.shards import is_sharded, shards

__all__ = [
    "as_kind",
    "blank",
    "copy",
    "describe",
    "device",
    "device_of",
    "fill",
    "generator_state",
    "guard",
    "held",
    "home",
    "kind",
    "memory",
    "plain",
    "random_states",
    "restore_generator",
    "restore_random_states",
    "same",
    "shards",
    "source",
    "stretch",
    "tensor",
    "unwrapped",
    "view",
    "why_not_fillable",
]
"""What an adapter provides: `tensors.adapter.Framework`."""

_PLAIN: Final = "torch"
_WITH_GRAD: Final = "torch:grad"
_PARAMETER: Final = "torch:Parameter"
_FROZEN_PARAMETER: Final = "torch:Parameter:frozen"

# NumPy has no bfloat16 or fp8 of torch's: both sides see the bytes as integers of that width.
_INTEGER_OF: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NATIVE: Final = frozenset({torch.float32, torch.float64, torch.int64, torch.int32, torch.uint8})
"""The most frequent of those that NumPy has too."""
_REAL: Final = _NATIVE | {torch.bfloat16, torch.float16}


def source(value: Any) -> Source:
    """A torch tensor as a source, without copying it."""
    if _is_plain(value):
        spec = _spec_for(NAME_OF[value.dtype], tuple(value.shape))
        bare = value.detach() if value.requires_grad else value
        if value.is_cuda:
            return DeviceSource(bare, spec, device_of(value))
        return ArraySource(bare.numpy(), spec)
    if not isinstance(value, torch.Tensor):
        raise UnsupportedTensor(f"a {type(value).__qualname__} is not a tensor")
    _refuse_kinds(value)
    tensor, spec = _spec_of(value.detach().resolve_conj().resolve_neg())
    if tensor.device.type != "cpu":
        return DeviceSource(tensor, spec, device_of(tensor))
    if tensor.dtype not in _NATIVE and (integer := _INTEGER_OF.get(tensor.element_size())):
        tensor = tensor.view(integer)
    return ArraySource(tensor.numpy(), spec)


def _is_plain(value: Any) -> bool:
    """Whether it is what nearly all tensors are: plain memory, in order, of an everyday dtype."""
    return (
        type(value) in (torch.Tensor, torch.nn.Parameter)
        and ((value.is_cpu and value.dtype in _NATIVE) or (value.is_cuda and value.dtype in _REAL))
        and not value.is_nested
        and value.layout is torch.strided
        and value.ndim <= 64
        and value.is_contiguous()
        and not value.is_neg()
        and not _reaches_beyond_its_storage(value)
    )


_spec_for: Final = lru_cache(1 << 16)(TensorSpec)


def tensor(array: np.ndarray[Any, Any], spec: TensorSpec) -> torch.Tensor:
    """A writable array as a torch tensor that shares its memory."""
    if array.dtype.names is not None:  # records, whose spec is rows of bytes
        array = array.view(np.uint8).reshape(spec.shape)
    dtype = seen_as(spec, array.ndim)
    if any(step < 0 or step % array.itemsize for step in array.strides):
        raise UnsupportedTensor(f"torch has no tensors with strides of {array.strides} bytes")
    if array.dtype.itemsize in _INTEGER_OF:
        integers = torch.from_numpy(array.view(f"i{array.dtype.itemsize}"))
        return integers.view(dtype)
    return torch.from_numpy(array)


def kind(value: Any) -> str:
    """Whether a tensor is a parameter and wants gradients; what was computed comes back bare."""
    if type(value) is torch.nn.Parameter:
        return _PARAMETER if value.requires_grad else _FROZEN_PARAMETER
    if type(value) is torch.Tensor:
        return _WITH_GRAD if value.requires_grad and value.is_leaf else _PLAIN
    if is_sharded(value):  # it is the whole tensor that comes back
        if isinstance(value, torch.nn.Parameter):
            return _PARAMETER if value.requires_grad else _FROZEN_PARAMETER
        return _WITH_GRAD if value.requires_grad and value.is_leaf else _PLAIN
    if isinstance(value, torch.Tensor):
        raise UnsupportedTensor(
            f"a {type(value).__qualname__} would come back as a plain tensor: save the tensor that "
            "it wraps, or value.as_subclass(torch.Tensor)"
        )
    raise UnsupportedTensor(f"a {type(value).__qualname__} is not a tensor")


def as_kind(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """A plain tensor as the kind that `kind` once named, sharing its memory."""
    if kind == _PLAIN:
        return tensor
    if kind == _FROZEN_PARAMETER:
        return torch.nn.Parameter(tensor, requires_grad=False)
    if kind not in (_WITH_GRAD, _PARAMETER):
        raise UnknownFramework(
            f"no kind of torch tensor is called {shortened(kind)!r}: a newer release may know it"
        )
    if not (tensor.is_floating_point() or tensor.is_complex()):
        raise BadField(f"a {kind} cannot be of {tensor.dtype}, which has no gradients")
    return torch.nn.Parameter(tensor) if kind == _PARAMETER else tensor.requires_grad_()


def memory(value: Any) -> Memory | None:
    """Where the elements of a tensor lie; on an accelerator each storage counts for itself."""
    # The values of a lazy conjugate or negative are not those in its memory.
    if not value.numel() or value.is_conj() or value.is_neg():
        return None
    size = value.element_size()
    address = value.data_ptr()
    space = "cpu" if value.is_cpu else f"device {value.untyped_storage().data_ptr()}"
    strides = tuple([step * size for step in value.stride()])
    return Memory(space, address, size, tuple(value.shape), strides) if address else None


def stretch(value: Any, start: int, stop: int) -> Source:
    """The bytes between two addresses around a tensor; on an accelerator, within its storage."""
    return memory_source(value, start, stop) if value.is_cpu else _in_storage(value, start, stop)


def why_not_fillable(value: Any) -> str | None:
    """Why a tensor cannot be written to; None if it can."""
    if value.is_inference() and not torch.is_inference_mode_enabled():
        return "it is an inference tensor, and read-only outside of inference mode"
    if value.layout is torch.strided and may_overlap(value.shape, value.stride(), 1):
        return OVERLAPS
    return None


def fill(value: Any, array: np.ndarray[Any, Any], spec: TensorSpec) -> None:
    """Copy an array into a tensor on any device, without a trace in the graph of gradients."""
    # Torch takes no array that is read-only, and none with every stride that NumPy has.
    copy(value, tensor(array if array.flags.carray else array.copy(), spec))


def copy(value: Any, given: Any) -> None:
    """Copy a tensor into one of the same shape, which may lie elsewhere or have another dtype."""
    with torch.no_grad():
        try:
            value.detach().copy_(given)
        except RuntimeError as error:
            raise UnsupportedTensor(f"the tensor cannot be filled: {error}") from error


def same(a: Any, b: Any) -> bool:
    """Whether two tensors on one device have the same bits."""
    return torch.equal(_flat(a), _flat(b))


def _flat(value: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor in C order, gathered where it lies if need be."""
    tensor = value.detach().resolve_conj().resolve_neg()
    return bytes_of(tensor.contiguous())


def held(value: Any) -> Any:
    """A copy of a tensor of one number; on an accelerator it is made when its turn comes."""
    if not isinstance(value, torch.Tensor):
        raise UnsupportedTensor(f"a {type(value).__qualname__} is not a tensor")
    if value.numel() != 1 or value.is_complex() or value.is_meta or value.dtype not in NAME_OF:
        raise UnsupportedTensor(
            f"a tensor of {value.dtype} and shape {list(value.shape)} on {value.device.type} is "
            "not one real number: take its mean, or one of its elements"
        )
    return value.detach().clone()


def _in_storage(tensor: torch.Tensor, start: int, stop: int) -> Source:
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    flat.set_(storage, start - storage.data_ptr(), (stop - start,), (1,))
    return source(flat)


def _spec_of(tensor: torch.Tensor) -> tuple[torch.Tensor, TensorSpec]:
    if tensor.dtype == FLOAT4:
        packed = tensor.view(torch.uint8)
        shape = (*packed.shape[:-1], 2 * packed.shape[-1])
        return packed, TensorSpec(FLOAT4_NAME, shape)
    if tensor.dtype not in NAME_OF:
        raise UnsupportedDType(f"no tensor dtype for {tensor.dtype}: convert it with .to(dtype)")
    return tensor, TensorSpec(NAME_OF[tensor.dtype], tuple(tensor.shape))


def _refuse_kinds(tensor: torch.Tensor) -> None:
    kind = None
    if torch.nn.parameter.is_lazy(tensor):
        kind, hint = "an uninitialized parameter", "run the lazy module once first"
    elif tensor.is_nested:
        kind, hint = "a nested tensor", "save its parts"
    elif tensor.layout is not torch.strided:
        kind, hint = f"a tensor of layout {tensor.layout}", "save its .to_dense()"
    elif tensor.is_quantized:
        kind, hint = "a quantized tensor", "save its int_repr(), scale and zero point"
    elif tensor.is_meta:
        kind, hint = "a tensor on the meta device", "it has no data yet"
    elif type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        kind, hint = f"a {type(tensor).__qualname__}", "save the plain tensor it wraps"
    elif tensor.ndim > 64:
        kind, hint = f"a tensor of {tensor.ndim} dimensions", "reshape it to 64 or fewer"
    elif tensor.dtype == FLOAT4 and tensor.ndim == 0:
        kind, hint = "a float4 pair without dimensions", "give it one"
    elif _reaches_beyond_its_storage(tensor):
        kind, hint = "a tensor whose storage was freed", "save it before it is, or gather it again"
    if kind:
        raise UnsupportedTensor(f"{kind} has no plain bytes: {hint}")


def _reaches_beyond_its_storage(tensor: torch.Tensor) -> bool:
    """Sharded training frees the storage of tensors that live on, without bytes."""
    if tensor.numel() == 0:
        return False
    if tensor.is_contiguous():  # nearly all are, and the sum below takes its time
        steps = tensor.numel() - 1
    else:
        spans = zip(tensor.shape, tensor.stride(), strict=True)
        steps = sum((n - 1) * stride for n, stride in spans)
    needed = (tensor.storage_offset() + steps + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() < needed


def plain(value: Any) -> str | None:
    """A dtype, device, layout or memory format as the text that torch writes for it."""
    kinds = torch.dtype | torch.device | torch.layout | torch.memory_format
    return str(value) if isinstance(value, kinds) else None
