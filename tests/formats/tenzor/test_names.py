"""The hashes that stand for names in a `.tenzor` file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.formats.tenzor.names import hash_name, hash_names
from tests.formats.tenzor.builders import fnv

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("", 0xCBF29CE484222325),
        ("a", 0xAF63DC4C8601EC8C),
        ("foobar", 0x85944171F73967E8),
        ("conv1_weight", 0xC0713D87C613C5C3),
        ("conv1_bias", 0x9502FA3BC070167E),
        ("optim/conv1_weight/v", 0x2ADE9A9EAA75D0CA),
        ("optim/conv1_bias/v", 0x4A7A9950BB56BA33),
    ],
)
def test_a_name_has_the_hash_that_others_compute(name: str, expected: int) -> None:
    assert hash_name(name) == expected


@given(st.lists(texts, max_size=20))
def test_many_names_have_the_hashes_of_each(names: list[str]) -> None:
    hashes = hash_names(names).tolist()
    assert hashes == [hash_name(name) for name in names]
    assert hashes == [fnv(name.encode()) for name in names]
