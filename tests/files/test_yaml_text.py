import math

import pytest
import yaml

from standfast import errors
from standfast.files.yaml_text import read_yaml

VALUE = {
    "hyperparameters": {"lr": 0.001, "betas": [0.9, 0.999], "name": "yes", "warm": True},
    "tags": {"a": ["cat", "7"], 7: [], "–": None, "0x1f": "1:30", "2026-01-01": "<<"},
    "big": 1 << 100,
    "limits": [math.inf, -0.0, 1e-30, -5],
    "texts": ["", "two\nlines", "'quoted'", "*star", "&and", "!bang", "null", " "],
}


def test_plain_scalars_are_what_pyyaml_says_and_a_date_is_its_text():
    text = "[1, 0o7, 017, 0x1F, 0b11, 1_000, 1:30, 1.5e+3, 1e3, .inf, ~, no, Off, y, -, -.5]"
    assert read_yaml(text.encode(), "a") == yaml.safe_load(text)
    times = {"day": "2026-01-02", "at": "2026-01-02T03:04:05Z"}
    assert read_yaml(b"{day: 2026-01-02, at: 2026-01-02T03:04:05Z}", "a") == times
    for empty in (b"", b"# nothing", b"---\n...", b"~"):
        assert read_yaml(empty, "a") is None
    assert read_yaml(b"[" * 100 + b"]" * 100, "a") is not None


@pytest.mark.parametrize("dumper", ["SafeDumper", "CSafeDumper"])
def test_what_a_safe_writer_wrote_comes_back_the_same(dumper):
    text = yaml.dump(VALUE, Dumper=getattr(yaml, dumper), allow_unicode=True).encode()
    assert repr(read_yaml(text, "a")) == repr(yaml.safe_load(text))
    assert read_yaml(text, "a") == VALUE


REFUSED = {
    "an alias": (b"a: &x [1]\nb: *x", errors.BadField),
    "an alias to itself": (b"&a [*a]", errors.BadField),
    "an object": (b"!!python/object/apply:os.system ['true']", errors.BadField),
    "a tag of a scalar": (b"a: !!binary aGk=", errors.BadField),
    "a tag of a mapping": (b"a: !!set {b}", errors.BadField),
    "merging": (b"<<: {a: 1}", errors.BadField),
    "a key twice": (b"a: 1\nb: 2\na: 3", errors.DuplicateKey),
    "keys that are equal": (b"{1: a, true: b}", errors.DuplicateKey),
    "a key that is a list": (b"? [1]\n: 2", errors.BadField),
    "several documents": (b"--- 1\n--- 2", errors.BadField),
    "text that is none": (b"a: \xff", errors.BadField),
    "half of a pair": (b'"\\ud800"', errors.BadField),
    "a NUL": (b"a: \x00", errors.BadField),
    "a torn list": (b"a: [1, 2", errors.BadField),
    "a long number": (b"a: " + b"1" * 5000, errors.BadField),
    "a long time": (b"a: 1" + b":1" * 4000 + b".5", errors.BadField),
    "digits that are none": (b"a: 0x_", errors.BadField),
    "nested lists": (b"[" * 1_000_000, errors.LimitExceeded),
    "nested items": (b"- " * 1_000_000, errors.LimitExceeded),
    "nested mappings": (b"{a: " * 1_000_000, errors.LimitExceeded),
    "nested keys": (b"? " * 1_000_000, errors.BadField),
    "101 levels": (b"[" * 101 + b"]" * 101, errors.LimitExceeded),
    "integers of one hash": (
        "\n".join(f"{i * (2**61 - 1)}: 1" for i in range(1, 100_000)).encode(),
        errors.LimitExceeded,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_plain_yaml_is_refused_at_once(name):
    text, error = REFUSED[name]
    with pytest.raises(error) as raised:
        read_yaml(text, "some.yaml")
    assert type(raised.value) is error
    assert str(raised.value).startswith("some.yaml: ")
    assert len(str(raised.value)) < 500
    assert "\n" not in str(raised.value)


def test_more_bytes_or_values_than_any_file_has_are_refused(seams):
    seams.bound("nodes of YAML", 10)
    assert read_yaml(b"[" + b"1," * 9 + b"]", "a") == [1] * 9
    with pytest.raises(errors.LimitExceeded, match="10"):
        read_yaml(b"[" + b"1," * 10 + b"]", "a")
    seams.bound("bytes of YAML", 10)
    with pytest.raises(errors.LimitExceeded, match="11"):
        read_yaml(b"a: 45678901", "a")


def test_a_torn_or_changed_text_gives_a_value_or_an_error_of_ours():
    text = yaml.safe_dump(VALUE, allow_unicode=True).encode()
    outcomes = set()
    for at in range(len(text)):
        for changed in (text[:at], text[:at] + b"*" + text[at + 1 :], text[:at] + b"\n" + text):
            try:
                outcomes.add(type(read_yaml(changed, "a")))
            except errors.StandfastError as error:
                outcomes.add(type(error))
    assert {dict, errors.BadField} <= outcomes
