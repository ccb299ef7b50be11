"""Arrays of jax that lie on several devices: the boxes that each has, and arrays made of boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from standfast.errors import BadOption, StateMismatch
from standfast.jax.arrays import (
    Array,
    is_key,
    living,
    refuse_lossy,
    spec_of,
    words_of,
)
from standfast.store.schema.boxes import slices
from standfast.tensors.shards import Box, Shard, Shards

Like = jax.Array | jax.ShapeDtypeStruct
"""What says how an array shall be: its shape, dtype and sharding."""


def shards(value: Any) -> Shards | None:
    """The boxes of an array that is cut up, each with an array on one device.

    A box that several devices have is that of one of them, in one process. None for an array that
    is on one device, or on each of several as a whole, and for all other values.
    """
    if not isinstance(value, jax.Array) or isinstance(value, jax.core.Tracer):
        return None
    array = living(value)
    if len(array.sharding.device_set) == 1 or array.is_fully_replicated or not array.size:
        return None
    data = words_of(array)
    spec = spec_of(data)
    if spec.kind.packed and array.is_fully_addressable:
        return None  # elements that share a byte are saved whole
    found = [
        Shard(_box(shard.index, data.shape), shard.data)
        for shard in data.addressable_shards
        if shard.replica_id == 0
    ]
    return Shards(spec, found, pieces_of(data))


def pieces_of(data: jax.Array) -> tuple[tuple[int, int], ...] | None:
    """Where all pieces of an array lie: on which devices, at which addresses; None if unknown."""
    shards = data.addressable_shards
    try:
        return tuple((shard.device.id, shard.data.unsafe_buffer_pointer()) for shard in shards)
    except (NotImplementedError, RuntimeError):  # not every device has addresses
        return None


def words_like(like: Like) -> Like:
    """What the array is that has the bytes: of random keys, that of their words."""
    words: Like = jax.eval_shape(jax.random.key_data, like) if is_key(like) else like
    return words


def wanted_boxes(like: Like) -> Sequence[Box]:
    """The boxes that the devices of this process want of an array like this one, each once."""
    return list(dict.fromkeys(_boxes_by_device(like).values()))


def assembled(like: Like, arrays: Sequence[Array]) -> jax.Array:
    """An array with the shape, dtype and sharding of another, of one array for each wanted box.

    Of random keys the boxes are those of their words, and so are the arrays.
    """
    by_device = _boxes_by_device(like)
    boxes = list(dict.fromkeys(by_device.values()))
    words = words_like(like)
    if len(boxes) != len(arrays):
        raise StateMismatch(f"{len(boxes)} boxes are wanted, and {len(arrays)} arrays are given")
    for box, array in zip(boxes, arrays, strict=True):
        if array.shape != box.shape or array.dtype != words.dtype:
            raise StateMismatch(
                f"{words.dtype} {list(box.shape)} is wanted at {list(box.offsets)}, and "
                f"{array.dtype} {list(array.shape)} is given"
            )
    refuse_lossy(words.dtype)
    given = dict(zip(boxes, arrays, strict=True))
    if _sharding(like) is None:
        return _as_keys(jnp.array(given[boxes[0]]), like)
    # Copied: on a host jax may take the very memory, which several devices would share.
    parts = [
        _as_keys(jax.device_put(np.array(given[box]), device), like)
        for device, box in by_device.items()
    ]
    return jax.make_array_from_single_device_arrays(tuple(like.shape), like.sharding, parts)


def cut(like: Like, array: Array) -> jax.Array:
    """The same of an array of the host that has all of it."""
    return assembled(like, [array[slices(box)] for box in wanted_boxes(like)])


def is_here(like: Like) -> bool:
    """Whether this process has all of an array like this one."""
    sharding = _sharding(like)
    return sharding is None or sharding.is_fully_addressable


def _as_keys(words: jax.Array, like: Like) -> jax.Array:
    return jax.random.wrap_key_data(words, impl=implementation(like)) if is_key(like) else words


def implementation(like: Like) -> Any:
    """The name by which jax knows what draws from random keys like these."""
    found: list[Any] = []
    # What is no array yet is asked as a traced one.
    jax.eval_shape(lambda keys: found.append(jax.random.key_impl(keys)), like)
    return found[0]


def _sharding(like: Like) -> jax.sharding.Sharding | None:
    if isinstance(like, jax.Array) and not like.committed:
        return None  # it lies where jax puts what nobody placed
    sharding: Any = like.sharding
    if isinstance(getattr(sharding, "mesh", None), jax.sharding.AbstractMesh):
        raise BadOption(
            f"{sharding} names no devices: give the target a NamedSharding of a mesh that has some"
        )
    return like.sharding


def _boxes_by_device(like: Like) -> dict[Any, Box]:
    shape = words_like(like).shape
    sharding = _sharding(like)
    if sharding is None:
        return {None: _box((), shape)}
    # Of random keys, the sharding is that of the keys; the words of each stay together.
    indices = sharding.addressable_devices_indices_map(tuple(like.shape))
    return {device: _box(index or (), shape) for device, index in indices.items()}


def _box(index: Sequence[slice], shape: Sequence[int]) -> Box:
    """What an index of slices takes of a shape: of dimensions that it does not name, all."""
    named = [part.indices(length)[:2] for part, length in zip(index, shape, strict=False)]
    bounds = named + [(0, length) for length in shape[len(named) :]]
    return Box(tuple(a for a, _ in bounds), tuple(b - a for a, b in bounds))
