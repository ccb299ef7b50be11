"""Summaries, histograms, pictures and differences of tensors, against plain NumPy."""

import itertools
import math
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import standfast
from standfast import Store
from standfast.errors import BadOption, DigestMismatch, TensorNotFound, UnsupportedDType
from standfast.files.digests import CHUNK
from standfast.store.query.view import CheckpointView
from standfast.tensorfile.open import TensorFile
from standfast.tensors.dtypes import DTYPES
from standfast.tensors.sources import Packed
from standfast.web import samples
from standfast.web.numbers import difference, heatmap, summary
from tests.kit.cases import kept
from tests.kit.cli import flip_in
from tests.store.save.cut import Cut, cut_framework, even

__all__ = ["cut_framework"]

Look = Callable[[Any], Any]
ROWS, COLUMNS = 3500, 5001
"""Of a matrix of 70 MB: in chunks of 16 MiB, whose ends are in the middle of rows."""


@pytest.fixture(params=kept(["checkpoint", "file", "bare", "npz"], "checkpoint", "npz"))
def look(request: pytest.FixtureRequest, tmp_path: Path) -> Look:
    """Puts an array where it can be looked at, as the tensor `w`."""

    def put(array: Any) -> Any:
        folder = Path(tempfile.mkdtemp(dir=tmp_path))
        if request.param == "checkpoint":
            return view_of(folder, array)
        path = folder / f"w.{'npz' if request.param == 'npz' else 'safetensors'}"
        if path.suffix == ".npz" and getattr(array, "dtype", None) not in map(
            np.dtype, "?bBhHiIqQefdFD"
        ):
            pytest.skip("NumPy has no such dtype")
        try:
            standfast.save(path, {"w": array}, extras=request.param != "bare")
        except UnsupportedDType:
            pytest.skip("the format has no such dtype")
        return TensorFile(path)

    return put


def view_of(folder: Path, *steps: Any) -> CheckpointView:
    """The last of some steps that have an array each, as the tensor `w`."""
    store = Store(folder / "store")
    with store.run("a") as run:
        for step, array in enumerate(steps):
            run.save(step, {"w": array})
    return view_at(store, len(steps) - 1)


def changed(folder: Path, before: Any, after: Any) -> dict[str, Any]:
    """The difference of two steps, and what was before and after."""
    view_of(folder, before, after)
    store = Store(folder / "store")
    return difference(view_at(store, 0), view_at(store, 1), "w")


def view_at(store: Store, step: int) -> CheckpointView:
    return CheckpointView(store.resolve(f"a@{step}"))


def check(found: dict[str, Any], values: Any, bins: int = 64) -> None:
    """What NumPy says: all that is exact to the bit, sums to almost all digits."""
    values = np.asarray(values, np.float64).reshape(-1)
    finite = values[np.isfinite(values)]
    counts, edges = np.histogram(finite, bins)
    exact = {
        "min": finite.min(),
        "max": finite.max(),
        "zeros": np.count_nonzero(values == 0),
        "nan": np.count_nonzero(np.isnan(values)),
        "inf": np.count_nonzero(np.isinf(values)),
        "histogram": {"edges": edges.tolist(), "counts": counts.tolist()},
        "seen": values.size,
    }
    assert {key: found[key] for key in exact} == exact
    assert math.isclose(found["mean"], finite.mean(), rel_tol=1e-9, abs_tol=1e-12)
    assert math.isclose(found["std"], finite.std(), rel_tol=1e-9)
    assert math.isclose(found["norm"], math.sqrt((finite**2).sum()), rel_tol=1e-12)


REALS = "float32 float64 float16 bfloat16 int32 uint32 int64 uint64 int16 uint16".split()
KINDS = kept([*REALS, "complex64", "complex128"], "float32", "bfloat16", "uint64", "complex64")
FLOAT8 = [name for name in DTYPES if name.startswith("float8")]


@pytest.mark.parametrize("dtype", KINDS)
def test_elements_are_told_as_numpy_tells_them(look, dtype):
    kind = DTYPES[dtype].numpy
    parts = 1000 * np.random.default_rng(1).standard_normal((2, 300, 70))
    array = (parts[0] + 1j * parts[1] if kind.kind == "c" else np.abs(parts[0])).astype(kind)
    if kind.kind not in "iu":
        array[3, 4:9] = [np.nan, np.inf, -np.inf, 0.0, -0.0]
    found = summary(look(array), "w")
    check(found, np.abs(array.astype(np.complex128)) if kind.kind == "c" else array)
    assert (found["exact"], found["shape"]) == (True, [300, 70])
    assert found["of"] == ("modulus" if kind.kind == "c" else "value")
    assert type(found["min"]) is (int if kind.kind in "iu" else float)


@pytest.mark.parametrize("dtype", kept(FLOAT8, "float8_e4m3fn"))
def test_floats_of_eight_bits_are_counted_bit_by_bit(look, dtype):
    array = np.arange(256, dtype=np.uint8).repeat(3).view(DTYPES[dtype].numpy)
    check(summary(look(array), "w", 16), array.astype(np.float64), 16)


def test_few_whole_numbers_have_a_bin_each(look):
    for array, edges, counts in (
        (np.array([3, 5, 5, 9], np.int8), np.arange(2.5, 10), [1, 0, 2, 0, 0, 0, 1]),
        (np.array([-3, -1, -1], np.int64), np.arange(-3.5, 0), [1, 0, 2]),
        (np.array([True, False, True]), np.arange(-0.5, 2), [1, 2]),
    ):
        found = summary(look(array), "w")
        assert found["histogram"] == {"edges": edges.tolist(), "counts": counts}
        assert (found["min"], found["max"]) == (int(array.min()), int(array.max()))


def test_whole_numbers_beyond_float64_are_not_rounded(look):
    for array, counts in (
        (np.array([2**60 + 1, 2**60 + 1, 2**60 + 101]), [2, 0, 0, 0, 0, 0, 0, 1]),
        (np.array([-(2**63), 2**63 - 1, 0]), [1, 0, 0, 0, 1, 0, 0, 1]),
        (np.array([0, 2**64 - 1], np.uint64), [1, 0, 0, 0, 0, 0, 0, 1]),
    ):
        found = summary(look(array), "w", 8)
        assert (found["min"], found["max"]) == (min(array.tolist()), max(array.tolist()))
        assert found["histogram"]["counts"] == counts
    assert found["mean"] == 2.0**63
    close = summary(look(np.array([2**60, 2**60, 2**60 + 100])), "w", 8)
    assert close["std"] == pytest.approx(np.array([0.0, 0.0, 100.0]).std())


@pytest.mark.parametrize("dtype", ["float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"])
def test_packed_elements_are_counted_one_by_one(look, dtype):
    width = DTYPES[dtype].bits
    codes = np.random.default_rng(4).integers(0, 1 << width, 400).astype(np.uint8)
    bits = (codes[:, None] >> np.arange(width) & 1).reshape(-1)
    source = look(Packed(np.packbits(bits.astype(np.uint8), bitorder="little"), dtype, (20, 20)))
    values = codes.view(getattr(ml_dtypes, dtype)).astype(np.float64)
    check(summary(source, "w"), values)
    assert heatmap(source, "w", 20, 20)["values"] == values.reshape(20, 20).tolist()


def test_scalars_empty_tensors_and_equal_or_missing_numbers_have_few_bins(look):
    for array, edges, counts in (
        (np.float32(2.5)[...], [2.5, 2.5], [1]),
        (np.full((4, 5), 7, np.uint8), [7, 7], [20]),
        (np.full((4, 5), 7, np.float16), [7, 7], [20]),
        (np.full(5, np.nan), [], []),
        (np.zeros((0, 3), np.float32), [], []),
    ):
        found = summary(look(array), "w")
        assert found["histogram"] == {"edges": edges, "counts": counts}
        values = array[np.isfinite(array)]
        assert (found["mean"], found["std"]) == ((values[0], 0) if values.size else (None, None))
    assert (found["seen"], found["exact"], found["min"]) == (0, True, None)
    assert heatmap(look(array), "w")["values"] == []
    found = summary(look(np.array([1.0, np.nextafter(1.0, 2), np.nextafter(1.0, 2)])), "w")
    edges = found["histogram"]["edges"]
    assert edges == sorted(set(edges))
    assert sum(found["histogram"]["counts"]) == 3


def test_huge_and_tiny_numbers_do_not_leave_the_range(look):
    huge = summary(look(np.array([-1.5e308, 1.5e308, 1.5e308])), "w", 8)
    assert huge["mean"] == pytest.approx(0.5e308)
    assert huge["std"] == pytest.approx(np.array([-1.5, 1.5, 1.5]).std() * 1e308)
    assert huge["norm"] is None  # there is no such number
    assert huge["histogram"]["counts"] == [1, 0, 0, 0, 0, 0, 0, 2]
    assert huge["histogram"]["edges"][0] == -1.5e308
    least = 5e-324
    tiny = summary(look(np.array([0.0, least, 64 * least])), "w", 8)
    assert (tiny["min"], tiny["max"], tiny["zeros"]) == (0.0, 64 * least, 1)
    assert tiny["histogram"]["counts"] == [2, 0, 0, 0, 0, 0, 0, 1]
    assert tiny["std"] == round(np.array([0, 1, 64.0]).std()) * least
    small = np.array([1e-200, 3e-200])
    assert summary(look(small), "w")["std"] == pytest.approx(1e-200)


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Store, Path]:
    """A matrix of more than 64 MiB, in a store twice and in a file; a part of it changes."""
    folder = tmp_path_factory.mktemp("large")
    array = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    view_of(folder, array, array + np.float32(64))
    standfast.save(folder / "w.safetensors", {"w": array})
    return array, Store(folder / "store"), folder / "w.safetensors"


def sampled(array: Any) -> Any:
    """Four chunks of a large array, spread evenly."""
    flat = array.reshape(-1)
    total = -(-array.nbytes // CHUNK)
    numbers = [(2 * i + 1) * total // 8 for i in range(4)]
    length = CHUNK // array.itemsize
    return np.concatenate([flat[n * length : (n + 1) * length] for n in numbers])


def test_of_a_large_tensor_whole_chunks_are_looked_at(large):
    array, store, path = large
    seen = sampled(array)
    with TensorFile(path) as file:
        for source in (view_at(store, 0), file):
            found = summary(source, "w")
            assert (found["exact"], found["seen"]) == (False, seen.size)
            assert seen.size < array.size
            check(found | {"norm": found["norm"] / math.sqrt(array.size / seen.size)}, seen)
    found = difference(view_at(store, 0), view_at(store, 1), "w")
    (count,) = {found[side]["seen"] for side in ("before", "after", "difference")}
    assert 0 < count < array.size
    change = (array + np.float32(64)).astype(np.float64) - array
    assert found["difference"]["max"] <= change.max()
    assert found["difference"]["zeros"] == 0


def test_damage_in_what_is_read_is_found(tmp_path):
    view_of(tmp_path, np.arange(50_000, dtype=np.float32))
    store = Store(tmp_path / "store")
    flip_in(store, "a@0", "w")
    for work in (summary, heatmap):
        with pytest.raises(DigestMismatch):
            work(view_at(store, 0), "w")


def test_a_part_of_a_larger_tensor_is_read_from_where_it_lies(tmp_path):
    whole = np.random.default_rng(6).standard_normal(CHUNK // 8 + 4096)
    parts = {"part": whole[100:3000].reshape(29, 100), "end": whole[-5000:], "column": whole[::3]}
    store = Store(tmp_path / "store")
    with store.run("a") as run:
        run.save(0, {"whole": whole, **parts})
    view = view_at(store, 0)
    for name, part in parts.items():
        assert view.chunks(name) is None
        check(summary(view, name), part)
    assert heatmap(view, "part")["values"] == parts["part"].tolist()
    same = difference(view, view, "end")["difference"]
    assert (same["zeros"], same["max"]) == (5000, 0.0)


@pytest.mark.usefixtures("cut_framework")
@pytest.mark.parametrize("counts", [(3, 1), (1, 3), (2, 2)])
def test_a_tensor_of_many_ranks_is_put_together(tmp_path, counts):
    array = np.random.default_rng(7).standard_normal((50, 90)).astype(np.float32)
    view = view_of(tmp_path, Cut(array, even(array.shape, counts)))
    check(summary(view, "w"), array)
    assert heatmap(view, "w", 50, 90)["values"] == array.tolist()


def test_any_stretch_of_a_tensor_is_some_boxes():
    numbers = np.arange(60).reshape(3, 4, 5)
    for first, stop in itertools.combinations_with_replacement(range(61), 2):
        found = [
            numbers[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))].reshape(-1)
            for box in samples.boxes_of(numbers.shape, first, stop)
        ]
        assert np.concatenate([np.empty(0), *found]).tolist() == list(range(first, stop))


def test_the_difference_is_what_was_added(tmp_path):
    rng = np.random.default_rng(9)
    for dtype in ("float32", "float64", "float16", "int32", "complex64"):
        before = (100 * rng.standard_normal((80, 90))).astype(dtype)
        after = (100 * rng.standard_normal((80, 90))).astype(dtype)
        found = changed(tmp_path / dtype, before, after)
        store = Store(tmp_path / dtype / "store")
        wide = np.complex128 if dtype == "complex64" else np.float64
        change = after.astype(wide) - before.astype(wide)
        check(found["difference"], np.abs(change) if dtype == "complex64" else change)
        assert found["before"] == summary(view_at(store, 0), "w")
        assert found["after"] == summary(view_at(store, 1), "w")


LIMITS = np.array([-(2**63), 2**63 - 1, 5])
UNSIGNED = np.array([0, 7], np.uint64), np.array([2**64 - 1, 6], np.uint64)
BOOL = np.array([True, False]), np.array([False, False])


def test_differences_of_whole_numbers_do_not_overflow(tmp_path):
    for name, before, after, least, most, zeros in (
        ("int64", LIMITS, LIMITS[[1, 0, 2]], -(2.0**64), 2.0**64, 1),
        ("uint64", *UNSIGNED, -1.0, 2.0**64, 0),
        ("bool", *BOOL, -1, 0, 1),
        ("equal", LIMITS, LIMITS, 0.0, 0.0, 3),
    ):
        found = changed(tmp_path / name, before, after)["difference"]
        assert (found["min"], found["max"], found["zeros"]) == (least, most, zeros), name


def test_what_is_the_same_has_not_changed_though_it_is_no_number(tmp_path):
    before = np.array([np.nan, np.inf, 1.0, np.nan], np.float32)
    found = changed(tmp_path, before, np.array([np.nan, np.inf, 2.0, 0.0], np.float32))[
        "difference"
    ]
    assert (found["zeros"], found["nan"], found["inf"], found["max"]) == (2, 1, 0, 1.0)


def test_tensors_of_other_shapes_or_dtypes_have_no_difference(tmp_path):
    view_of(tmp_path, np.zeros((2, 3)), np.zeros((3, 2)), np.zeros((3, 2), np.float32))
    store = Store(tmp_path / "store")
    for before in (0, 1):
        with pytest.raises(BadOption):
            difference(view_at(store, before), view_at(store, before + 1), "w")


def cells(matrix: Any, rows: int, columns: int) -> Any:
    """The means of a matrix cut into so many rows and columns."""
    height, width = matrix.shape
    tops = [height * i // rows for i in range(rows + 1)]
    lefts = [width * j // columns for j in range(columns + 1)]
    return np.array(
        [
            [matrix[a:b, c:d].mean(dtype=np.float64) for c, d in itertools.pairwise(lefts)]
            for a, b in itertools.pairwise(tops)
        ]
    )


def test_a_small_matrix_is_its_own_picture_and_a_vector_one_row_or_wrapped(look):
    array = np.random.default_rng(11).standard_normal((30, 40)).astype(np.float32)
    array[2, 3] = np.nan
    found = heatmap(look(array), "w")
    shown = array.astype(np.float64).tolist()
    shown[2][3] = None
    assert (found["values"], found["exact"], found["reduced"]) == (shown, True, None)
    assert (found["rows"], found["columns"]) == (30, 40)
    short = heatmap(look(np.arange(100.0)), "w")
    assert (short["values"], short["wrapped"]) == ([np.arange(100.0).tolist()], None)
    long = heatmap(look(np.arange(1000.0)), "w")
    assert (long["rows"], long["columns"], long["wrapped"]) == (32, 32, 32)
    flat = [value for row in long["values"] for value in row]
    assert flat == [*np.arange(1000.0).tolist(), *[None] * 24]
    assert heatmap(look(np.float64(3)[...]), "w")["values"] == [[3.0]]
    huge = np.full((4, 4), 1.5e308)  # whose mean does not leave the range
    huge[3, 3] = np.inf
    assert heatmap(look(huge), "w", 2, 2)["values"] == [[1.5e308, 1.5e308], [1.5e308, None]]


@pytest.mark.parametrize(
    "dtype", kept(["float32", "float16", "int64", "uint8"], "float16", "int64")
)
def test_a_larger_matrix_is_the_mean_of_cells(look, dtype):
    array = (50 + 10 * np.random.default_rng(12).standard_normal((700, 333))).astype(dtype)
    found = heatmap(look(array), "w", 64, 100)
    assert found["reduced"] == "mean"
    np.testing.assert_allclose(found["values"], cells(array, 64, 100), rtol=1e-12)


def test_of_more_dimensions_the_last_two_are_shown(look):
    array = np.arange(2 * 3 * 4 * 5, dtype=np.float32).reshape(2, 3, 4, 5)
    source = look(array)
    assert heatmap(source, "w")["values"] == array[0, 0].tolist()
    found = heatmap(source, "w", index=(1, 2))
    assert (found["values"], found["index"]) == (array[1, 2].tolist(), [1, 2])
    assert heatmap(source, "w", index=(1,))["index"] == [1, 0]
    for index in ((2, 0), (0, 3), (0, 0, 0), (-1,)):
        with pytest.raises(BadOption):
            heatmap(source, "w", index=index)
    for bins in (7, 513, 0, -1):
        with pytest.raises(BadOption):
            summary(source, "w", bins)
    for rows, columns in ((0, 5), (257, 5), (5, 0), (5, 257)):
        with pytest.raises(BadOption):
            heatmap(source, "w", rows, columns)
    with pytest.raises(TensorNotFound):
        summary(source, "other")


def test_of_a_larger_matrix_some_bands_are_shown(large, seams):
    array, store, _ = large
    exact = heatmap(view_at(store, 0), "w", 32, 16)
    assert exact["exact"] is True
    np.testing.assert_allclose(exact["values"], cells(array, 32, 16), rtol=1e-12)
    seams.bound("values of a whole heatmap", 32 << 20)
    found = heatmap(view_at(store, 0), "w", 32, 16)
    assert found["exact"] is False
    assert (found["rows"], len(found["row_spans"])) == (32, 32)
    looked = sum(b - a for a, b in found["row_spans"]) * COLUMNS * 4
    assert 31 << 20 < looked <= 32 << 20
    for (top, bottom), row in zip(found["row_spans"], found["values"], strict=True):
        np.testing.assert_allclose(row, cells(array[top:bottom], 1, 16)[0], rtol=1e-12)


def test_of_very_long_rows_some_parts_are_shown(tmp_path, seams):
    array = np.random.default_rng(13).integers(0, 200, (3, 17_000_000), np.uint8)
    view = view_of(tmp_path, array)
    exact = heatmap(view, "w", 2, 50)
    np.testing.assert_allclose(exact["values"], cells(array, 2, 50), rtol=1e-12)
    seams.bound("values of a whole heatmap", 48 << 20)
    found = heatmap(view, "w", 4, 50)
    assert (found["exact"], found["rows"], found["columns"]) == (False, 1, 50)
    (row, _), (left, right) = found["row_spans"][0], found["column_spans"][7]
    assert found["values"][0][7] == pytest.approx(array[row, left:right].mean())
