"""The same verbs over every format: what goes in comes out, from one into another too."""

import io
import json
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast.errors import NothingToVerify, UnknownFormat, UnsupportedDType
from standfast.formats import FORMATS, format_named
from standfast.tensors import DTYPES
from tests import GOLDEN
from tests.formats.builders import Array
from tests.kit.strategies import arrays, metadata, names, same_bytes

GENERAL = ["safetensors", "tenzor", "oxck", "torch", "npz"]
"""All but sunc, whose sections are fixed."""
SUFFIX = {format.NAME: format.SUFFIXES[0] for format in FORMATS}


def dtypes_of(*formats: str) -> list[str]:
    """The dtypes, of whole bytes, that all these formats hold."""
    common = frozenset.intersection(*(format_named(name).DTYPES for name in formats))
    return [name for name in DTYPES if name in common and not DTYPES[name].packed]


def states(*formats: str) -> st.SearchStrategy[dict[str, Array]]:
    keys = names.filter(lambda name: "\0" not in name)
    values = arrays(dtypes_of(*formats)).filter(lambda array: array.ndim <= 5)
    return st.dictionaries(keys, values, max_size=5)


def in_order(format: str, state: dict[str, Array]) -> dict[str, Array]:
    """The tensors in the order that a file of the format has them."""
    if format != "tenzor":
        return state
    return dict(sorted(state.items(), key=lambda item: -item[1].itemsize))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("every-format")


@pytest.mark.parametrize("format", GENERAL)
@given(data=st.data())
@settings(max_examples=12, deadline=None)
def test_what_is_saved_is_what_is_loaded(format, folder, data):
    state, facts = data.draw(states(format)), data.draw(metadata)
    path = folder / f"state{SUFFIX[format]}"
    standfast.save(path, state, facts)
    for mapped in (True, False):
        with standfast.open(path, mapped=mapped) as file:
            assert file.format == format
            assert list(file) == list(in_order(format, state))
            assert json.dumps(file.metadata, sort_keys=True) == json.dumps(facts, sort_keys=True)
            for name, array in state.items():
                assert same_bytes(file[name], array)
                assert file[name].flags.aligned
        loaded = standfast.load(path, mapped=mapped)
        assert all(same_bytes(loaded[name], array) for name, array in state.items())
    assert standfast.verify(path).tensors == len(state)
    stream = io.BytesIO()
    standfast.save(stream, state, facts, format=format)
    assert stream.getvalue() == path.read_bytes()
    stream.seek(0)
    streamed = standfast.load(stream)
    assert all(same_bytes(streamed[name], array) for name, array in state.items())


@pytest.mark.parametrize("format", GENERAL)
@given(data=st.data())
@settings(max_examples=8, deadline=None)
def test_bare_files_hold_the_same_and_nothing_of_ours(format, folder, data):
    state = {f"tensor {i}": each for i, each in enumerate(data.draw(states(format)).values())}
    path = folder / f"bare{SUFFIX[format]}"
    standfast.save(path, state, extras=False)
    assert b"standfast" not in path.read_bytes()
    with standfast.open(path, names=list(state)) as file:
        assert list(file) == list(in_order(format, state))
        assert not file.has_digests
        assert file.metadata == {}
        assert all(same_bytes(file[name], array) for name, array in state.items())
    with pytest.raises(NothingToVerify):
        standfast.verify(path)


@pytest.mark.parametrize(("source", "target"), list(product(GENERAL, GENERAL)))
@given(data=st.data())
@settings(max_examples=3, deadline=None)
def test_every_pair_of_formats_converts_with_equal_digests(source, target, folder, data):
    state, facts = in_order(source, data.draw(states(source, target))), data.draw(metadata)
    old, new = folder / f"old{SUFFIX[source]}", folder / f"new{SUFFIX[target]}"
    standfast.save(old, state, facts)
    done = standfast.convert(old, new, replace=True)
    assert (done.source, done.target, done.verified) == (source, target, True)
    assert list(done.digests) == list(state)
    assert not done.casts
    assert not done.metadata
    assert not standfast.diff(old, new)
    loaded = standfast.load(new)
    assert all(same_bytes(loaded[name], array) for name, array in state.items())
    # The same content has the same bytes, whatever way it took.
    direct = folder / f"direct{SUFFIX[target]}"
    standfast.save(direct, state, facts)
    if "oxck" not in (source, target):  # which sorts the keys of its metadata
        assert new.read_bytes() == direct.read_bytes()


def test_a_format_can_be_named_and_is_found_by_content(tmp_path):
    path = tmp_path / "weights.bin"
    with pytest.raises(UnknownFormat, match=r"\.oxck"):
        standfast.save(path, {})
    with pytest.raises(UnknownFormat):
        standfast.save(path, {}, format="hdf5")
    array = np.arange(60, dtype=np.float32).reshape(5, 12)
    for format in GENERAL:
        standfast.save(path, {"odd": np.ones(3, np.float32), "w": array}, format=format)
        with standfast.open(path) as file:
            assert file.format == format
            assert np.array_equal(file.slice("w")[1:4, ::5], array[1:4, ::5])


@pytest.mark.parametrize("format", ["tenzor", "oxck", "npz"])
def test_what_a_format_lacks_is_refused_by_name_unless_it_is_cast(format, tmp_path):
    path = tmp_path / f"state{SUFFIX[format]}"
    state = {
        "fine": np.ones(2, np.float32),
        "odd": np.array([1, 2, 448], DTYPES["float8_e4m3fn"].numpy),
    }
    with pytest.raises(UnsupportedDType, match=r"'odd'.*float8_e4m3fn"):
        standfast.save(path, state)
    assert not path.exists()
    standfast.save(path, state, cast=True)
    loaded = standfast.load(path)
    assert loaded["odd"].astype(np.float32).tolist() == [1, 2, 448]
    imaginary = {"psi": np.array([1 + 2j])}
    if format != "npz":
        with pytest.raises(UnsupportedDType, match="'psi'"):
            standfast.save(path, imaginary, cast=True)


@pytest.mark.parametrize("name", ["sunc_scalar_2d", "sunc_u1_2d"])
@pytest.mark.parametrize("suffix", [".sunc", ".npz", ".pt", ".safetensors"])
def test_a_snapshot_comes_back_from_another_format_byte_for_byte(name, suffix, tmp_path):
    golden, there, back = GOLDEN / f"{name}.sunc", tmp_path / f"a{suffix}", tmp_path / "b.sunc"
    if name == "sunc_u1_2d" and suffix == ".safetensors":
        with pytest.raises(UnsupportedDType, match="'links'"):
            standfast.convert(golden, there)
        return
    done = standfast.convert(golden, there)
    assert not done.casts
    assert not done.metadata
    assert not standfast.diff(golden, there)
    assert standfast.verify(there).tensors == len(done.digests)
    standfast.convert(there, back, extras=False)
    assert back.read_bytes() == golden.read_bytes()


def test_sections_in_another_order_and_another_dtype_are_the_same_snapshot(tmp_path):
    golden = GOLDEN / "sunc_scalar_2d.sunc"
    with standfast.open(golden) as file:
        sections = dict(reversed(list(file.items())))
        sections["storage"] = sections["storage"].view(np.uint8)
        sections["blocks"] = sections["blocks"].view(np.uint8).reshape(-1, 40)
        standfast.save(tmp_path / "a.npz", sections, file.metadata)
    standfast.convert(tmp_path / "a.npz", tmp_path / "b.sunc", extras=False)
    assert (tmp_path / "b.sunc").read_bytes() == golden.read_bytes()
