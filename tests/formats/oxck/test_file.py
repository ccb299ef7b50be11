"""The OXCK format: the golden file, what is written and read back, what is refused."""

import io
import math
import warnings
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast import errors
from standfast.errors import BadField
from standfast.formats.oxck import file as oxck
from standfast.formats.oxck.file import from_text, to_text
from standfast.tensors import DTYPES, TensorSpec
from tests import GOLDEN
from tests.formats.builders import chunks, opened, rows
from tests.formats.oxck import malformed
from tests.formats.oxck.builders import (
    ORIGINAL_WHITE,
    OriginalError,
    file_of,
    floats,
    original_metadata,
    original_read,
    original_text,
    saved,
    sealed_file,
    tensor,
)
from tests.kit.strategies import arrays, metadata, names, same_bytes

METADATA = {"lang": "日本語 ünï", "loss": "0.123", "note": 'say "hi" \\ back', "step": "1000"}
ONE = {"x": np.ones(1, np.float32)}


def test_the_golden_file_holds_what_was_saved():
    expected = {
        "layer.0.weight": np.arange(24).reshape(2, 3, 4) * 0.5 - 3,
        "layer.0.bias": [math.nan, math.inf, -0.0, 1e-40],
        "scalar": [3.5],
        "scalar0d": 7.0,
        "empty": [],
        "重み": [1, 2],
    }
    with standfast.open(GOLDEN / "oxck_mixed.oxck") as file:
        assert (file.format, file.metadata, file.has_digests) == ("oxck", METADATA, False)
        assert list(file) == list(expected)
        for name, values in expected.items():
            assert same_bytes(file[name], np.array(values, np.float32))
            assert file[name].flags.aligned


@settings(deadline=None)
@given(st.dictionaries(names, arrays(["float32"]), max_size=4), metadata)
def test_tensors_come_back_as_they_were_saved(tensors, metadata):
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
    ours = {"standfast.chunks", "standfast.digest", "standfast.json"}
    assert strings.keys() - metadata.keys() <= ours
    assert saved(dict(file), metadata) == data


def test_our_keys_have_the_bytes_of_their_page():
    elements = floats(1, 2)
    text = (
        f'{{"a":"3","standfast.chunks":"{chunks(elements)}","standfast.digest":"SEAL",'
        '"standfast.json":"[\\"a\\"]","z":"x"}'
    )
    padded = text + " " * (4096 - 28 - len(text) - 60)
    expected = sealed_file(padded, ("w", (2,), elements))
    assert saved({"w": np.array([1, 2], np.float32)}, {"z": "x", "a": 3}) == expected
    assert expected.index(b"\1\0\0\0w") == 4096


@pytest.mark.parametrize("start", ['a"', '{"', ',"', '"'])
def test_a_key_or_value_that_looks_like_ours_is_only_a_key_or_value(start):
    key = f'{start}standfast.digest":"'
    given = {key: "v" * 80, "b": key, "standfast": key}
    file = opened(saved(ONE, given))
    assert (file.metadata, file.has_digests) == (given, True)


@pytest.mark.parametrize("mapped", [True, False])
def test_tensors_that_are_not_aligned_in_the_file_are_in_memory(mapped, tmp_path):
    path, array = tmp_path / "file.oxck", np.arange(6, dtype=np.float32).reshape(2, 3)
    for name in ("a", "ab", "abc", "abcd"):
        path.write_bytes(file_of("{}", tensor(name, (2, 3), array.tobytes())))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", errors.NotVerified)
            loaded = standfast.load(path, mapped=mapped)[name]
        with standfast.open(path, mapped=mapped) as file:
            for found in (loaded, file[name], file.slice(name)[:]):
                assert found.flags.aligned
                assert same_bytes(found, array)
        assert loaded.flags.writeable


def test_a_shape_without_dimensions_has_one_element_or_none():
    one = opened(file_of("{}", tensor("x", (), floats(7))))
    assert (one["x"].shape, float(one["x"])) == ((), 7.0)
    none = opened(file_of("{}", tensor("x", (), b"")))
    assert (none["x"].shape, none.spec("x")) == ((0,), TensorSpec("float32", (0,)))


def test_flags_are_ignored():
    assert opened(file_of('{"a":"b"}', flags=2**64 - 1)).metadata == {"a": "b"}


def test_names_of_any_kind_and_64_dimensions_are_written_and_read():
    array = np.ones((1,) * 64, np.float32)
    given = dict.fromkeys(("", "../../x", "é" * 32_767), array)
    file = opened(saved(given))
    assert list(file) == list(given)
    assert same_bytes(file[""], array)


def test_another_dtype_is_refused_by_name_or_cast():
    for dtype in set(DTYPES) - {"float32"}:
        specs = [("fine", TensorSpec("float32", (2,))), ("odd one", TensorSpec(dtype, (8,)))]
        with pytest.raises(errors.UnsupportedDType, match="'odd one'"):
            oxck.layout(specs, {}, extras=True)
    for dtype in ("float64", "float16", "int64", "uint8", "bool"):
        array = np.array([0, 1, 3]).astype(dtype)
        found = opened(saved({"x": array}, cast=True))["x"]
        assert (found.dtype, found.tolist()) == (np.float32, array.tolist())


def test_what_cannot_be_written_is_refused(seams):
    for pairs, error in (
        ([("n" * 65_536, (1,))], errors.BadName),
        ([("x", (1,)), ("x", (1,))], errors.DuplicateName),
        ([("x", (1,) * 65)], errors.UnsupportedShape),
    ):
        with pytest.raises(error):
            oxck.layout([(name, TensorSpec("float32", shape)) for name, shape in pairs], {}, True)
    seams.bound("bytes of OXCK metadata", 1000)
    with pytest.raises(errors.RefusedMetadata):
        saved({}, {"text": "x" * 1000}, extras=False)


def test_metadata_that_is_no_text_needs_our_extras():
    with pytest.raises(errors.RefusedMetadata, match="'step'"):
        saved(ONE, {"step": 3}, extras=False)
    assert opened(saved(ONE, {"step": 3}, extras=False, cast=True)).metadata == {"step": "3"}
    assert opened(saved(ONE, {"step": 3})).metadata == {"step": 3}


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)

ACCEPTED = ["", " \n\t", "{}", "{ \n }", "{,, ,}", '\r\n {"a":"b"}\t ', '{"loss":"0.1","step":"3"}']
ACCEPTED += [ORIGINAL_WHITE.join(["", "{", '"a"', ":", '"b"', "}", ""])]
ACCEPTED += ['{"a":"b""c":"d"}', '{"a":"b" "c":"d"}', '{"a":"b",, ,"c":"d"}', '{,"a":"b",}']
ACCEPTED += [r"""{"\"":"\"\""}""", r"""{"a":"\\"}""", r"""{"a":"\\\""}""", r"""{"a":"\\n\\\n"}"""]
ACCEPTED += [r"""{"a":"\n\r\t"}""", '{"a":"\n\0\x1c\x7f"}', '{"{:,}":"},{"}', '{"":""}']
ACCEPTED += ['{"a":"b","c":"d","a":"e"}', '{"a\\n":"b","a\n":"c"}', '{"重み":"ü😀"}']


def test_lenient_text_is_read_as_the_original_reads_it():
    for text in ACCEPTED:
        assert from_text(text.encode()) == original_metadata(text), text
    assert from_text(b'{,"a":"b" "c\\n":"\\"",, "a":"d"}') == {"a": "d", "c\n": '"'}


def test_what_is_refused_the_original_refuses_too():
    refused = [row.content[28:] for row in rows(malformed.METADATA)]
    # What is no white space to the original is none here.
    for separator in ("\x1c", "\x1d", "\x1e", "\x1f", "\u200b", "\u180e", "\ufeff"):
        texts = (f"{separator}{{}}", f"{{{separator}}}", f'{{"a"{separator}:"b"}}')
        refused += [text.encode() for text in texts]
    for text in refused:
        with pytest.raises(BadField):
            from_text(text)
        with suppress(UnicodeDecodeError):
            decoded = text.decode()
            with pytest.raises(OriginalError):
                original_metadata(decoded)


def outcome(parse: Callable[[], dict[str, str]]) -> dict[str, str] | None:
    try:
        return parse()
    except (BadField, OriginalError):
        return None


pieces = st.lists(
    st.sampled_from([*'{}[]:,"\\nrtux a0', '"a":"b"', '\\"', "\\\\", "\u2003", "\x1c", "é", "\0"]),
    max_size=24,
).map("".join)


@settings(max_examples=300, deadline=None)
@given(st.one_of(pieces, pieces.map(lambda inner: f"{{{inner}}}")))
def test_any_text_is_read_or_refused_as_by_the_original(text):
    assert outcome(lambda: from_text(text.encode())) == outcome(lambda: original_metadata(text))


@given(st.dictionaries(texts, texts, max_size=5))
def test_metadata_is_written_as_the_original_writes_it(metadata):
    text = to_text(metadata)
    assert text == original_text(metadata)
    assert from_text(text.encode()) == original_metadata(text) == metadata


def test_keys_are_sorted_by_their_bytes():
    given = {"é": "2", "z": "1", "Z": "0", "\U0001f600": "4", "\uffff": "3"}
    assert to_text(given) == '{"Z":"0","z":"1","é":"2","\uffff":"3","\U0001f600":"4"}'
