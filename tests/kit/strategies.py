"""Random tensors of every dtype, shape and stride."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from standfast.tensors import DTYPES, Packed, TensorSpec

Array = np.ndarray[Any, Any]

WHOLE_BYTE_DTYPES = [name for name, kind in DTYPES.items() if not kind.packed]
PACKED_DTYPES = [name for name, kind in DTYPES.items() if kind.packed]
SAFETENSORS_DTYPES = [name for name in WHOLE_BYTE_DTYPES if name != "complex128"]

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)
names = st.text(st.characters(exclude_categories=["Cs"]), max_size=20).filter(
    lambda name: name != "__metadata__"
)


@st.composite
def arrays(draw: st.DrawFn, dtypes: list[str] = SAFETENSORS_DTYPES) -> Array:
    """An array of random bytes, often not in C order: transposed, sliced, reversed, repeated."""
    kind = DTYPES[draw(st.sampled_from(dtypes))]
    shape = draw(shapes)
    seed = draw(st.integers(0, 2**32 - 1))
    grown = tuple(n * 2 + 1 for n in shape)
    data = np.random.default_rng(seed).bytes(TensorSpec(kind.name, grown).nbytes)
    if kind.name == "bool":
        data = bytes(byte & 1 for byte in data)
    array = np.frombuffer(data, kind.numpy).reshape(grown)
    index = []
    for length, full in zip(shape, grown, strict=True):
        step = draw(st.sampled_from([1, 2, -1, -2]))
        window = range(full)[::step][:length]
        index.append(slice(window.start, window.stop if window.stop >= 0 else None, step))
    array = array[tuple(index)] if index else array
    assert array.shape == shape
    if draw(st.booleans()):
        array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()) and kind.numpy.itemsize > 1 and kind.numpy.kind in "iufc":
        array = array.astype(array.dtype.newbyteorder(">"))
    if draw(st.integers(0, 4)) == 0:
        array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
    return array


@st.composite
def packed(draw: st.DrawFn) -> Packed:
    dtype = draw(st.sampled_from(PACKED_DTYPES))
    shape = (*draw(shapes), 4 * draw(st.integers(0, 4)))
    spec = TensorSpec(dtype, shape)
    seed = draw(st.integers(0, 2**32 - 1))
    data = np.frombuffer(np.random.default_rng(seed).bytes(spec.nbytes), np.uint8)
    return Packed(data, dtype, shape)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=3)
    ),
    max_leaves=8,
)
metadata = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"])).filter(
        lambda key: not key.startswith("standfast.")
    ),
    json_values,
    max_size=5,
)


def same_bytes(a: Array, b: Array) -> bool:
    """Equal in shape, dtype and every bit, NaNs included."""
    b = b.astype(b.dtype.newbyteorder("<"), copy=False)
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()
