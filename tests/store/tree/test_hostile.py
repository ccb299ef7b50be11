"""A tree out of a file is what `encode` writes, or refused: with its place, and nothing else."""

import json
import re
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.errors import BadField, DuplicateKey, LimitExceeded, StandfastError
from standfast.store.tree.tree import Ref, build, decode, encode, flatten
from tests.fuzz.limits import processor_limit

BAD = {
    "no JSON": (b'{"a":', "state"),
    "two values": (b"1 2", "state"),
    "not UTF-8": (b'"\xff"', "state"),
    "NaN": (b'{"a":NaN}', "a"),
    "too large a float": (b'{"a":[0,1e999]}', "a.1"),
    "65 bits": (b'{"a":9223372036854775808}', "a"),
    "equal keys": (b'{"x":{"a":1,"b":2,"a":1}}', "x"),
    "equal tags": (b'{"x":{"$tuple":[],"$tuple":[]}}', "x"),
    "equal dict keys": (b'{"$dict":[[1,0],[1.0,0]]}', "state"),
    "equal ordered keys": (b'{"$ordered":[["a",0],["a",1]]}', "state"),
    "equal counted keys": (b'{"$counter":[[1,2],[1.0,2]]}', "state"),
    "an unknown tag": (b'{"x":{"$set":[1]}}', "x"),
    "a tag among keys": (b'{"a":1,"$int":"1"}', "state"),
    "two tags": (b'{"$tuple":[],"$metadata":1}', "state"),
    "metadata alone": (b'{"$metadata":1}', "state"),
    "no such tensor": (b'[{"$tensor":3}]', "0"),
    "a negative tensor": (b'{"$tensor":-1}', "state"),
    "half a tensor": (b'{"$tensor":0.5}', "state"),
    "pairs of three": (b'{"$ordered":[[1,2,3]]}', "state"),
    "counts without keys": (b'{"x":{"$counter":[1,2]}}', "x"),
    "a list that is counted": (b'{"$counter":[[[1],2]]}', "state"),
    "a tensor as key": (b'{"$dict":[[{"$tensor":0},2]]}', "state"),
    "a NumPy key": (b'{"$dict":[[{"$numpy":["int8","AQ=="]},2]]}', "state"),
    "a tuple that is none": (b'{"$tuple":1}', "state"),
    "a small big integer": (b'{"$int":"5"}', "state"),
    "an integer of words": (b'{"$int":"many"}', "state"),
    "a big number": (b'{"$int":5}', "state"),
    "too many decimals": (b'{"$int":"' + b"9" * 10**6 + b'"}', "state"),
    "capital hexadecimals": (b'{"$int":"0x' + b"F" * 10**4 + b'"}', "state"),
    "a short float": (b'{"$float":"7ff8"}', "state"),
    "a float of letters": (b'{"$float":"infinite"}', "state"),
    "a complex of integers": (b'{"$complex":[1,2]}', "state"),
    "base64 unpadded": (b'{"$bytes":"YQ"}', "state"),
    "base64 with spare bits": (b'{"$bytes":"YR=="}', "state"),
    "plain text": (b'{"$str":"YQ=="}', "state"),
    "an escaped surrogate": (b'["\\ud800"]', "state"),
    "no such dtype": (b'{"$numpy":["object","AAAAAAAAAAA="]}', "state"),
    "a dtype of fields": (b'{"$numpy":["i4,i4","AAAAAAAAAAA="]}', "state"),
    "the unit of one": (b'{"$numpy":["timedelta64[1s]","AAAAAAAAAAA="]}', "state"),
    "too few bytes": (b'{"$numpy":["int32","AAA="]}', "state"),
    "a bool of two": (b'{"$numpy":["bool","Ag=="]}', "state"),
    "a list for a dtype": (b'{"$numpy":[["int8"],"AA=="]}', "state"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_encode_never_writes_is_refused_with_its_place(name):
    text, place = BAD[name]
    error = DuplicateKey if name.startswith("equal") else BadField
    with pytest.raises(error, match=rf"^{re.escape(place)}:") as caught:
        decode(text, 3)
    assert type(caught.value) is error
    assert len(str(caught.value)) < 1000


WRONG = b'{"a":1,"b":{"$dict":[["c",{"$ordered":[["d",[0,{"$x":1}]]]}],[{"$y":1},0]]},"e":NaN}'


@pytest.mark.parametrize(
    ("text", "place"),
    [
        (WRONG, "b"),  # it is wrong as a whole: one of its keys is
        (WRONG.replace(b'{"$y":1}', b"0").replace(b"NaN", b'{"$z":0}'), "b.c.d.1"),
        (b'{"c":{"$counter":[[7,[0,{"$x":1}]]]}}', "c.7.1"),
        (b'{"m":{"$ordered":[],"$metadata":{"v":{"$x":1}}}}', "m._metadata.v"),
    ],
)
def test_the_place_is_that_of_the_first_thing_wrong(text, place):
    with pytest.raises(BadField, match=rf"^{re.escape(place)}:"):
        decode(text, 0)


DEEP = {
    "lists": b"[" * 101 + b"]" * 101,
    "tuples": b'{"$tuple":[' * 101 + b"]}" * 101,
    "metadata": b'{"$ordered":[],"$metadata":' * 101 + b"0" + b"}" * 101,
    "counters": b'{"$counter":[[0,' * 101 + b"0" + b"]]}" * 101,
    "a million lists": b"[" * 10**6 + b"]" * 10**6,
    "a million objects": b'{"a":' * 10**6,
    "behind strings": b'["]]]]]]","\\"]]]]",' * 10**4,
}


@pytest.mark.parametrize("name", DEEP)
def test_what_nests_too_deeply_is_refused(name):
    with pytest.raises(LimitExceeded):
        decode(DEEP[name], 0)


def test_brackets_and_numbers_in_strings_and_many_large_keys_come_back():
    for state in (
        {"[" * 1000: ['\\"[[' * 500, "{" * 1000, '"']},
        {(1 << 70) + 12345 * n: n for n in range(3000)},
        {"1234567890123456789012": [1, -(2**63)]},
    ):
        assert decode(encode(flatten(state)[0], []), 0) == state


def test_keys_that_were_chosen_to_have_one_hash_are_refused_quickly():
    keys = [{"$int": str((2**61 - 1) * factor)} for factor in range(8, 20_000)]
    text = json.dumps({"$dict": [[key, 0] for key in keys]}).encode()
    with processor_limit(5), pytest.raises(LimitExceeded):
        decode(text, 0)


fragments = st.sampled_from(
    "$int $float $dict $ordered $metadata $counter $tuple $complex $bytes $str $numpy $tensor "
    "a YQ== 7ff8000000000000 int8 99999999999999999999".split()
)
nodes = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | fragments,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(fragments, inner, max_size=2)
        | st.lists(st.lists(inner, min_size=2, max_size=2), max_size=2)
    ),
    max_leaves=10,
)


@given(nodes)
@settings(max_examples=400, deadline=None)
def test_any_json_is_read_or_refused_by_name(node):
    text = json.dumps(node).encode()
    with suppress(StandfastError):
        again = encode(*_again(decode(text, 2)))
        assert again == encode(*_again(decode(again, 2)))


def _again(tree: Any) -> tuple[Any, list[int]]:
    """A decoded tree as a state again, with arrays for its Refs."""
    numbers: list[int] = []

    def tensor(number: int) -> Any:
        numbers.append(number)
        return np.zeros(1)

    return flatten(build(tree, tensor))[0], numbers


@given(st.binary(max_size=40), st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_damaged_text_is_read_or_refused_by_name(noise, at):
    text = (
        b'{"m":{"$ordered":[["w",{"$tensor":0}]],"$metadata":{"":{"version":1}}},"n":'
        b'{"$dict":[[1,{"$int":"9999999999999999999"}]]},"z":{"$numpy":["int8","AQ=="]}}'
    )
    assert decode(text, 1)["m"]["w"] == Ref(0)
    at %= len(text)
    damaged = text[:at] + noise + text[at + len(noise) // 2 :]
    with suppress(StandfastError):
        assert type(decode(damaged, 1)) in (dict, list, str, int, float)
