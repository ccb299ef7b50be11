"""The DATA part: uids, discarded uids and tags, in any order."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import UnstableValue
from standfast.identity import encodings, identify
from standfast.identity.canonical import Canonical
from standfast.identity.reduction import Encoded
from standfast.identity.samples import canonical_data

STATE = {
    "uids": ["a", "b", "c", "dd"],
    "discarded": ["b", "c"],
    "tags": {"a": ["x", "y"], "c": ["x"]},
}


def data_hash(data: Any) -> str | None:
    return identify(data=data).data


def test_what_tells_data_apart():
    states: list[Any] = [
        STATE,
        {**STATE, "uids": ["a", "b", "c"]},
        {**STATE, "uids": ["a", "b", "c", "dd", "dd"]},
        {**STATE, "uids": ["a", "b", "c", "d", "d"]},
        {**STATE, "uids": ["a", "b", "cd", "d"]},
        {**STATE, "discarded": ["b"]},
        {**STATE, "discarded": []},
        {**STATE, "tags": {"a": ["x", "y"]}},
        {**STATE, "tags": {"a": ["xy"], "c": ["x"]}},
        {**STATE, "tags": {"a": ["x", "z"], "c": ["x"]}},
        {**STATE, "tags": {"a": ["x"], "c": ["x", "y"]}},
        {**STATE, "split": 1},
        {"uids": [1], "tags": {1: [1]}},
        {"uids": [1], "tags": {1: [True]}},
        {"uids": [1], "tags": {1: ["1"]}},
        {"uids": [1], "tags": {1: [1], 2: [1]}},
        {"uids": [1], "tags": {1: [1], 2: [True]}},
        {"uids": ["1"], "tags": {1: ["1"]}},
        {"uids": [True], "tags": {1: ["1"]}},
        {"uids": ["a", 1, None]},
        ["a", "b"],
        ["b", "a"],
    ]
    assert len(set(map(data_hash, states))) == len(states)


def test_what_says_the_same_is_the_same():
    bare = data_hash({"uids": ["a", "b"]})
    assert bare == data_hash({"uids": ["b", "a"], "discarded": None, "tags": None})
    assert bare == data_hash({"uids": {"b", "a"}, "discarded": [], "tags": {"a": []}})
    assert bare == data_hash({"uids": np.array(["a", "b"])})
    twice = {**STATE, "discarded": ["b", "c", "b"], "tags": {"a": ["x", "y", "x"], "c": ["x"]}}
    assert data_hash(twice) == data_hash(STATE)
    mixed = {
        "tags": {"c": ("x",), "a": {"y", "x"}},
        "discarded": ["c", "b"],
        "uids": ("dd", "c", "b", "a"),
    }
    assert data_hash(mixed) == data_hash(STATE)
    assert data_hash({"uids": np.array([2, 1])}) == data_hash({"uids": [1, 2]})


uids = st.text(st.characters(codec=None), max_size=4) | st.text("as1:", max_size=4)
some_uids = (
    st.lists(uids, max_size=5)
    | st.lists(st.integers(), max_size=5)
    | st.lists(uids | st.integers() | st.binary(max_size=2) | st.none(), max_size=5)
)


@given(some_uids, some_uids, st.dictionaries(uids, st.lists(uids, max_size=3), max_size=5))
def test_the_fast_way_gives_the_bytes_that_the_plain_way_gives(uids, discarded, tags):
    plain = {
        "uids": Encoded(encodings.unordered([Canonical("uid").encode(uid) for uid in uids])),
        "discarded": set(discarded),
        "tags": {uid: set(names) for uid, names in tags.items() if names},
    }
    data = {"uids": uids, "discarded": discarded, "tags": tags}
    assert canonical_data(data) == Canonical("data").encode(plain)


@pytest.mark.parametrize(
    ("data", "path"),
    [
        ({"uids": "abc"}, "data.uids"),
        ({"uids": 3}, "data.uids"),
        ({"uids": [], "discarded": {"a": True}}, "data.discarded"),
        ({"uids": [], "tags": [("a", "x")]}, "data.tags"),
        ({"uids": [], "tags": {"a": ["x"], "b": "x"}}, "data.tags.b"),
        ({"uids": [object()]}, "data.uids"),
        ({"uids": [], "tags": {"a": [object()]}}, "data.tags"),
        ({"uids": [], "more": [object()]}, r"data.more[0]"),
        ({"files": object()}, "data.files"),
    ],
)
def test_data_of_another_shape_is_refused(data, path):
    with pytest.raises(UnstableValue) as raised:
        identify(data=data)
    assert str(raised.value).startswith(f"{path} is a ")
