"""A tree out of a file is what `encode` writes, or refused: with its place, and nothing else."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.errors import BadField, DuplicateKey, LimitExceeded, StandfastError
from standfast.store.tree.tree import Ref, build, decode, encode, flatten

BAD = {
    "no JSON": (b'{"a":', BadField, r"^state: not JSON"),
    "two values": (b"1 2", BadField, r"^state: not JSON"),
    "nothing": (b"", BadField, r"^state: not JSON"),
    "not UTF-8": (b'"\xff"', BadField, r"^state: not UTF-8"),
    "NaN": (b'{"a":NaN}', BadField, r"^a: NaN is not JSON"),
    "Infinity": (b"[-Infinity]", BadField, "-Infinity is not JSON"),
    "too large a float": (b'{"a":[0,1e999]}', BadField, r"^a\.1: the number 1e999"),
    "65 bits": (b'{"a":9223372036854775808}', BadField, r"^a: the integer .* 64 bits"),
    "a million digits": (b"[" + b"9" * 10**6 + b"]", BadField, r"^0: the integer"),
    "equal keys": (b'{"x":{"a":1,"b":2,"a":1}}', DuplicateKey, r"^x: the key 'a' stands twice"),
    "equal tags": (b'{"x":{"$tuple":[],"$tuple":[]}}', DuplicateKey, r"^x: "),
    "equal tensors": (b'{"$tensor":0,"$tensor":0}', DuplicateKey, r"^state: "),
    "equal dict keys": (b'{"$dict":[[1,0],[1.0,0]]}', DuplicateKey, "the key 1 stands twice"),
    "True is 1": (b'{"$dict":[[true,0],[1,0]]}', DuplicateKey, "stands twice"),
    "equal ordered keys": (b'{"$ordered":[["a",0],["a",1]]}', DuplicateKey, "'a' stands twice"),
    "equal counted keys": (b'{"$counter":[[1,2],[1.0,2]]}', DuplicateKey, "1 stands twice"),
    "an unknown tag": (b'{"x":{"$set":[1]}}', BadField, r"^x: '\$set'"),
    "an empty tag": (b'{"$":1}', BadField, r"'\$'"),
    "a tag among keys": (b'{"a":1,"$int":"1"}', BadField, "stands among others: a, "),
    "two tags": (b'{"$tuple":[],"$metadata":1}', BadField, "among others"),
    "metadata alone": (b'{"$metadata":1}', BadField, r"'\$metadata'"),
    "no such tensor": (b'[{"$tensor":3}]', BadField, r"^0: .*one of 3 tensors, found 3"),
    "a negative tensor": (b'{"$tensor":-1}', BadField, "found -1"),
    "a true tensor": (b'{"$tensor":true}', BadField, "found a bool"),
    "half a tensor": (b'{"$tensor":0.5}', BadField, "found 0.5"),
    "pairs that are none": (b'{"$dict":[[1]]}', BadField, "list of pairs"),
    "pairs of three": (b'{"$ordered":[[1,2,3]]}', BadField, "list of pairs"),
    "counts without keys": (b'{"x":{"$counter":[1,2]}}', BadField, r"^x: .*list of pairs"),
    "a counter of three": (b'{"$counter":[[1,2,3]]}', BadField, "list of pairs"),
    "a counter of text": (b'{"$counter":"aab"}', BadField, "list of pairs"),
    "a counter of an object": (b'{"$counter":{"a":1}}', BadField, "list of pairs"),
    "a list that is counted": (b'{"$counter":[[[1],2]]}', BadField, "expected keys"),
    "a counter with metadata": (b'{"$counter":[],"$metadata":1}', BadField, "among others"),
    "an object of pairs": (b'{"$dict":{"a":1}}', BadField, "list of pairs"),
    "a list as key": (b'{"$dict":[[[1],2]]}', BadField, "expected keys"),
    "a tensor as key": (b'{"$dict":[[{"$tensor":0},2]]}', BadField, "expected keys"),
    "a NumPy key": (b'{"$dict":[[{"$numpy":["int8","AQ=="]},2]]}', BadField, "expected keys"),
    "a tuple that is none": (b'{"$tuple":1}', BadField, r"\$tuple"),
    "a small big integer": (b'{"$int":"5"}', BadField, r"'5' is not the one way"),
    "an integer of spaces": (b'{"$int":" 9223372036854775808"}', BadField, "one way"),
    "an integer of words": (b'{"$int":"many"}', BadField, "'many' is no value"),
    "a big number": (b'{"$int":5}', BadField, r"under '\$int' stands a int"),
    "too many decimals": (b'{"$int":"' + b"9" * 10**6 + b'"}', BadField, "1,000,000 decimal"),
    "capital hexadecimals": (b'{"$int":"0x' + b"F" * 10**4 + b'"}', BadField, "one way"),
    "a finite float": (b'{"$float":"3ff0000000000000"}', BadField, "one way"),
    "a short float": (b'{"$float":"7ff8"}', BadField, "8 bytes"),
    "a float of letters": (b'{"$float":"infinite"}', BadField, "no value"),
    "a short complex": (b'{"$complex":[1.0]}', BadField, r"\$complex"),
    "a complex of integers": (b'{"$complex":[1,2]}', BadField, r"\$complex"),
    "base64 unpadded": (b'{"$bytes":"YQ"}', BadField, "padding"),
    "base64 with a line": (b'{"$bytes":"YWFh\\nYWFh"}', BadField, "one way"),
    "base64 with spare bits": (b'{"$bytes":"YR=="}', BadField, "one way"),
    "base64 in Greek": ('{"$bytes":"αβγδ"}'.encode(), BadField, "ASCII"),
    "bytes of a list": (b'{"$bytes":[1]}', BadField, "stands a list"),
    "plain text": (b'{"$str":"YQ=="}', BadField, "one way"),
    "text that is none": (b'{"$str":"/w=="}', BadField, "no value"),
    "an escaped surrogate": (b'["\\ud800"]', BadField, "surrogate"),
    "escaped surrogates": (b'["\\\\\\uD83D\\ude00"]', BadField, "surrogate"),
    "no such dtype": (b'{"$numpy":["object","AAAAAAAAAAA="]}', BadField, "'object .*called so"),
    "a dtype of fields": (b'{"$numpy":["i4,i4","AAAAAAAAAAA="]}', BadField, "called so"),
    "no such unit": (b'{"$numpy":["datetime64[xy]","AAAAAAAAAAA="]}', BadField, "unit"),
    "the unit of one": (b'{"$numpy":["timedelta64[1s]","AAAAAAAAAAA="]}', BadField, "one way"),
    "too few bytes": (b'{"$numpy":["int32","AAA="]}', BadField, "4 bytes expected, 2 found"),
    "a bool of two": (b'{"$numpy":["bool","Ag=="]}', BadField, "one way"),
    "a lone dtype": (b'{"$numpy":["int8"]}', BadField, "stands a list"),
    "a list for a dtype": (b'{"$numpy":[["int8"],"AA=="]}', BadField, "stands a list"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_encode_never_writes_is_refused_with_its_place(name: str) -> None:
    text, error, message = BAD[name]
    with pytest.raises(error, match=message) as caught:
        decode(text, 3)
    assert type(caught.value) is error
    assert len(str(caught.value)) < 1000


def test_the_place_is_that_of_the_first_thing_wrong() -> None:
    text = b'{"a":1,"b":{"$dict":[["c",{"$ordered":[["d",[0,{"$x":1}]]]}],[{"$y":1},0]]},"e":NaN}'
    with pytest.raises(BadField, match=r"^b: '\$x'"):
        decode(text, 0)  # b is wrong as a whole: one of its keys is
    with pytest.raises(BadField, match=r"^b\.c\.d\.1: '\$x'"):
        decode(text.replace(b'{"$y":1}', b"0").replace(b"NaN", b'{"$z":0}'), 0)
    with pytest.raises(BadField, match=r"^c\.7\.1: '\$x'"):
        decode(b'{"c":{"$counter":[[7,[0,{"$x":1}]]]}}', 0)
    with pytest.raises(BadField, match=r"^m\._metadata\.v: '\$x'"):
        decode(b'{"m":{"$ordered":[],"$metadata":{"v":{"$x":1}}}}', 0)


DEEP = {
    "lists": (b"[" * 101 + b"]" * 101, "deeper than 100"),
    "tuples": (b'{"$tuple":[' * 101 + b"]}" * 101, "deeper than 100"),
    "metadata": (b'{"$ordered":[],"$metadata":' * 101 + b"0" + b"}" * 101, "deeper than 100"),
    "counters": (b'{"$counter":[[0,' * 101 + b"0" + b"]]}" * 101, "deeper than 100"),
    "a million lists": (b"[" * 10**6 + b"]" * 10**6, "deeper than 303"),
    "a million objects": (b'{"a":' * 10**6, "deeper than 303"),
    "behind strings": (b'["]]]]]]","\\"]]]]",' * 10**4, "deeper than 303"),
}


@pytest.mark.parametrize("name", DEEP)
def test_what_nests_too_deeply_is_refused(name: str) -> None:
    with pytest.raises(LimitExceeded, match=DEEP[name][1]):
        decode(DEEP[name][0], 0)


def test_brackets_in_strings_are_not_nesting() -> None:
    state = {"[" * 1000: ['\\"[[' * 500, "{" * 1000, '"']}
    assert decode(encode(flatten(state)[0], []), 0) == state


def test_keys_that_were_chosen_to_have_one_hash_are_refused_quickly() -> None:
    keys = [{"$int": str((2**61 - 1) * factor)} for factor in range(8, 20_000)]
    text = json.dumps({"$dict": [[key, 0] for key in keys]}).encode()
    began = time.thread_time()
    with pytest.raises(LimitExceeded, match="same hash"):
        decode(text, 0)
    assert time.thread_time() - began < 5


def test_many_large_keys_come_back() -> None:
    state = {(1 << 70) + 12345 * n: n for n in range(3000)}
    assert decode(encode(flatten(state)[0], []), 0) == state


def test_a_number_in_a_string_does_not_change_how_numbers_are_read() -> None:
    assert decode(b'{"1234567890123456789012":[1,-9223372036854775808]}', 0) == {
        "1234567890123456789012": [1, -(2**63)]
    }


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
def test_any_json_is_read_or_refused_by_name(node: Any) -> None:
    text = json.dumps(node).encode()
    try:
        tree = decode(text, 2)
    except StandfastError:
        return
    assert encode(*_again(tree)) == encode(*_again(decode(encode(*_again(tree)), 2)))


def _again(tree: Any) -> tuple[Any, list[int]]:
    """A decoded tree as a state again, with arrays for its Refs."""
    numbers: list[int] = []

    def tensor(number: int) -> Any:
        numbers.append(number)
        return np.zeros(1)

    return flatten(build(tree, tensor))[0], numbers


@given(st.binary(max_size=40), st.integers(0, 200))
@settings(max_examples=300, deadline=None)
def test_damaged_text_is_read_or_refused_by_name(noise: bytes, at: int) -> None:
    text = (
        b'{"m":{"$ordered":[["w",{"$tensor":0}]],"$metadata":{"":{"version":1}}},"n":'
        b'{"$dict":[[1,{"$int":"9999999999999999999"}]]},"z":{"$numpy":["int8","AQ=="]}}'
    )
    assert decode(text, 1)["m"]["w"] == Ref(0)
    at %= len(text)
    damaged = text[:at] + noise + text[at + len(noise) // 2 :]
    try:
        tree = decode(damaged, 1)
    except StandfastError:
        return
    assert type(tree) in (dict, list, str, int, float)
