"""Sealed JSON: what was changed, cut, doubled or is of another format is refused."""

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

import standfast
from standfast import Store, errors
from standfast.store.schema import marks, names, run_file
from standfast.store.schema.record import Place
from standfast.store.schema.seal import seal, unseal

FORMAT = "standfast test 3"
GOOD = seal(FORMAT, {"a": 1, "b": [None, "ü", 0.5], "c": {"d": {}}})

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=5).filter(
    lambda key: key not in ("format", "seal")
)
numbers = st.integers(-(2**63), 2**63)


@given(st.dictionaries(keys, st.text(max_size=5, alphabet='aü\n\\"') | numbers, min_size=1))
def test_what_was_sealed_comes_back(fields):
    text = seal(FORMAT, fields)
    assert b"\n" not in text
    assert unseal(text, FORMAT) == fields


START = b'{"format":"standfast test 3","seal":"'


def test_the_seal_is_the_digest_of_the_text_with_zeros_in_its_place():
    assert GOOD.startswith(START)
    digits = GOOD[len(START) : len(START) + 64]
    assert blake3(GOOD.replace(digits, b"0" * 64)).hexdigest().encode() == digits
    assert json.loads(GOOD)["b"] == [None, "ü", 0.5]


def test_every_flipped_bit_is_found():
    for position in range(len(GOOD)):
        for bit in range(8):
            data = bytearray(GOOD)
            data[position] ^= 1 << bit
            with pytest.raises(errors.DamagedFile):
                unseal(bytes(data), FORMAT)
        with pytest.raises(errors.DamagedFile):
            unseal(GOOD[:position], FORMAT)
    with pytest.raises(errors.IndexMismatch):
        unseal(GOOD + b" ", FORMAT)


def _with(body: bytes) -> bytes:
    """A text whose seal is right, whatever is in it."""
    text = START + b"0" * 64 + b'"' + body
    return text.replace(b"0" * 64, blake3(text).hexdigest().encode(), 1)


@pytest.mark.parametrize(
    "body",
    [
        *(b',"a":1,"a":1}', b',"seal":""}', b',"a":{"b":1,"b":2}}', b',"a":NaN}'),
        *(b',"a":Infinity}', b',"a":1', b',"a":1}}', b',"a":"\xff"}'),
        b',"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b',"a":' + b"9" * 100_000 + b"}",
    ],
    ids=lambda body: body[:12].decode("latin-1"),
)
def test_what_is_sealed_and_no_sound_json_is_refused(body):
    assert unseal(_with(b',"a":1}'), FORMAT) == {"a": 1}
    with pytest.raises(errors.DamagedFile):
        unseal(_with(body), FORMAT)


def test_another_format_is_damage_and_a_newer_version_is_not():
    with pytest.raises(errors.BadField):
        unseal(GOOD, "standfast other 3")
    with pytest.raises(errors.TooNew):
        unseal(GOOD, "standfast test 2")
    with pytest.raises(errors.IndexMismatch):  # damage can look like a newer version
        unseal(GOOD[:-2] + b"]}", "standfast test 2")
    with pytest.raises(errors.DamagedFile):
        unseal(GOOD, "standfast test 4")


RUN_FILE = {
    "run": "0" * 24,
    "identity": {"hp": "ab" * 32, "model": None, "data": None},
    "name": "a",
    "trial": None,
    "created": "2026-11-15T14:30:00.123456Z",
    "parent": None,
    "hyperparameters": {"lr": 0.1},
    "environment": {"python": "3"},
}
WRONG_RUN_FILES: list[dict[str, Any]] = [
    *({"run": "1" * 24}, {"run": 5}, {"identity": None}, {"identity": {"hp": 5}}, {"name": 5}),
    *({"parent": {"run": "x"}}, {"environment": {"python": 3}}, {"needs": "text"}),
]
PLACE = Place("0" * 24, 1, 5, "0123abcd")
MARKS = msgspec.to_builtins(PLACE) | {"tags": ["a"], "notes": [{"time": "t", "text": "x"}]}
WRONG_MARKS: list[dict[str, Any]] = [
    *({"run": "1" * 24}, {"step": 2}, {"tags": "a"}, {"tags": [1]}, {"notes": ["x"]}, {"token": 1})
]


@pytest.mark.parametrize("change", WRONG_RUN_FILES, ids=str)
def test_a_malformed_run_file_is_refused(store, change):
    path = names.run_file("0" * 24)
    store.backend.create(path, seal(run_file.FORMAT, RUN_FILE) + b"\n")
    assert run_file.read_run(store.backend, "0" * 24).name == "a"
    store.backend.replace(path, seal(run_file.FORMAT, RUN_FILE | change) + b"\n")
    with pytest.raises(errors.DamagedFile, match=path):
        run_file.read_run(store.backend, "0" * 24)


@pytest.mark.parametrize("change", WRONG_MARKS, ids=str)
def test_malformed_marks_are_refused(store, change):
    path = names.marks_file("0" * 24, 1)
    store.backend.create(path, seal(marks.FORMAT, MARKS) + b"\n")
    assert marks.read_marks(store.backend, PLACE).tags == ["a"]
    other = msgspec.structs.replace(PLACE, token="ffffffff")
    assert marks.read_marks(store.backend, other).tags == []
    store.backend.replace(path, seal(marks.FORMAT, MARKS | change) + b"\n")
    with pytest.raises(errors.DamagedFile, match=path):
        marks.read_marks(store.backend, PLACE)


def test_a_run_file_is_what_the_page_of_the_format_says(tmp_path):
    run = Store(tmp_path).run("gpt", hp={"lr": 0.1, "steps": 5}, trial=2, volatile=["steps"])
    run.save(1, {"x": np.ones(1)})
    text = (tmp_path / "checkpoints" / names.run_file(run.hash)).read_bytes()
    assert text.endswith(b"}\n")
    assert text.count(b"\n") == 1
    fields = json.loads(text)
    assert list(fields) == [
        *("format", "seal", "run", "identity", "name", "trial", "created", "parent"),
        *("hyperparameters", "environment"),
    ]
    assert fields["format"] == "standfast run 1"
    assert fields["run"] == run.hash
    assert (fields["name"], fields["trial"]) == ("gpt", 2)
    assert fields["hyperparameters"] == {"lr": 0.1, "steps": 5}
    assert len(fields["identity"]["hp"]) == 64
    assert fields["environment"]["standfast"] == standfast.__version__
