from __future__ import annotations

import math
import time

import pytest
import yaml

from standfast import errors
from standfast.files import yaml_text
from standfast.files.yaml_text import read_yaml

VALUE = {
    "hyperparameters": {"lr": 0.001, "betas": [0.9, 0.999], "name": "yes", "warm": True},
    "tags": {"a": ["cat", "7"], 7: [], "–": None, "0x1f": "1:30", "2026-01-01": "<<"},
    "big": 1 << 100,
    "limits": [math.inf, -0.0, 1e-30, -5],
    "texts": ["", "two\nlines", "'quoted'", "*star", "&and", "!bang", "null", " "],
}


@pytest.mark.parametrize("dumper", ["SafeDumper", "CSafeDumper"])
def test_what_a_safe_writer_wrote_comes_back_the_same(dumper: str) -> None:
    text = yaml.dump(VALUE, Dumper=getattr(yaml, dumper), allow_unicode=True).encode()
    assert repr(read_yaml(text, "a")) == repr(yaml.safe_load(text))
    assert read_yaml(text, "a") == VALUE


def test_scalars_without_quotes_are_what_pyyaml_says() -> None:
    text = "[1, 0o7, 017, 0x1F, 0b11, 1_000, 1:30, 1.5e+3, 1e3, .inf, ~, no, Off, y, -, -.5]"
    assert read_yaml(text.encode(), "a") == yaml.safe_load(text)


def test_a_date_is_its_text() -> None:
    assert read_yaml(b"{day: 2026-01-02, at: 2026-01-02T03:04:05Z}", "a") == {
        "day": "2026-01-02",
        "at": "2026-01-02T03:04:05Z",
    }


@pytest.mark.parametrize("text", [b"", b"# nothing", b"---\n...", b"~"])
def test_an_empty_text_is_none(text: bytes) -> None:
    assert read_yaml(text, "a") is None


REFUSED = {
    "an alias": (b"a: &x [1]\nb: *x", errors.BadField, "alias"),
    "an alias to itself": (b"&a [*a]", errors.BadField, "alias"),
    "an object": (b"!!python/object/apply:os.system ['true']", errors.BadField, "tag"),
    "a tag of a scalar": (b"a: !!binary aGk=", errors.BadField, "tag"),
    "a tag of a mapping": (b"a: !!set {b}", errors.BadField, "tag"),
    "merging": (b"<<: {a: 1}", errors.BadField, "merging"),
    "a key twice": (b"a: 1\nb: 2\na: 3", errors.DuplicateKey, "'a' stands twice"),
    "keys that are equal": (b"{1: a, true: b}", errors.DuplicateKey, "stands twice"),
    "a key that is a list": (b"? [1]\n: 2", errors.BadField, "a key that is a list"),
    "several documents": (b"--- 1\n--- 2", errors.BadField, "several"),
    "text that is none": (b"a: \xff", errors.BadField, "UTF-8"),
    "half of a pair": (b'"\\ud800"', errors.BadField, "YAML"),
    "a NUL": (b"a: \x00", errors.BadField, "YAML"),
    "a torn list": (b"a: [1, 2", errors.BadField, "YAML"),
    "a long number": (b"a: " + b"1" * 5000, errors.BadField, "5,000 characters"),
    "a long time": (b"a: 1" + b":1" * 4000 + b".5", errors.BadField, "characters"),
    "digits that are none": (b"a: 0x_", errors.BadField, "0x_"),
    "nested lists": (b"[" * 1_000_000, errors.LimitExceeded, "100 levels"),
    "nested items": (b"- " * 1_000_000, errors.LimitExceeded, "100 levels"),
    "nested mappings": (b"{a: " * 1_000_000, errors.LimitExceeded, "100 levels"),
    "nested keys": (b"? " * 1_000_000, errors.BadField, "a key that is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    text, error, words = REFUSED[name]
    started = time.thread_time()
    with pytest.raises(error, match=words) as raised:
        read_yaml(text, "some.yaml")
    assert type(raised.value) is error
    assert str(raised.value).startswith("some.yaml: ")
    assert len(str(raised.value)) < 500
    assert "\n" not in str(raised.value)
    assert time.thread_time() - started < 5


def test_more_bytes_or_values_than_any_file_has_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(yaml_text, "MAX_NODES", 10)
    assert read_yaml(b"[" + b"1," * 9 + b"]", "a") == [1] * 9
    with pytest.raises(errors.LimitExceeded, match="more than 10 values"):
        read_yaml(b"[" + b"1," * 10 + b"]", "a")
    monkeypatch.setattr(yaml_text, "MAX_BYTES", 10)
    with pytest.raises(errors.LimitExceeded, match="11 bytes"):
        read_yaml(b"a: 45678901", "a")


def test_a_hundred_levels_are_read_and_no_more() -> None:
    assert read_yaml(b"[" * 100 + b"]" * 100, "a") is not None
    with pytest.raises(errors.LimitExceeded, match="100 levels"):
        read_yaml(b"[" * 101 + b"]" * 101, "a")


def test_a_torn_or_changed_text_gives_a_value_or_an_error_of_ours() -> None:
    text = yaml.safe_dump(VALUE, allow_unicode=True).encode()
    outcomes = set()
    for at in range(len(text)):
        for changed in (text[:at], text[:at] + b"*" + text[at + 1 :], text[:at] + b"\n" + text):
            try:
                outcomes.add(type(read_yaml(changed, "a")))
            except errors.StandfastError as error:
                outcomes.add(type(error))
    assert {dict, errors.BadField} <= outcomes


def test_integer_keys_that_share_a_hash_are_refused() -> None:
    keys = "\n".join(f"{i * (2**61 - 1)}: 1" for i in range(1, 100_000))
    began = time.thread_time()
    with pytest.raises(errors.LimitExceeded, match="an integer of more than 64 bits"):
        read_yaml(keys.encode(), "a file")
    assert time.thread_time() - began < 10
