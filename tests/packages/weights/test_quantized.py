import math
import threading
import tracemalloc
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from standfast import errors
from standfast.packages.weights import quantized
from standfast.tensors import Source, TensorSpec, source_of
from tests.kit.seams import Seams

Array = np.ndarray[Any, Any]
DTYPES = {name: np.dtype(name) for name in ("float16", "bfloat16", "float32", "float64")}
MOST = float(np.finfo(np.float32).max)


def _sources(arrays: Mapping[str, Array]) -> dict[str, Source]:
    return {name: source_of(array) for name, array in arrays.items()}


def _read(source: Source) -> Array:
    data = np.empty(source.spec.nbytes, np.uint8)
    source.copy_to(data, 0)
    return source.spec.view(data)


def _quantized(x: Array) -> tuple[Array, Array, Array]:
    """The whole numbers and scales of a matrix, and what comes back of them."""
    made, scheme = quantized.quantized(_sources({"x": x}))
    arrays = {name: _read(source) for name, source in made.items()}
    return arrays["x"], arrays["x.scale"], quantized.dequantized(arrays, scheme)["x"]


@st.composite
def matrices(draw: st.DrawFn, *dtypes: str) -> Array:
    """Matrices of all magnitudes, mixed in one row and across rows, subnormal ones included."""
    shape = draw(nps.array_shapes(min_dims=2, max_dims=3, min_side=1, max_side=6))
    shape = (*shape[:-1], shape[-1] + 1)
    dtype = DTYPES[draw(st.sampled_from(dtypes))]
    most = min(MOST, float(ml_dtypes.finfo(dtype).max))
    numbers = st.floats(-most, most, width=64) | st.sampled_from([0.0, -0.0, most, -most, 1e-45])
    exponents = draw(nps.arrays(np.int64, shape[:1], elements=st.integers(-140, 0)))
    with np.errstate(under="ignore"):
        values = draw(nps.arrays(np.float64, shape, elements=numbers))
        scaled = np.ldexp(values, exponents.reshape(-1, *[1] * (len(shape) - 1)))
        return np.clip(scaled, -most, most).astype(dtype)


def test_a_matrix_becomes_int8_and_a_scale_for_each_row():
    x = np.array([[0.5, -1.27, 0.635], [0, 0, -0.0], [254, 1, -3]], np.float32)
    numbers, scales, back = _quantized(x)
    assert numbers.dtype == np.int8
    assert numbers.tolist() == [[50, -127, 64], [0, 0, 0], [127, 0, -2]]
    assert scales.dtype == np.float32
    assert scales.tolist() == [np.float32(1.27) / np.float32(127), 1.0, 2.0]
    assert back.dtype == np.float32
    assert back.tolist() == (numbers * scales[:, None]).astype(np.float32).tolist()


def test_halves_are_rounded_to_even():
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, 126.5, -2.5]], np.float32)
    numbers, scales, _ = _quantized(x)
    assert scales.tolist() == [1.0]
    assert numbers.tolist() == [[127, 0, 2, 2, 0, -2, 126, -2]]
    x = np.array([[1.6369616985321045, 1.424285650253296]], np.float32)
    numbers, scales, _ = _quantized(x)
    assert x[0, 1] / scales[0] == np.float32(110.5)  # in float32; it is a little more
    assert numbers.tolist() == [[127, 111]]


@pytest.mark.parametrize("dtype", DTYPES)
@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_numbers_are_the_nearest_to_the_exact_quotients(dtype, data):
    """And what comes back of them is within half a scale; blocks of any size give the same."""
    x = data.draw(matrices(dtype))
    numbers, scales, back = _quantized(x)
    if dtype != "float64":
        expected = [
            [round(Fraction(float(value)) / Fraction(float(scale))) for value in row.reshape(-1)]
            for row, scale in zip(x, scales, strict=True)
        ]
        assert numbers.reshape(len(x), -1).tolist() == expected
    assert back.dtype == x.dtype
    # The product is rounded to float32, by 127 scales / 2**24 at most, or to the nearest number
    # of a short dtype: the weight itself is no farther than half a scale.
    most = Fraction(1, 2) if dtype in ("float32", "float64") else 1
    assert _largest_quotient(x, scales, back) <= most + Fraction(1, 1 << 16)
    if dtype in ("float32", "float64"):
        assert _quantized(back)[0].tobytes() == numbers.tobytes()
    with Seams.until_end() as seams:
        seams.bound("blocks of the quantizer", data.draw(st.integers(1, 20)))
        for before, after in zip((numbers, scales, back), _quantized(x), strict=True):
            assert after.tobytes() == before.tobytes()


def _largest_quotient(x: Array, scales: Array, back: Array) -> Fraction:
    """The largest error as a multiple of its row's scale, exactly."""
    return max(
        abs(Fraction(float(value)) - Fraction(float(other))) / Fraction(float(scale))
        for row, others, scale in zip(x, back, scales, strict=True)
        for value, other in zip(row.reshape(-1), others.reshape(-1), strict=True)
    )


@given(st.data())
def test_any_stretch_of_bytes_can_be_asked_for(data):
    x = np.random.default_rng(1).normal(size=(7, 5)).astype(np.float32)
    source = quantized.quantized(_sources({"x": x}))[0]["x"]
    whole = _read(source).reshape(-1).view(np.uint8)
    start = data.draw(st.integers(0, whole.size))
    out = np.empty(data.draw(st.integers(0, whole.size - start)), np.uint8)
    source.copy_to(out, start)
    assert out.tobytes() == whole[start : start + out.size].tobytes()


def test_everything_but_matrices_stays_as_it_is():
    arrays = {
        "vector": np.ones(8, np.float32),
        "scalar": np.array(3, np.float32),
        "column": np.ones((8, 1), np.float32),
        "whole": np.ones((4, 4), np.int64),
        "bytes": np.ones((4, 4), np.int8),
        "complex": np.ones((4, 4), np.complex64),
        "short": np.ones((4, 4), ml_dtypes.float8_e4m3fn),
        "wide": np.ones((4, 0), np.float32),
    }
    sources = _sources(arrays)
    made, scheme = quantized.quantized(sources)
    assert made == sources
    assert scheme == {"scheme": "int8 per row", "tensors": {}}
    back = quantized.dequantized(arrays, scheme)
    assert all(back[name] is array for name, array in arrays.items())


@pytest.mark.parametrize("shape", [(0, 3), (3, 2), (2, 3, 4), (2, 1, 2)])
def test_each_first_index_has_one_scale(shape):
    x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    numbers, scales, back = _quantized(x)
    assert numbers.shape == back.shape == shape
    assert scales.shape == shape[:1]
    flat = np.abs(x.reshape(shape[0], -1)) if x.size else np.zeros((0, 1), np.float32)
    assert scales.tolist() == (flat.max(axis=1) / np.float32(127)).tolist()
    for strided, plain in zip(
        _quantized(np.asfortranarray(x)), (numbers, scales, back), strict=True
    ):
        assert strided.tobytes() == plain.tobytes()


def test_a_tensor_with_the_name_of_scales_is_refused():
    with pytest.raises(errors.DuplicateName, match=r"'x\.scale'"):
        quantized.quantized(_sources({"x": np.ones((2, 2)), "x.scale": np.ones(2)}))
    arrays = {"norm": np.ones(2, np.float32), "norm.scale": np.ones(2, np.float32)}
    made, scheme = quantized.quantized(_sources(arrays))  # nothing is quantized: no harm
    assert list(made) == list(quantized.dequantized(arrays, scheme)) == ["norm", "norm.scale"]


GOOD = {"scheme": "int8 per row", "tensors": {"x": "float32"}}
NUMBERS = np.ones((2, 3), np.int8)
SCALES = np.ones(2, np.float32)


def test_what_no_writer_wrote_is_refused():
    arrays = {"x": NUMBERS, "x.scale": SCALES}
    assert quantized.dequantized(arrays, GOOD)["x"].tolist() == [[1, 1, 1]] * 2
    for scheme in ({"scheme": "int4", "tensors": {}}, {"scheme": "\x1b[2J", "tensors": {}}):
        with pytest.raises(errors.UnsupportedFile) as caught:
            quantized.dequantized(arrays, scheme)
        assert str(caught.value).isprintable()
    no_texts = ({"scheme": 8, "tensors": {}}, {"scheme": "int8 per row"})
    tensors = (["x"], {"y": "float32"}, {"x": "float32", "x.scale": "float32"})
    dtypes = ({"x": "int8"}, {"x": ["float32"]}, {"x": None})
    wrong = (GOOD | {"tensors": each} for each in (*tensors, *dtypes))
    for scheme in (None, "int8 per row", [], {}, *no_texts, *wrong):
        with pytest.raises(errors.BadField):
            quantized.dequantized(arrays, scheme)
    listed = GOOD | {"tensors": {"x.scale": "float32", "x": "float32"}}
    specs = {"x": TensorSpec("int8", (2, 3)), "x.scale": TensorSpec("int8", (2, 3))}
    specs["x.scale.scale"] = TensorSpec("float32", (2,))
    with pytest.raises(errors.BadField, match=r"x\.scale"):
        quantized.dequantized_specs(specs, listed)
    for numbers in (NUMBERS.view(np.uint8), np.ones(2, np.int8)):
        with pytest.raises(errors.BadField, match="'x'"):
            quantized.dequantized({"x": numbers, "x.scale": SCALES}, GOOD)
    shapes = (np.ones(3, np.float32), np.ones((2, 1), np.float32), np.ones(2))
    for scales in (*shapes, SCALES * np.float32("nan"), SCALES * 0, -SCALES, None):
        given = {"x": NUMBERS} if scales is None else {"x": NUMBERS, "x.scale": scales}
        with pytest.raises(errors.BadField, match=r"x\.scale"):
            quantized.dequantized(given, GOOD)


def test_the_report_is_what_a_plain_computation_gives(seams):
    rng = np.random.default_rng(5)
    arrays = {
        "a": rng.normal(size=(40, 30)).astype(np.float32),
        "b": rng.normal(size=(3, 7)).astype(np.float16),
        "bias": rng.normal(size=30).astype(np.float32),
    }
    back = {name: _quantized(arrays[name])[2] for name in "ab"}
    seams.bound("blocks of the quantizer", 64)
    report = quantized.measure(_sources(arrays))
    differences = [arrays[name].astype(np.float64) - back[name] for name in "ab"]
    assert report.largest_error == max(float(np.abs(each).max()) for each in differences)
    squares = sum(float((each**2).sum()) for each in differences)
    weights = sum(float((arrays[name].astype(np.float64) ** 2).sum()) for name in "ab")
    assert report.relative_error == pytest.approx(math.sqrt(squares / weights), rel=1e-12)
    assert 0 < report.relative_error < 0.01
    assert report.as_dict() == {
        "scheme": "int8 per row",
        "largest_error": report.largest_error,
        "relative_error": report.relative_error,
        "nbytes_before": 40 * 30 * 4 + 3 * 7 * 2 + 30 * 4,
        "nbytes_after": 40 * 30 + 40 * 4 + 3 * 7 + 3 * 4 + 30 * 4,
    }


def test_what_was_quantized_already_is_measured_without_another_pass_for_the_scales():
    asked: list[int] = []
    tensors: Any = {"a": _MadeUp(TensorSpec("float32", (40, 30)), asked.append)}
    written, _ = quantized.quantized(tensors)
    asked.clear()
    report = quantized.measure(tensors, written)
    once = sum(asked)
    asked.clear()
    assert report == quantized.measure(tensors)
    assert once < sum(asked)


@pytest.mark.parametrize("arrays", [{}, {"x": np.zeros((2, 2))}, {"x": np.ones((0, 4))}])
def test_weights_of_nothing_have_no_error(arrays):
    report = quantized.measure(_sources(arrays))
    assert (report.largest_error, report.relative_error) == (0.0, 0.0)


@pytest.mark.parametrize("size", [1.0, 1e-20, 1e-300, 5e-324])
def test_the_relative_error_of_tiny_weights_is_not_lost(size, seams):
    x = np.random.default_rng(4).choice([-1.0, 1.0, 0.3], (50, 40)) * size
    back = _quantized(x)[2]
    seams.bound("blocks of the quantizer", 64)
    report = quantized.measure(_sources({"x": x, "zero": np.zeros((2, 3))}))
    exact = [[Fraction(float(value)) for value in each.flat] for each in (x - back, x)]
    error, weight = (sum(value * value for value in each) for each in exact)
    assert report.relative_error == pytest.approx(math.sqrt(error / weight), rel=1e-12)
    assert (report.relative_error == 1.0) == (size < 1e-100)


class _MadeUp:
    """A source of any size that has no memory, and notes which stretch was asked for."""

    sequential = True

    def __init__(self, spec: TensorSpec, note: Callable[[int], None]) -> None:
        self.spec = spec
        self._note = note

    def contiguous(self) -> None:
        return None

    def copy_to(self, out: Array, start: int) -> None:
        self._note(out.size)
        out[:] = 0
        out[3::4] = 0x3F


@pytest.mark.parametrize("shape", [(2, 4 << 20), (2 << 20, 4)])
def test_a_large_matrix_takes_a_few_blocks_of_memory(shape):
    asked: list[int] = []
    spec = TensorSpec("float32", shape)
    out = np.empty(1 << 20, np.uint8)
    tracemalloc.start()
    try:
        made, _ = quantized.quantized({"x": _MadeUp(spec, asked.append)})
        assert sum(asked) == spec.nbytes
        made["x"].copy_to(out, 5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (out == 127).all()
    assert max(asked) == quantized.BLOCK * 4
    assert sum(asked) == spec.nbytes + 4 * out.size
    assert peak < (8 << 20) + 40 * shape[0]


def test_many_threads_read_the_same_bytes():
    x = np.random.default_rng(2).normal(size=(300, 700)).astype(np.float32)
    source = quantized.quantized(_sources({"x": x}))[0]["x"]
    expected = _read(source).tobytes()
    barrier = threading.Barrier(4)

    def read(_: int) -> bytes:
        barrier.wait(timeout=30)
        return _read(source).tobytes()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(read, range(4))) == [expected] * 4
