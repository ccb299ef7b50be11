"""The bytes of a tensor as an array or as a source, however they lie in the file."""

from __future__ import annotations

from typing import Any

import numpy as np

from holdfast.files.deflate import InflatingSource, inflate
from holdfast.files.layout import Form
from holdfast.tensors import ArraySource, Source, TensorSpec
from holdfast.tensors.sources import Bytes

Array = np.ndarray[Any, Any]


def as_array(data: Bytes, spec: TensorSpec, form: Form | None) -> Array:
    """The tensor as users see it: a view of the bytes wherever they can be seen as one."""
    if form is None:
        return spec.view(data)
    if form.record is not None:
        array = data.view(form.record)
        return array if array.flags.aligned else array.copy()
    array = _as_it_lies(inflate(data, form.deflated) if form.deflated else data, spec, form)
    if form.big_endian:
        return array.astype(spec.kind.numpy, order="C")
    return array if array.flags.aligned else array.copy()


def as_source(data: Bytes, spec: TensorSpec, form: Form) -> Source:
    """The tensor as a source, in C order and little-endian, without a copy of it.

    A compressed tensor in another order than that cannot be streamed, and takes its size.
    """
    if form.deflated:
        if form.strides is None and not form.big_endian:
            return InflatingSource(data, form.deflated, spec)
        data = inflate(data, form.deflated)
    return ArraySource(_as_it_lies(data, spec, form), spec)


def _as_it_lies(data: Bytes, spec: TensorSpec, form: Form) -> Array:
    dtype = spec.kind.numpy
    if form.big_endian:
        dtype = dtype.newbyteorder(">")
    if not data.size:
        return np.empty(spec.array_shape, dtype)
    return np.ndarray(spec.array_shape, dtype, data.data, 0, form.strides)
