"""Writes the pickle of a torch checkpoint: a dictionary of contiguous tensors, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.errors import BadName, DuplicateName, UnsupportedDType, UnsupportedShape
from holdfast.formats.torch_values import FLOAT4, MAX_RANK, STORAGE_OF, TORCH_DTYPES
from holdfast.tensors import TensorSpec

_TORCH_NAME: Final = {dtype: name.removeprefix("torch.") for name, dtype in TORCH_DTYPES.items()}


def write_pickle(tensors: Sequence[tuple[str, TensorSpec]]) -> bytes:
    """The pickle that `torch.load(weights_only=True)` reads as {name: tensor}, in this order.

    The bytes of tensor i are those of storage str(i): the archive's entry `data/<i>`.
    """
    heads = _Heads()
    names = set()
    sizes: dict[TensorSpec, bytes] = {}
    parts = [b"\x80\x02}("]
    for i, (name, spec) in enumerate(tensors):
        if name in names:
            raise DuplicateName(f"tensor {name!r}: two tensors have this name")
        names.add(name)
        head, location, tail = heads.of(name, spec.dtype)
        if spec not in sizes:
            _refuse_shape(name, spec)
            sizes[spec] = _size(spec)
        parts += (_name(name), head, _text(str(i)), location, sizes[spec], tail)
    parts.append(b"u.")
    return b"".join(parts)


class _Heads:
    """What is the same in all tensors of a dtype, with what was said before put as a memo."""

    def __init__(self) -> None:
        self._memo: dict[bytes, bytes] = {}
        self._of_dtype: dict[str, tuple[bytes, bytes, bytes]] = {}

    def of(self, name: str, dtype: str) -> tuple[bytes, bytes, bytes]:
        """What stands before the key of a tensor's storage, before its sizes, and after them."""
        if known := self._of_dtype.get(dtype):
            return known
        if dtype not in _TORCH_NAME:
            raise UnsupportedDType(f"tensor {name!r}: torch has no dtype {dtype}")
        first = self._build(dtype)
        self._of_dtype[dtype] = self._build(dtype)
        return first

    def _build(self, dtype: str) -> tuple[bytes, bytes, bytes]:
        typed = dtype in STORAGE_OF
        rebuild = self._once(_global("torch._utils", f"_rebuild_tensor_v{2 if typed else 3}"))
        word = self._once(_text("storage"))
        if typed:
            storage = self._once(_global("torch", STORAGE_OF[dtype]))
        else:
            storage = self._once(_global("torch.storage", "UntypedStorage"))
        location = self._once(_text("cpu"))
        hooks = self._once(_global("collections", "OrderedDict")) + b")R"
        last = b"" if typed else self._once(_global("torch", _TORCH_NAME[dtype]))
        return rebuild + b"((" + word + storage, location, b"\x89" + hooks + last + b"tR"

    def _once(self, value: bytes) -> bytes:
        """The opcodes of a value the first time, and then its place in the memo."""
        if value in self._memo:
            return self._memo[value]
        place = bytes([len(self._memo)])  # a few dozen at most
        self._memo[value] = b"h" + place
        return value + b"q" + place


def _size(spec: TensorSpec) -> bytes:
    """The size of the storage, which ends its tuple; then offset, shape and strides."""
    shape = spec.array_shape
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(1, length)
    count = spec.size if spec.dtype in STORAGE_OF else spec.nbytes
    return _integer(count) + b"tQK\x00" + _integers(shape) + _integers(strides[::-1])


def _integers(values: Sequence[int]) -> bytes:
    parts = b"".join(map(_integer, values))
    short = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(values))
    return parts + short if short else b"(" + parts + b"t"


def _integer(value: int) -> bytes:
    if value < 1 << 8:
        return b"K" + value.to_bytes(1, "little")
    if value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    return b"\x8a\x08" + value.to_bytes(8, "little")


def _text(text: str) -> bytes:
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _name(name: str) -> bytes:
    try:
        return _text(name)
    except UnicodeEncodeError as error:
        raise BadName(f"tensor {name!r}: the name is not valid Unicode ({error})") from error


def _refuse_shape(name: str, spec: TensorSpec) -> None:
    if len(spec.shape) > MAX_RANK:
        raise UnsupportedShape(f"tensor {name!r}: {len(spec.shape)} dimensions, over {MAX_RANK}")
    if spec.dtype == FLOAT4 and (not spec.shape or spec.shape[-1] % 2):
        raise UnsupportedShape(
            f"tensor {name!r}: torch keeps float4 in pairs, and {list(spec.shape)} cuts one"
        )
