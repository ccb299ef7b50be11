"""Writes the pickle of a torch checkpoint: a dictionary of contiguous tensors, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from standfast.errors import BadName, DuplicateName, UnsupportedDType, UnsupportedShape
from standfast.formats.torch.values import FLOAT4, MAX_RANK, STORAGE_OF, TORCH_DTYPES
from standfast.tensors import TensorSpec

TORCH_NAME: Final = {dtype: name.removeprefix("torch.") for name, dtype in TORCH_DTYPES.items()}
TRUE: Final = b"\x88"
FALSE: Final = b"\x89"


def write_pickle(tensors: Sequence[tuple[str, TensorSpec]]) -> bytes:
    """The pickle that `torch.load(weights_only=True)` reads as {name: tensor}, in this order.

    The bytes of tensor i are those of storage str(i): the archive's entry `data/<i>`.
    """
    heads = Heads()
    names = set()
    sizes: dict[TensorSpec, bytes] = {}
    parts = [b"\x80\x02}("]
    for i, (name, spec) in enumerate(tensors):
        if name in names:
            raise DuplicateName(f"tensor {name!r}: two tensors have this name")
        names.add(name)
        head, location, tail = heads.of(name, spec.dtype)
        if spec not in sizes:
            refuse_shape(name, spec)
            sizes[spec] = _size(spec)
        parts += (_name(name), head, write_text(str(i)), location, sizes[spec], tail)
    parts.append(b"u.")
    return b"".join(parts)


class Heads:
    """What is the same in all tensors of a dtype, with what was said before put as a memo."""

    def __init__(self) -> None:
        self._memo: dict[bytes, bytes] = {}
        self._known: dict[tuple[str, bool, bool], tuple[bytes, bytes, bytes]] = {}

    def of(
        self, name: str, dtype: str, typed: bool = True, wants_gradient: bool = False
    ) -> tuple[bytes, bytes, bytes]:
        """What stands before the key of a tensor's storage, before its sizes, and after them.

        The storage has the tensor's dtype, if torch has a class for such ones and `typed` is not
        denied; otherwise it is one of bytes.
        """
        kind = (dtype, typed and dtype in STORAGE_OF, wants_gradient)
        if known := self._known.get(kind):
            return known
        if dtype not in TORCH_NAME:
            raise UnsupportedDType(f"tensor {name!r}: torch has no dtype {dtype}")
        first = self._build(*kind)
        self._known[kind] = self._build(*kind)
        return first

    def _build(self, dtype: str, typed: bool, wants_gradient: bool) -> tuple[bytes, bytes, bytes]:
        rebuild = self.once(write_global("torch._utils", f"_rebuild_tensor_v{2 if typed else 3}"))
        word = self.once(write_text("storage"))
        if typed:
            storage = self.once(write_global("torch", STORAGE_OF[dtype]))
        else:
            storage = self.once(write_global("torch.storage", "UntypedStorage"))
        location = self.once(write_text("cpu"))
        hooks = self.once(write_global("collections", "OrderedDict")) + b")R"
        last = b"" if typed else self.once(write_global("torch", TORCH_NAME[dtype]))
        gradient = TRUE if wants_gradient else FALSE
        return rebuild + b"((" + word + storage, location, gradient + hooks + last + b"tR"

    def once(self, value: bytes) -> bytes:
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
    return write_integer(count) + b"tQK\x00" + write_integers(shape) + write_integers(strides[::-1])


def write_integers(values: Sequence[int]) -> bytes:
    """A tuple of integers that are not negative."""
    parts = b"".join(map(write_integer, values))
    short = {0: b")", 1: b"\x85", 2: b"\x86", 3: b"\x87"}.get(len(values))
    return parts + short if short else b"(" + parts + b"t"


def write_integer(value: int) -> bytes:
    """An integer that is not negative."""
    if value < 1 << 8:
        return b"K" + value.to_bytes(1, "little")
    if value < 1 << 16:
        return b"M" + value.to_bytes(2, "little")
    if value < 1 << 31:
        return b"J" + value.to_bytes(4, "little")
    return b"\x8a\x08" + value.to_bytes(8, "little")


def write_text(text: str) -> bytes:
    """Text; raises UnicodeEncodeError, or OverflowError beyond 4 GiB."""
    encoded = text.encode()
    return b"X" + len(encoded).to_bytes(4, "little") + encoded


def write_global(module: str, name: str) -> bytes:
    """What a module has under this name."""
    return f"c{module}\n{name}\n".encode()


def _name(name: str) -> bytes:
    try:
        return write_text(name)
    except UnicodeEncodeError as error:
        raise BadName(f"tensor {name!r}: the name is not valid Unicode ({error})") from error


def refuse_shape(name: str, spec: TensorSpec) -> None:
    """Raise UnsupportedShape if torch has no tensor of such a shape."""
    if len(spec.shape) > MAX_RANK:
        raise UnsupportedShape(f"tensor {name!r}: {len(spec.shape)} dimensions, over {MAX_RANK}")
    if spec.dtype == FLOAT4 and (not spec.shape or spec.shape[-1] % 2):
        raise UnsupportedShape(
            f"tensor {name!r}: torch keeps float4 in pairs, and {list(spec.shape)} cuts one"
        )
