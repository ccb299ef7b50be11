"""The tenzor format: golden files, what is written and read back, names, metadata, refusals."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast import errors
from standfast.formats.tenzor import file as tenzor
from standfast.formats.tenzor.file import checkpoint_metadata
from standfast.formats.tenzor.metadata import parse_metadata
from standfast.formats.tenzor.names import hash_names
from standfast.tensors import DTYPES, TensorSpec
from tests import GOLDEN
from tests.formats.builders import chunks, opened
from tests.formats.tenzor.builders import (
    CODES,
    file_of,
    fnv,
    index_of,
    lookup,
    metadata_text,
    own_text,
    reseal,
    saved,
    trainer_text,
)
from tests.kit.strategies import arrays, metadata, names, same_bytes

FIRST = GOLDEN / "tenzor_checkpoint.tenzor"
HASHES = {
    "conv1_weight": 0xC0713D87C613C5C3,
    "conv1_bias": 0x9502FA3BC070167E,
    "optim/conv1_weight/v": 0x2ADE9A9EAA75D0CA,
    "optim/conv1_bias/v": 0x4A7A9950BB56BA33,
}
METADATA = {"epoch": 5, "global_step": 4685, "best_val_loss": 0.198, "best_val_acc": 0.963}
METADATA |= {"best_epoch": 3, "learning_rate": 0.0087, "model_name": "lenet"}
METADATA |= {"timestamp": 1700000000}
ONE = {"a": np.ones(1)}


def test_the_golden_file_holds_what_was_saved(tmp_path):
    steps = np.arange(150, dtype=np.float32)
    weight = (steps * np.float32(0.01) - np.float32(0.5)).reshape(6, 1, 5, 5)
    bias = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], np.float32)
    tensors = dict(zip(HASHES, [weight, bias, weight, bias], strict=True))
    with standfast.open(FIRST, names=list(HASHES)) as file:
        assert (file.format, list(file), file.metadata) == ("tenzor", list(HASHES), METADATA)
        assert not file.has_digests
        for name, expected in tensors.items():
            assert same_bytes(file[name], expected)
    with standfast.open(FIRST) as file:
        assert list(file) == [f"{value:#018x}" for value in HASHES.values()]
    text = checkpoint_metadata(**METADATA)  # type: ignore[arg-type]
    standfast.save(tmp_path / "again.tenzor", tensors, text, extras=False)
    assert (tmp_path / "again.tenzor").read_bytes() == FIRST.read_bytes()


@settings(deadline=None)
@given(st.dictionaries(names, arrays(list(tenzor.CODES)), max_size=4), metadata, st.booleans())
def test_tensors_come_back_as_they_were_saved(tensors, metadata, extras):
    data = saved(tensors, metadata, extras=extras)
    file = opened(data, names=None if extras else list(tensors))
    order = sorted(tensors, key=lambda name: -tensors[name].itemsize)
    assert (list(file), file.metadata) == (order, metadata)
    assert file.has_digests is extras
    for name, array in tensors.items():
        found = lookup(data, name)
        assert found is not None
        assert same_bytes(file[name], array)
        assert same_bytes(found, array)
        assert file[name].flags.aligned
    assert saved(dict(file), file.metadata, extras=extras) == data


@pytest.mark.parametrize("code", range(12), ids=lambda code: tenzor.CODES[code])
def test_each_dtype_has_its_code(code):
    for shape in ((), (0,), (3,), (2, 0, 3), (1, 2, 3, 1, 2)):
        array = np.arange(np.prod(shape, dtype=int)).astype(CODES[code]).reshape(shape)
        data = saved({"x": array}, extras=False)
        assert data[80:82] == bytes([code, len(shape)])
        assert data[84:104] == np.array([*shape, *[0] * (5 - len(shape))], "<u4").tobytes()
        assert len(data) == 4096 + array.nbytes
        assert same_bytes(opened(data, names=["x"])["x"], array)


def test_our_members_have_the_bytes_of_their_page():
    expected = file_of(own_text(of=chunks(b"x"), more=',"step":3'))
    assert saved({"a": np.frombuffer(b"x", np.uint8)}, {"step": 3}) == reseal(expected)
    data = saved({}, extras=False)
    assert data == file_of(entries=[], data=b"")
    assert len(data) == 4096
    assert len(opened(saved({}))) == 0


def test_chunks_of_a_large_tensor_are_verified_each(tmp_path):
    path, large = tmp_path / "large.tenzor", np.ones((16 << 20) + 7, np.uint8)
    standfast.save(path, {"x": large, "wide": np.ones(2), "half": np.ones(1, np.float16)})
    assert list(standfast.open(path)) == ["wide", "half", "x"]
    assert standfast.verify(path).tensors == 3
    with path.open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\0")
    with standfast.open(path) as opened:
        assert opened.slice("x")[:1000].all()
        assert opened["wide"].all()
        with pytest.raises(errors.DigestMismatch, match="'x'"):
            opened.slice("x")[-1:]


WORST: list[str] = ["uint8", "int8", "float16", "bfloat16", "int16", "uint16"]
WORST += ["float32", "int32", "uint32", "float64", "int64", "uint64"]
"""Every dtype, the narrowest first: with odd counts of items, each misaligns the next."""


@pytest.mark.parametrize("extras", [True, False])
@pytest.mark.parametrize("order", [WORST, WORST[::-1], WORST[::2] + WORST[1::2]], ids=len)
def test_every_tensor_is_aligned_in_the_mapping(order, extras):
    """`tenzor-checkpointing.md`: "Save and resume training state using the `.tenzor` format for
    fast mmap-based loading." The original maps the file, and panics at a misaligned tensor."""
    tensors = {
        f"{copy}/{dtype}": np.arange(3).astype(CODES[tenzor.CODES.index(dtype)])
        for copy in ("a", "b")
        for dtype in order
    }
    data = saved(tensors, {"epoch": 5}, extras=extras)
    index = index_of(data, names=list(tensors))
    assert list(index.rows) == sorted(tensors, key=lambda name: -tensors[name].itemsize)
    assert all(index.starts[row] % tensors[name].itemsize == 0 for name, row in index.rows.items())
    file = opened(data, names=list(tensors))
    assert all(same_bytes(file[name], array) for name, array in tensors.items())


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=30), max_size=20))
def test_names_have_the_hashes_that_others_compute(names):
    known = {"": 0xCBF29CE484222325, "a": 0xAF63DC4C8601EC8C, "foobar": 0x85944171F73967E8}
    for name, expected in (known | HASHES).items():
        assert tenzor.hash_name(name) == expected
    hashes = hash_names(names).tolist()
    assert hashes == [tenzor.hash_name(name) for name in names]
    assert hashes == [fnv(name.encode()) for name in names]


def bare(**tensors: Sequence[int]) -> bytes:
    return saved({name: np.array(value) for name, value in tensors.items()}, extras=False)


A, B = "0xaf63dc4c8601ec8c", "0xaf63df4c8601f1a5"


def test_names_are_found_by_their_hashes():
    for given, expected in (
        *((None, [A, B]), ([], [A, B]), (["b"], [A, "b"]), ([A, "b"], [A, "b"])),
        (["c", "b", "d", "a", "b", ""], ["a", "b"]),
    ):
        file = opened(bare(a=[1], b=[2]), names=given)
        assert list(file) == expected
        assert [int(file[name][0]) for name in expected] == [1, 2]


def test_names_in_the_file_need_no_others():
    data = saved({"a": np.ones(1), "": np.ones(1), "重み": np.ones(1)})
    assert list(opened(data, names=["unrelated"])) == ["a", "", "重み"]
    assert list(opened(file_of('{"standfast.names":["a"],"x":1}'))) == ["a"]
    assert list(opened(file_of('{"x":1,"standfast.names":["a"]}'), names=["b"])) == ["a"]


def test_names_that_are_no_text_or_the_hash_of_another_are_refused():
    for name in (3, b"a", None, "\ud800"):
        with pytest.raises(errors.BadName):
            opened(bare(a=[1]), names=["a", name])
    with pytest.raises(errors.DuplicateName):
        saved({"a": np.ones(1), A: np.ones(1)}, extras=False)
    with pytest.raises(errors.DuplicateName):
        opened(bare(a=[1]), names=[A, "a"])


@pytest.mark.parametrize("extras", [True, False])
def test_a_file_without_names_keeps_its_hashes_when_it_is_written_again(extras, tmp_path):
    state, again = {"conv1_weight": np.ones(2), "conv1_bias": np.zeros(3)}, tmp_path / "c.tenzor"
    standfast.save(tmp_path / "a.tenzor", state, extras=False)
    standfast.convert(tmp_path / "a.tenzor", tmp_path / "b.safetensors")
    for source in ("a.tenzor", "b.safetensors"):
        standfast.convert(tmp_path / source, again, extras=extras, replace=True)
        with standfast.open(again) as file:
            assert list(file) == [f"{HASHES[name]:#018x}" for name in state]
    if not extras:
        assert again.read_bytes() == (tmp_path / "a.tenzor").read_bytes()
        assert list(standfast.open(again, names=list(state))) == list(state)


COLLIDING = ("8yn0iYCKYHlIj4-BwPqk", "GReLUrM4wMqfg9yzV3KQ")
"""Two names of one hash."""


def test_two_names_of_one_hash_are_refused():
    one, other = COLLIDING
    assert fnv(one.encode()) == fnv(other.encode())
    with pytest.raises(errors.DuplicateName, match=f"'{one}'.*'{other}'.*0x"):
        saved({"weight": np.ones(1), one: np.ones(1), other: np.ones(1)})
    with pytest.raises(errors.DuplicateName, match=f"'{one}'.*'{other}'.*0x"):
        opened(bare(**{one: [1]}), names=list(COLLIDING))


def test_what_the_format_lacks_is_refused_by_name_or_cast():
    for dtype in set(DTYPES) - set(tenzor.CODES):
        specs = [("fine", TensorSpec("float32", (2,))), ("odd one", TensorSpec(dtype, (8,)))]
        with pytest.raises(errors.UnsupportedDType, match="'odd one'"):
            tenzor.layout(specs, {}, extras=True)
    deep = np.arange(64, dtype=np.float32).reshape(2, 2, 2, 2, 2, 2)
    with pytest.raises(errors.UnsupportedShape, match="'deep'"):
        saved({"fine": np.ones(1), "deep": deep})
    assert same_bytes(opened(saved({"deep": deep}, cast=True))["deep"], deep.reshape(4, 2, 2, 2, 2))
    with pytest.raises(errors.UnsupportedShape, match=r"'huge'.*4294967296"):
        tenzor.layout([("huge", TensorSpec("uint8", (0, 2**32)))], {}, extras=True)
    layout = tenzor.layout([("large", TensorSpec("uint8", (2**32 - 1,)))], {}, extras=False)
    assert layout.size == 4096 + 2**32 - 1


def test_names_and_metadata_that_cannot_be_written_are_refused(seams):
    longest = "é" * 32_767 + "n"
    assert list(opened(saved({longest: np.ones(1)}))) == [longest]
    for several, error in (
        (["n" * 65_536], errors.BadName),
        (["\ud800"], errors.BadName),
        (["a", "a"], errors.DuplicateName),
    ):
        with pytest.raises(error):
            saved([(name, np.ones(1)) for name in several])
    seams.bound("bytes of tenzor metadata", 1000)
    with pytest.raises(errors.RefusedMetadata):
        saved(ONE, {"text": "x" * 1000})


def given(**changes: Any) -> bytes:
    return checkpoint_metadata(**(METADATA | changes))


def test_the_text_is_the_trainers():
    assert given() == (
        b'{"epoch":5,"global_step":4685,"best_val_loss":0.198000,"best_val_acc":0.963000,'
        b'"best_epoch":3,"learning_rate":0.00870000,"model_name":"lenet","timestamp":1700000000}'
    )


@pytest.mark.parametrize(
    ("key", "value", "written"),
    [
        # These digits are those of the float32 next to the number, not of the number.
        *(
            ("best_val_loss", 1234.5678901, "1234.567871"),
            ("best_val_loss", 16777217, "16777216.000000"),
        ),
        *(("learning_rate", 3e-4, "0.00030000"), ("best_val_acc", -0.0, "-0.000000")),
        *(("best_val_loss", each, "null") for each in (math.inf, -math.inf, math.nan)),
        *(("best_val_loss", np.float64(0.25), "0.250000"), ("epoch", np.int64(7), "7")),
        ("model_name", 'a "b" \\ \n ü', r'"a \"b\" \\ \n ü"'),
    ],
)
def test_numbers_are_rounded_and_text_is_escaped(key, value, written):
    text = given(**{key: value})
    assert f'"{key}":{written},'.encode() in text
    again = parse_metadata(text)
    assert again.text == text
    assert again.user["model_name"] == (value if key == "model_name" else "lenet")


@pytest.mark.parametrize("extras", [True, False])
def test_the_text_is_saved_as_it_is(extras):
    data = saved(ONE, given(), extras=extras)
    assert metadata_text(data).endswith(given()[1:])
    file = opened(data)
    assert (file.metadata["best_val_loss"], file.metadata_text) == (0.198, given())


NAMES = [
    'my "best" model',
    '"',
    '"' + "[" * 200,
    "C:\\dir\\x",
    "two\nlines",
    'x","timestamp":7}',
    "",
]


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        *((trainer_text(f"{n}"), "best_val_loss", n) for n in (math.inf, -math.inf, math.nan)),
        (trainer_text(rate="inf"), "learning_rate", math.inf),
        *((trainer_text("inf", name), "model_name", name) for name in NAMES),
        (trainer_text("340282346638528859811704183484516925440.000000"), "best_val_loss", 2**128),
    ],
)
@pytest.mark.parametrize("extras", [True, False])
def test_bare_numbers_and_names_that_are_not_escaped_are_read(text, key, value, extras):
    data = saved(ONE, text.encode(), extras=extras)
    metadata = opened(data).metadata
    assert metadata[key] == pytest.approx(value, nan_ok=True)
    assert (metadata["epoch"], metadata["timestamp"]) == (5, -1)
    assert len(metadata) == 8


def test_we_write_null_for_what_is_not_finite(tmp_path):
    old, new = tmp_path / "old.tenzor", tmp_path / "new.tenzor"
    old.write_bytes(file_of(trainer_text("inf", 'a "b"')))
    converted = standfast.convert(old, new, extras=False)
    assert converted.metadata == ["best_val_loss: inf is now None"]
    assert metadata_text(new.read_bytes()) == (
        b'{"epoch":5,"global_step":4685,"best_val_loss":null,"best_val_acc":0.963,"best_epoch":3,'
        b'"learning_rate":0.0087,"model_name":"a \\"b\\"","timestamp":-1}'
    )


def test_bytes_are_written_as_they_are():
    odd = b' {"b": 1,\n "a" : [1.50, "\\u00e9"]} \n'
    key = b'{"note":"\\"standfast.digest\\" is a key"}'
    for text in (b"{}", odd, key, '{"é":"重み"}'.encode(), b"", b"  "):
        bare, full = saved(ONE, text, extras=False), saved(ONE, text)
        assert metadata_text(bare) == text
        assert metadata_text(full).endswith(text.strip().removeprefix(b"{").strip() or b"}")
        assert opened(full).metadata == opened(bare).metadata
        assert opened(bare).metadata_text == text


REFUSED = [b"[1]", b"{garbage}", b'{"a":1,}', b'{"a":NaN}', b"\x0c{}", b'{"a":"\xff"}']
REFUSED += [b'{"a":1,"a":2}', b'{"standfast.digest":"x"}', b'{"standfast.names":["a"]}']
REFUSED += [b'{"standfast\\u002enames":["a"]}', b'{"a":' + b"[" * 101 + b"]" * 101 + b"}"]


@pytest.mark.parametrize("extras", [True, False])
def test_bytes_that_could_not_be_read_again_are_refused(extras):
    for text in REFUSED:
        with pytest.raises(errors.RefusedMetadata):
            saved(ONE, text, extras=extras)
