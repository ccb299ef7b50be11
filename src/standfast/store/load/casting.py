"""Stored tensors that are cast as they are loaded, with the views that lie in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from standfast.store.schema.record import Record
from standfast.store.tree.aliases import View, c_order, view_array
from standfast.tensors import TensorSpec
from standfast.tensors.cast import cast_array, cast_spec

Array = np.ndarray[Any, Any]


class Form(NamedTuple):
    """What the bytes of a stored tensor are read as, and what they become."""

    before: TensorSpec
    after: TensorSpec

    @property
    def is_cast(self) -> bool:
        """Whether they become other bytes."""
        return self.before != self.after


def grouped(record: Record, tensors: Iterable[int]) -> dict[int, list[int]]:
    """The tensors by the stored one that has their bytes: themselves, or what they are views of."""
    groups: dict[int, list[int]] = {}
    for tensor in dict.fromkeys(tensors):
        groups.setdefault(place_of(record, tensor).base, []).append(tensor)
    return groups


def place_of(record: Record, tensor: int) -> View:
    """Where the bytes of a tensor lie in those of the stored one that has them."""
    view = record.views.get(tensor)
    return View(tensor, 0, c_order(record.specs[tensor])) if view is None else view


def form_of(record: Record, stored: int, members: Sequence[int], cast: str | None) -> Form | None:
    """How a stored tensor is loaded so that its members can lie in it, as they did.

    None if they cannot: they see its bytes as several dtypes of which some are cast, or in a way
    that not all frameworks know.
    """
    whole, specs = record.specs[stored], [record.specs[member] for member in members]
    places = [place_of(record, member) for member in members]
    if not all(map(is_regular, places, specs)):
        return None
    if all(cast_spec(spec, cast) == spec for spec in specs):
        return Form(whole, whole)
    dtype, width = specs[0].dtype, specs[0].kind.numpy.itemsize
    if any(spec.dtype != dtype for spec in specs) or whole.nbytes % width:
        return None
    before = whole if whole.dtype == dtype else TensorSpec(dtype, (whole.nbytes // width,))
    return Form(before, cast_spec(before, cast))


def is_regular(place: View, spec: TensorSpec) -> bool:
    """Whether a view has its elements at multiples of their width, none before the first."""
    width = spec.kind.numpy.itemsize
    return not any(step < 0 or step % width for step in (place.offset, *place.strides))


def rescaled(place: View, before: TensorSpec, after: TensorSpec) -> View:
    """Where a regular view lies when the elements under it become as wide as another's."""
    old, new = before.kind.numpy.itemsize, after.kind.numpy.itemsize
    strides = tuple(step // old * new for step in place.strides)
    return View(place.base, place.offset // old * new, strides)


def cast_arrays(
    record: Record, arrays: Mapping[int, Array], tensors: Iterable[int], cast: str | None
) -> dict[int, Array]:
    """Loaded tensors as what the cast makes of them; those that were tied still are, if they can.

    The arrays are those of the tensors, and of the stored ones that have their bytes.
    """
    if cast is None:
        return dict(arrays)
    found: dict[int, Array] = {}
    for stored, members in grouped(record, tensors).items():
        form = form_of(record, stored, members, cast)
        if form is None or not form.is_cast:
            found |= {n: cast_array(arrays[n], record.specs[n], cast) for n in members}
            continue
        flat = arrays[stored].reshape(-1).view(np.uint8)
        base = cast_array(form.before.view(flat), form.before, cast).reshape(-1).view(np.uint8)
        for member in members:
            spec = record.specs[member]
            after = cast_spec(spec, cast)
            place = rescaled(place_of(record, member), spec, after)
            found[member] = view_array(base, after, place.offset, place.strides)
    return found
