"""The values of a torch pickle that are not Python's own, and the names that stand for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from standfast.errors import BadPickle, RefusedPickle, StandfastError, printable, shortened
from standfast.tensors import DTYPES

HINT: Final = "; tensors_only=True leaves such values out"
MAX_NAME: Final = 1000
MAX_RANK: Final = 64
MAX_LENGTH: Final = 1 << 58
"""Elements of anything; their bytes then fit the integers of the machine."""
MAX_EXPANDED: Final = 1 << 34
"""A tensor that repeats its bytes (torch's `expand`) may claim this many, not more."""


@dataclass(frozen=True, slots=True)
class Stub:
    """What stands in the tree for a value that `tensors_only` left out."""

    what: str
    """The name that the pickle gave it, as `module.name`."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in the tree: which bytes of which entry of the archive are its elements."""

    storage: str
    """The key: its bytes are the entry `data/<key>`."""
    storage_bytes: int
    """How many bytes the pickle says that the storage has."""
    dtype: str
    """A name of `standfast.tensors.DTYPES`."""
    offset: int
    """Bytes from the start of the storage; 0 for a tensor without elements."""
    shape: tuple[int, ...]
    """The logical shape: of float4, whose bytes are pairs, the last dimension counts elements."""
    strides: tuple[int, ...]
    """In bytes, of the array of `TensorSpec.array_shape`: those of float4 are of its pairs."""


@dataclass(frozen=True, slots=True)
class Storage(Stub):
    """The bytes behind tensors; no value of its own, so that one in the tree is a stub."""

    key: str
    nbytes: int
    dtype: str | None
    """None for an untyped storage."""


FLOAT4: Final = "float4_e2m1fn"
TORCH_DTYPES: Final = {
    "torch.float4_e2m1fn_x2": FLOAT4,
    **{f"torch.{name}": name for name, kind in DTYPES.items() if not kind.packed},
}
WIDTH_OF: Final = {name: max(1, kind.bits // 8) for name, kind in DTYPES.items()}
"""Bytes of one element as torch counts them: one of float4 is a pair."""

CONSTANTS: Final = frozenset(TORCH_DTYPES) | {
    f"torch.{name}"
    for name in (
        "complex32 qint8 qint32 quint8 quint4x2 quint2x4 bits8 bits16 bits1x8 bits2x4 bits4x2 "
        "uint1 uint2 uint3 uint4 uint5 uint6 uint7 int1 int2 int3 int4 int5 int6 int7 "
        "per_tensor_affine per_tensor_symmetric per_channel_affine per_channel_symmetric "
        "per_channel_affine_float_qparams"
    ).split()
}
"""Names without a call; in the tree they are text. Tensors are of the first few alone."""

STORAGE_OF: Final = {
    "bool": "BoolStorage",
    "uint8": "ByteStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "float16": "HalfStorage",
    "bfloat16": "BFloat16Storage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
}
"""The class of torch's for a storage of that dtype; those of all others are untyped."""
STORAGES: Final[dict[str, str | None]] = {
    "torch.storage.UntypedStorage": None,
    "torch.UntypedStorage": None,
    **{f"torch.{name}": dtype for dtype, name in STORAGE_OF.items()},
}
TENSOR_CLASSES: Final = {"torch.Tensor", "torch.nn.parameter.Parameter"}
FACTORIES: Final = {
    f"builtins.{name}" for name in "bool dict float int list long str tuple".split()
}
"""What a defaultdict may name as its default; it is dropped."""

UNSUPPORTED: Final = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_qtensor": "a quantized tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a tensor on the meta device",
    "torch._utils._rebuild_wrapper_subclass": "a tensor that wraps others",
    "torch._utils._rebuild_device_tensor_from_numpy": "a tensor of another device",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a tensor of another device",
    "torch._utils._rebuild_xla_tensor": "a tensor of another device",
    **{
        f"torch.{name}Storage": "a quantized tensor"
        for name in ("QInt8", "QInt32", "QUInt8", "QUInt4x2", "QUInt2x4")
    },
}
"""Names that are torch's own, of values without plain bytes."""


def of_type(kind: type, value: Any) -> Any:
    """The value, which must be of just this type."""
    if type(value) is not kind:
        raise unexpected(f"a value of type {kind.__name__}", value)
    return value


def unexpected(expected: str, found: Any) -> StandfastError:
    """The error for such an argument.

    A stub among them stands for what is refused: so is the call, then.
    """
    error = RefusedPickle if isinstance(found, Stub) else BadPickle
    return error(f"expected {expected}, found {kind_of(found)}")


def kind_of(value: Any) -> str:
    """What a value is, for a message."""
    return name_of(value) if isinstance(value, Stub) else f"a value of type {type(value).__name__}"


def name_of(stub: Stub) -> str:
    """The name that a file gave to a value, for a message."""
    return shortened(printable(stub.what))
