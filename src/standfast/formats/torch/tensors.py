"""One tensor out of a torch pickle: checked to lie within its storage."""

from __future__ import annotations

import math
from typing import Any

from standfast.errors import (
    BadPickle,
    BadRange,
    LimitExceeded,
    RefusedPickle,
    StandfastError,
    shortened,
)
from standfast.formats.torch.values import (
    FLOAT4,
    MAX_EXPANDED,
    MAX_LENGTH,
    MAX_RANK,
    WIDTH_OF,
    Storage,
    StoredTensor,
    kind_of,
    unexpected,
)
from standfast.tensors import TensorSpec


def tensor(storage: Any, offset: Any, size: Any, steps: Any, dtype: str | None) -> StoredTensor:
    """A tensor, within its storage; offset and steps count elements, as torch does."""
    if type(storage) is not Storage:
        raise unexpected("a storage", storage)
    if type(size) is not tuple or type(steps) is not tuple:
        raise unexpected("a tuple", steps if type(size) is tuple else size)
    if len(size) != len(steps):
        raise BadPickle(
            f"storage {storage.key!r}: a tensor of {len(size)} dimensions and {len(steps)} strides"
        )
    if len(size) > MAX_RANK:
        raise LimitExceeded(f"storage {storage.key!r}: a tensor of over {MAX_RANK} dimensions")
    if type(offset) is not int or not 0 <= offset <= MAX_LENGTH:
        raise _no_count(storage, "offset", offset)
    dtype = dtype or storage.dtype or "uint8"
    width = WIDTH_OF[dtype]
    elements, last = 1, offset
    for length, step in zip(size, steps, strict=False):
        if type(length) is not int or not 0 <= length <= MAX_LENGTH:
            raise _no_count(storage, "shape", length)
        if type(step) is not int or not 0 <= step <= MAX_LENGTH:
            raise _no_count(storage, "stride", step)
        elements *= length
        last += (length - 1) * step
    if not elements:
        offset = 0
    elif (last + 1) * width > storage.nbytes:
        raise BadRange(
            f"storage {storage.key!r}: a tensor whose storage is too small, for it reaches to "
            f"byte {(last + 1) * width:,} of {storage.nbytes:,}"
        )
    if not 0 < elements * width <= MAX_EXPANDED:
        _refuse_size(storage, size, elements * width)
    if dtype == FLOAT4:
        if not size:
            raise RefusedPickle("a float4 pair without dimensions")
        size = (*size[:-1], 2 * size[-1])
    return StoredTensor(
        storage.key,
        storage.nbytes,
        dtype,
        offset * width,
        size,
        steps if width == 1 else tuple([step * width for step in steps]),
    )


def _refuse_size(storage: Storage, size: tuple[int, ...], nbytes: int) -> None:
    """Refuses what no array can have, and what repeats a few bytes into petabytes."""
    if nbytes > max(storage.nbytes, MAX_EXPANDED):
        raise LimitExceeded(
            f"storage {storage.key!r}: a tensor of {shortened(f'{nbytes:,}')} bytes, over 2^34, "
            f"out of a storage of {storage.nbytes:,}"
        )
    if math.prod(filter(None, size)) > MAX_LENGTH:
        raise LimitExceeded(f"storage {storage.key!r}: no array can have the shape {list(size)}")


def _no_count(storage: Storage, field: str, found: Any) -> StandfastError:
    if type(found) is int and found > 0:
        return LimitExceeded(f"storage {storage.key!r}: a tensor whose {field} is over 2^58")
    shown = "a negative number" if type(found) is int else kind_of(found)
    return BadPickle(f"storage {storage.key!r}: a tensor whose {field} is {shown}, not a count")


def refuse_conjugates(metadata: Any) -> None:
    """Raise if a tensor's metadata says that its values are not those of its bytes."""
    if metadata is not None and type(metadata) is not dict:
        raise unexpected("a dictionary", metadata)
    if metadata and any(value is not False for value in metadata.values()):
        raise RefusedPickle("a conjugated or negated view, whose bytes are not its values")


def refuse_difference(storage: Storage, first: Storage) -> None:
    """One storage may stand behind many tensors, and has one size and one dtype then."""
    if first.nbytes != storage.nbytes:
        raise BadPickle(
            f"storage {storage.key!r}: {storage.nbytes:,} bytes here, "
            f"{first.nbytes:,} where it first stands"
        )
    if first.dtype and storage.dtype and first.dtype != storage.dtype:
        raise BadPickle(
            f"storage {storage.key!r}: of {storage.dtype} here, "
            f"of {first.dtype} where it first stands"
        )


def reach(tensor: StoredTensor) -> int:
    """How many bytes of its storage a tensor spans from its first element on."""
    spec = TensorSpec(tensor.dtype, tensor.shape)
    if not spec.nbytes:
        return 0
    if is_plain(tensor, spec):
        return spec.nbytes
    steps = zip(spec.array_shape, tensor.strides, strict=True)
    return sum((n - 1) * stride for n, stride in steps) + spec.kind.numpy.itemsize


def is_plain(tensor: StoredTensor, spec: TensorSpec) -> bool:
    """Whether the elements lie in C order; the step along a dimension of one is never taken."""
    expected = spec.kind.numpy.itemsize
    for n, stride in zip(reversed(spec.array_shape), reversed(tensor.strides), strict=True):
        if n > 1 and stride != expected:
            return False
        expected *= n
    return True
