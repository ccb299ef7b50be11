"""The OXCK format behind the verbs: the golden file, what is written and read back, refusals."""

from __future__ import annotations

import io
import math
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import (
    BadName,
    DuplicateName,
    NotVerified,
    RefusedMetadata,
    UnsupportedDType,
    UnsupportedShape,
)
from standfast.formats.oxck import file as oxck
from standfast.tensors import DTYPES, TensorSpec
from tests import GOLDEN
from tests.formats.builders import Array, chunks
from tests.formats.oxck.builders import (
    file_of,
    floats,
    index_of,
    original_read,
    saved,
    sealed_file,
    tensor,
)
from tests.kit.strategies import arrays, metadata, names, same_bytes

FIRST = GOLDEN / "oxck_mixed.oxck"
METADATA = {"lang": "日本語 ünï", "loss": "0.123", "note": 'say "hi" \\ back', "step": "1000"}


def golden_tensors() -> dict[str, Array]:
    """What the golden file holds, by its description."""
    values = {
        "layer.0.weight": np.arange(24).reshape(2, 3, 4) * 0.5 - 3,
        "layer.0.bias": [math.nan, math.inf, -0.0, 1e-40],
        "scalar": [3.5],
        "scalar0d": 7.0,
        "empty": [],
        "重み": [1, 2],
    }
    return {name: np.array(value, np.float32) for name, value in values.items()}


def opened(data: bytes, **options: Any) -> standfast.TensorFile:
    return standfast.open(io.BytesIO(data), **options)


# The golden file


def test_the_golden_file_holds_what_was_saved() -> None:
    with standfast.open(FIRST) as file:
        assert (file.format, file.metadata, file.has_digests) == ("oxck", METADATA, False)
        assert list(file) == list(golden_tensors())
        for name, expected in golden_tensors().items():
            assert same_bytes(file[name], expected)
            assert file[name].flags.aligned


def test_the_golden_file_is_saved_again_byte_for_byte(tmp_path: Path) -> None:
    shuffled = dict(reversed(METADATA.items()))
    standfast.save(tmp_path / "again.oxck", golden_tensors(), shuffled, extras=False)
    assert (tmp_path / "again.oxck").read_bytes() == FIRST.read_bytes()


# Written and read back


def test_the_original_reads_a_file_with_extras() -> None:
    text, tensors = original_read(io.BytesIO(saved(golden_tensors(), METADATA)))
    ours = {key for key in text if key.startswith("standfast.")}
    assert ours == {"standfast.chunks", "standfast.digest"}
    assert {key: text[key] for key in text if key not in ours} == METADATA
    for found, (name, array) in zip(tensors, golden_tensors().items(), strict=True):
        assert (found.name, found.shape) == (name, list(array.shape))
        assert found.data == array.tobytes()


@settings(deadline=None)
@given(st.dictionaries(names, arrays(["float32"]), max_size=4), metadata)
def test_tensors_come_back_as_they_were_saved(
    tensors: dict[str, Array], metadata: dict[str, Any]
) -> None:
    data = saved(tensors, metadata)
    file = opened(data)
    assert (list(file), file.metadata, file.has_digests) == (list(tensors), metadata, True)
    strings, originals = original_read(io.BytesIO(data))
    for original, (name, array) in zip(originals, tensors.items(), strict=True):
        assert same_bytes(file[name], array)
        little = np.ascontiguousarray(array, "<f4").tobytes()
        assert original == (name, list(array.shape), little)
        assert file[name].flags.aligned
    assert {k: v for k, v in metadata.items() if isinstance(v, str)}.items() <= strings.items()
    assert saved(dict(file), metadata) == data


@settings(deadline=None)
@given(
    st.dictionaries(names, arrays(["float32"]), max_size=4),
    st.dictionaries(names.filter(lambda key: not key.startswith("standfast.")), names, max_size=4),
)
def test_without_extras_there_is_nothing_of_ours(
    tensors: dict[str, Array], metadata: dict[str, str]
) -> None:
    data = saved(tensors, metadata, extras=False)
    strings, originals = original_read(io.BytesIO(data))
    assert strings == metadata == opened(data).metadata
    assert [original.name for original in originals] == list(tensors)
    assert index_of(data).digests is None
    assert saved(dict(opened(data)), strings, extras=False) == data


def test_our_keys_have_the_bytes_of_their_page() -> None:
    elements = floats(1, 2)
    text = (
        f'{{"a":"3","standfast.chunks":"{chunks(elements)}","standfast.digest":"SEAL",'
        '"standfast.json":"[\\"a\\"]","z":"x"}'
    )
    padded = text + " " * (4096 - 28 - len(text) - 60)
    expected = sealed_file(padded, ("w", (2,), elements))
    assert saved({"w": np.array([1, 2], np.float32)}, {"z": "x", "a": 3}) == expected
    assert expected.index(b"\1\0\0\0w") == 4096


@pytest.mark.parametrize(
    "key",
    ['a"standfast.digest', '{"standfast.digest', ',"standfast.digest', '"standfast.digest":"'],
)
def test_a_key_or_value_that_looks_like_ours_is_only_a_key_or_value(key: str) -> None:
    given = {key: "v" * 80, "b": key, "standfast": key}
    file = opened(saved({"w": np.ones(1, np.float32)}, given))
    assert (file.metadata, file.has_digests) == (given, True)


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("name", ["a", "ab", "abc", "abcd"])
def test_tensors_that_are_not_aligned_in_the_file_are_in_memory(
    name: str, mapped: bool, tmp_path: Path
) -> None:
    path = tmp_path / "file.oxck"
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    path.write_bytes(file_of("{}", tensor(name, (2, 3), array.tobytes())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NotVerified)
        loaded = standfast.load(path, mapped=mapped)[name]
    with standfast.open(path, mapped=mapped) as file:
        for found in (loaded, file[name], file.slice(name)[:]):
            assert found.flags.aligned
            assert same_bytes(found, array)
    assert loaded.flags.writeable


def test_a_shape_without_dimensions_has_one_element_or_none() -> None:
    one = opened(file_of("{}", tensor("x", (), floats(7))))
    assert (one["x"].shape, float(one["x"])) == ((), 7.0)
    none = opened(file_of("{}", tensor("x", (), b"")))
    assert (none["x"].shape, none.spec("x")) == ((0,), TensorSpec("float32", (0,)))


def test_flags_are_ignored() -> None:
    assert opened(file_of('{"a":"b"}', flags=2**64 - 1)).metadata == {"a": "b"}


def test_64_dimensions_are_written_and_read() -> None:
    array = np.ones((1,) * 64, np.float32)
    assert same_bytes(opened(saved({"x": array}))["x"], array)


def test_names_of_any_kind_are_written_and_read() -> None:
    given = {
        "": np.zeros(1, np.float32),
        "../../x": np.ones(1, np.float32),
        "é" * 32_767: np.ones((), "f4"),
    }
    assert list(opened(saved(given))) == list(given)


# What the format cannot hold


@pytest.mark.parametrize("dtype", sorted(set(DTYPES) - {"float32"}))
def test_another_dtype_is_refused_by_name(dtype: str) -> None:
    specs = [("fine", TensorSpec("float32", (2,))), ("odd one", TensorSpec(dtype, (8,)))]
    with pytest.raises(UnsupportedDType, match="'odd one'"):
        oxck.layout(specs, {}, extras=True)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "uint8", "bool"])
def test_another_dtype_is_cast_on_demand(dtype: str) -> None:
    found = opened(saved({"x": np.array([0, 1, 3]).astype(dtype)}, cast=True))["x"]
    assert (found.dtype, found.tolist()) == (np.float32, np.array([0, 1, 3]).astype(dtype).tolist())


@pytest.mark.parametrize(
    ("pairs", "error"),
    [
        ([("n" * 65_536, (1,))], BadName),
        ([("x", (1,)), ("x", (1,))], DuplicateName),
        ([("x", (1,) * 65)], UnsupportedShape),
    ],
)
def test_what_cannot_be_written_is_refused(
    pairs: list[tuple[str, tuple[int, ...]]], error: type[Exception]
) -> None:
    with pytest.raises(error):
        oxck.layout([(name, TensorSpec("float32", shape)) for name, shape in pairs], {}, True)


def test_metadata_that_is_no_text_needs_our_extras() -> None:
    array = {"x": np.ones(1, np.float32)}
    with pytest.raises(RefusedMetadata, match=r"metadata\['step'\] is a int"):
        saved(array, {"step": 3}, extras=False)
    assert opened(saved(array, {"step": 3}, extras=False, cast=True)).metadata == {"step": "3"}
    assert opened(saved(array, {"step": 3})).metadata == {"step": 3}


def test_metadata_beyond_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oxck, "MAX_METADATA", 1000)
    with pytest.raises(RefusedMetadata):
        saved({}, {"text": "x" * 1000}, extras=False)


# Many
