"""The lenient metadata of OXCK, rule by rule and against the original's own parser."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.errors import BadField
from standfast.formats.oxck.file import from_text, to_text
from tests.formats.builders import rows
from tests.formats.oxck.builders import (
    ORIGINAL_WHITE,
    OriginalError,
    original_metadata,
    original_text,
)
from tests.formats.oxck.malformed import METADATA

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
    refused = [row.content[28:] for row in rows(METADATA)]
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


@st.composite
def loose(draw: st.DrawFn) -> str:
    """Pairs with whatever the original allows between them, and now and then more."""
    white = st.text(st.sampled_from(" \n\t\u3000"), max_size=2)
    between = st.text(st.sampled_from(", \n\x85\x1d"), max_size=3)
    body = st.text(st.sampled_from([*"ab{}:,é\\"]), max_size=4)
    parts = []
    for _ in range(draw(st.integers(0, 4))):
        key, value = draw(body), draw(body)
        parts += [draw(between), f'"{key}"', draw(white), ":", draw(white), f'"{value}"']
    return draw(white) + "{" + "".join(parts) + draw(between) + "}" + draw(white)


@settings(max_examples=200, deadline=None)
@given(loose())
def test_loose_pairs_are_read_or_refused_as_by_the_original(text):
    assert outcome(lambda: from_text(text.encode())) == outcome(lambda: original_metadata(text))


@given(st.dictionaries(texts, texts, max_size=5))
def test_metadata_is_written_as_the_original_writes_it(metadata):
    text = to_text(metadata)
    assert text == original_text(metadata)
    assert from_text(text.encode()) == original_metadata(text) == metadata


def test_keys_are_sorted_by_their_bytes():
    given = {"é": "2", "z": "1", "Z": "0", "\U0001f600": "4", "\uffff": "3"}
    assert to_text(given) == '{"Z":"0","z":"1","é":"2","\uffff":"3","\U0001f600":"4"}'
