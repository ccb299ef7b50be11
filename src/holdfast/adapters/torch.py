"""Torch tensors in and out, sharing memory with NumPy wherever they lie on the CPU."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch

from holdfast.errors import UnsupportedDType, UnsupportedTensor
from holdfast.tensors import DTYPES, ArraySource, Source, TensorSpec
from holdfast.tensors.sources import Bytes

_NAME_OF: Final = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}
_DTYPE_OF: Final = {name: dtype for dtype, name in _NAME_OF.items()}
_FLOAT4: Final = getattr(torch, "float4_e2m1fn_x2", None)
"""Two elements a byte; older releases of torch lack it."""

# NumPy has no bfloat16 or fp8 of torch's: both sides see the bytes as integers of that width.
_INTEGER_OF: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def source(value: Any) -> Source:
    """A torch tensor as a source, without copying it."""
    if not isinstance(value, torch.Tensor):
        raise UnsupportedTensor(f"a {type(value).__qualname__} is not a tensor")
    _refuse_kinds(value)
    tensor, spec = _spec_of(value.detach().resolve_conj().resolve_neg())
    if tensor.device.type != "cpu":
        return _DeviceSource(tensor, spec)
    integer = _INTEGER_OF.get(tensor.element_size())
    return ArraySource((tensor.view(integer) if integer else tensor).numpy(), spec)


def tensor(array: np.ndarray[Any, Any], spec: TensorSpec) -> torch.Tensor:
    """A writable array as a torch tensor that shares its memory."""
    dtype = _DTYPE_OF.get(spec.dtype, torch.uint8)
    if array.dtype.names is not None:  # records, whose spec is rows of bytes
        array = array.view(np.uint8).reshape(spec.shape)
    if spec.dtype == "float4_e2m1fn" and _FLOAT4 and array.ndim == len(spec.shape):
        dtype = _FLOAT4
    if array.dtype.itemsize in _INTEGER_OF:
        integers = torch.from_numpy(array.view(f"i{array.dtype.itemsize}"))
        return integers.view(dtype)
    return torch.from_numpy(array)


def _spec_of(tensor: torch.Tensor) -> tuple[torch.Tensor, TensorSpec]:
    if tensor.dtype == _FLOAT4:
        packed = tensor.view(torch.uint8)
        shape = (*packed.shape[:-1], 2 * packed.shape[-1])
        return packed, TensorSpec("float4_e2m1fn", shape)
    if tensor.dtype not in _NAME_OF:
        raise UnsupportedDType(f"no tensor dtype for {tensor.dtype}: convert it with .to(dtype)")
    return tensor, TensorSpec(_NAME_OF[tensor.dtype], tuple(tensor.shape))


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
    elif tensor.dtype == _FLOAT4 and tensor.ndim == 0:
        kind, hint = "a float4 pair without dimensions", "give it one"
    elif _reaches_beyond_its_storage(tensor):
        kind, hint = "a tensor whose storage was freed", "save it before it is, or gather it again"
    if kind:
        raise UnsupportedTensor(f"{kind} has no plain bytes: {hint}")


def _reaches_beyond_its_storage(tensor: torch.Tensor) -> bool:
    """Sharded training frees the storage of tensors that live on, without bytes."""
    if tensor.numel() == 0:
        return False
    steps = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    needed = (tensor.storage_offset() + steps + 1) * tensor.element_size()
    return tensor.untyped_storage().nbytes() < needed


class _DeviceSource:
    """A tensor on an accelerator: its bytes come to the CPU piece by piece."""

    sequential = False

    def __init__(self, tensor: torch.Tensor, spec: TensorSpec) -> None:
        self.spec = spec
        self._bytes = tensor.reshape(-1).view(torch.uint8)

    def contiguous(self) -> Bytes | None:
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        torch.from_numpy(out).copy_(self._bytes[start : start + out.size])
