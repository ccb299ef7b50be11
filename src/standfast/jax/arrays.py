"""Arrays of jax as bytes of the host, and back: dtypes, random keys, and what has no bytes."""

from __future__ import annotations

import threading
from typing import Any, Final

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from standfast.errors import UnsupportedDType, UnsupportedShape, UnsupportedTensor
from standfast.tensors import DTYPES, ArraySource, Source, TensorSpec
from standfast.tensors.sources import Bytes

Array = np.ndarray[Any, Any]

FLOAT4: Final = "float4_e2m1fn"
"""Jax has a byte for each element of it on the host; a file has one for two, the first one low."""
_ZEROS: Final = {"i": 0, "f": 0.0, "c": 0j}


def source(value: Any) -> Source:
    """An array as a source; what lies in the memory of the host in one piece is not copied."""
    data = words_of(readable(value))
    spec = spec_of(data)
    if is_on_host(data) and spec.dtype != FLOAT4:
        return ArraySource(np.asarray(data.addressable_data(0)), spec)
    return GatheredSource(data, spec)


def readable(value: Any) -> jax.Array:
    """The value, if it is an array, and this process can reach all its elements."""
    array = living(value)
    if not (array.is_fully_addressable or array.is_fully_replicated):
        raise UnsupportedTensor(
            "the array is spread over several processes, and this one has not all of it: gather "
            "it with jax.experimental.multihost_utils.process_allgather"
        )
    return array


def living(value: Any) -> jax.Array:
    """The value, if it is an array that has elements somewhere."""
    if isinstance(value, jax.core.Tracer):
        raise UnsupportedTensor(
            "a traced array has no values yet: save outside of jit, grad, vmap and scan"
        )
    if isinstance(value, jax.ShapeDtypeStruct):
        raise UnsupportedTensor("a ShapeDtypeStruct says what an array is, and has no values")
    if not isinstance(value, jax.Array):
        raise UnsupportedTensor(f"a {type(value).__qualname__} of jax is not an array")
    if value.is_deleted():
        raise UnsupportedTensor(
            "the array was deleted, as jit does with what is donated to it: save what the "
            "function returned instead"
        )
    return value


def is_key(value: Any) -> bool:
    """Whether it is an array of random keys, or is described as one."""
    return bool(jnp.issubdtype(value.dtype, jax.dtypes.prng_key))


def words_of(value: jax.Array) -> jax.Array:
    """The array that has the bytes: of random keys, that of their words."""
    return jax.random.key_data(value) if is_key(value) else value


def spec_of(value: Any) -> TensorSpec:
    """What an array is that is no random key, or is described as such; raises UnsupportedDType."""
    name = value.dtype.name
    if name not in DTYPES:
        raise UnsupportedDType(f"no tensor dtype for jax's {name}: convert it with .astype")
    spec = TensorSpec(name, tuple(value.shape))
    if spec.size * spec.kind.bits % 8:
        raise UnsupportedShape(
            f"{spec.size} elements of {name} do not fill whole bytes: pad the shape"
        )
    return spec


def is_on_host(value: jax.Array) -> bool:
    """Whether all of it lies in the memory of the host in one piece."""
    if not value.is_fully_replicated and len(value.sharding.device_set) > 1:
        return False
    device: Any = next(iter(value.sharding.addressable_devices))
    return bool(device.platform == "cpu")


class GatheredSource:
    """An array that is on an accelerator or in several pieces; it is brought when first read."""

    sequential = False

    def __init__(self, value: jax.Array, spec: TensorSpec) -> None:
        self.spec = spec
        self._value = value
        self._bytes: Bytes | None = None
        self._lock = threading.Lock()

    def contiguous(self) -> Bytes | None:
        """Nothing: it would have to be brought."""
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        with self._lock:
            if self._bytes is None:
                self._bytes = _bytes_of(on_host(self._value), self.spec)
        np.copyto(out, self._bytes[start : start + out.size])


def on_host(value: jax.Array) -> Array:
    """All elements of an array that this process can reach; not to be written to."""
    if value.is_fully_replicated or len(value.sharding.device_set) == 1:
        return np.asarray(value.addressable_data(0))
    whole = np.empty(value.shape, value.dtype)
    for shard in value.addressable_shards:
        if shard.replica_id == 0:
            whole[shard.index] = np.asarray(shard.data)
    return whole


def _bytes_of(array: Array, spec: TensorSpec) -> Bytes:
    flat: Bytes = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if spec.dtype != FLOAT4:
        return flat
    packed: Bytes = np.empty(spec.nbytes, np.uint8)
    packed[:] = flat[0::2] & 15 | flat[1::2] << 4
    return packed


def host_array(array: Array, spec: TensorSpec) -> Array:
    """An array that holds a tensor of this spec, as jax takes it."""
    if array.dtype.names is not None:  # records, whose spec is rows of bytes
        rows: Array = array.view(np.uint8).reshape(spec.shape)
        return rows
    if spec.dtype != FLOAT4:
        if spec.kind.packed:
            raise UnsupportedDType(f"jax has no {spec.dtype}: load it with NumPy")
        refuse_lossy(array.dtype)
        return array
    packed = array.reshape(-1)
    elements: Array = np.empty(spec.size, np.uint8)
    elements[0::2], elements[1::2] = packed & 15, packed >> 4
    found: Array = elements.view(ml_dtypes.float4_e2m1fn).reshape(spec.shape)
    return found


def refuse_lossy(dtype: Any) -> None:
    """Raise UnsupportedDType if jax would make a narrower dtype of this one."""
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise UnsupportedDType(
            f"jax makes a narrower dtype of {dtype}, and bits would be lost: call "
            "jax.config.update('jax_enable_x64', True) first, or load it with NumPy"
        )


def as_weak(value: jax.Array) -> jax.Array:
    """The same elements, of a dtype that gives way to others, as that of jnp.asarray(1.0) does.

    Other results come of it: times a bfloat16 it is a bfloat16, and not a float32.
    """
    zero = jnp.asarray(_ZEROS[value.dtype.kind]) if value.dtype.kind in _ZEROS else None
    if zero is None or zero.dtype != value.dtype:
        return value  # jax has no such dtype that gives way, with the settings it has here
    return jnp.broadcast_to(zero, value.shape).at[...].set(value)
