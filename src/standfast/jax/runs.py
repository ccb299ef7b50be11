"""Pytrees saved into runs, and restored with the structure, dtypes and shardings of a target."""

from __future__ import annotations

from typing import Any, Final

import jax
import numpy as np
from jax.tree_util import tree_structure, tree_unflatten

from standfast.errors import UnsupportedDType
from standfast.jax.arrays import Array, as_weak, host_array, is_key, refuse_lossy
from standfast.jax.boxes import (
    Like,
    assembled,
    cut,
    implementation,
    is_here,
    wanted_boxes,
    words_like,
)
from standfast.jax.trees import matched, plain_tree
from standfast.store import Checkpoint, Run
from standfast.store.load.box_reading import parts_of
from standfast.store.load.loading import saved_tree
from standfast.store.load.reading import Data
from standfast.store.schema.boxes import slices, within
from standfast.store.schema.record import Record
from standfast.store.tree.tree import Ref
from standfast.tensors import TensorSpec
from standfast.tensors.cast import cast_array

_FLOATS: Final = frozenset({"float64", "float32", "bfloat16", "float16"})
"""Those that become each other if the target says so."""


def save(run: Run, step: int, tree: Any, **options: Any) -> Checkpoint:
    """Commit a pytree as the checkpoint of a step; when this returns, it is durable.

    The options are those of `Run.save`: metrics, epoch, best, replace.
    """
    return run.save(step, plain_tree(tree), **options)


def restore(
    source: Run | Checkpoint, target: Any = None, ref: int | str = "latest", part: str | None = None
) -> Any:
    """A saved pytree, every byte of it verified: of a run's step, `latest`, `best` or a tag.

    Without a target it is what `save` made of it, in dicts, lists and tuples, with arrays on the
    default device. With one, a pytree of arrays or of ShapeDtypeStructs, it has its structure and
    shardings. It has its floating-point dtypes too, and is cast if others were saved. Anything
    else that differs is a StateMismatch, with the paths. `part` restores one member of a saved
    dict alone.
    """

    def restored(checkpoint: Checkpoint) -> Any:
        if target is None:
            return checkpoint.state(part=part)
        return _restored(checkpoint, target, part)

    return source.with_checkpoint(ref, restored) if isinstance(source, Run) else restored(source)


def _restored(checkpoint: Checkpoint, target: Any, part: str | None) -> Any:
    record = checkpoint.record
    found = matched(
        target, saved_tree(checkpoint, part), lambda mine, saved: _problem(mine, saved, record)
    )
    tensors = [match for match in found if isinstance(match.saved, Ref)]
    numbers = [match.saved.tensor for match in tensors]
    whole = [match.saved.tensor for match in tensors if _is_whole(match.mine)]
    with checkpoint.data(tensors=numbers) as data:
        arrays = data.arrays(tensors=whole)

        def leaf(mine: Any, saved: Any) -> Any:
            if not isinstance(saved, Ref):
                return saved
            spec = record.specs[saved.tensor]
            if saved.tensor in arrays:
                return _whole_leaf(mine, arrays[saved.tensor], spec)
            return _leaf_of_boxes(mine, data, saved.tensor, spec)

        leaves = [leaf(mine, saved) for _, mine, saved in found]
    return tree_unflatten(tree_structure(target), leaves)


def _is_whole(mine: Any) -> bool:
    return isinstance(mine, np.ndarray) or is_here(mine)


def _problem(mine: Any, saved: Any, record: Record) -> str | None:
    """Why what was saved cannot become a leaf of the target; its bytes are not read for that."""
    is_array = isinstance(mine, jax.Array | jax.ShapeDtypeStruct | np.ndarray)
    if is_array != isinstance(saved, Ref):
        was, wanted = ("a plain value", "an array") if is_array else ("an array", "a plain value")
        return f"{was} was saved, {wanted} is wanted"
    if not is_array:
        return None
    spec, kind = record.specs[saved.tensor], record.kinds[saved.tensor]
    wanted_kind, words = "", mine
    if not isinstance(mine, np.ndarray):
        words = words_like(mine)
        wanted_kind = f"jax:key:{implementation(mine)}" if is_key(mine) else ""
    saved_kind = kind if kind.startswith("jax:key:") else ""
    dtype = words.dtype.name
    castable = spec.dtype == dtype or {spec.dtype, dtype} <= _FLOATS
    if spec.shape != tuple(words.shape) or not castable or saved_kind != wanted_kind:
        was = f"{spec.dtype} {list(spec.shape)} {saved_kind}".strip()
        return f"{was} was saved, {dtype} {list(words.shape)} {wanted_kind}".strip() + " is wanted"
    try:
        refuse_lossy(words.dtype) if not isinstance(mine, np.ndarray) else None
    except UnsupportedDType as error:
        return str(error)
    return None


def _whole_leaf(mine: Any, array: Array, spec: TensorSpec) -> Any:
    if isinstance(mine, np.ndarray):
        return cast_array(array, spec, mine.dtype.name)
    return _weakened(mine, cut(mine, _as_wanted(mine, array, spec)))


def _leaf_of_boxes(mine: Like, data: Data, tensor: int, spec: TensorSpec) -> jax.Array:
    """An array that other processes have parts of: only what this one has is read."""
    arrays = []
    for box in wanted_boxes(mine):
        array = np.empty(box.shape, spec.kind.numpy)
        for part, found in parts_of(data, tensor, box):
            array[slices(within(part, box))] = found
        arrays.append(_as_wanted(mine, array, TensorSpec(spec.dtype, box.shape)))
    return assembled(mine, arrays)


def _as_wanted(mine: Like, array: Array, spec: TensorSpec) -> Array:
    """An array of the host in the dtype of the target."""
    dtype = words_like(mine).dtype.name
    return host_array(cast_array(array, spec, dtype), TensorSpec(dtype, spec.shape))


def _weakened(mine: Like, found: jax.Array) -> jax.Array:
    if is_key(mine) or not mine.weak_type:
        return found
    weak = as_weak(found)
    return weak if weak.sharding == found.sharding else jax.device_put(weak, found.sharding)
