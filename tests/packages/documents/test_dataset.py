"""`dataset.json`: what it says comes back, fields that nobody knows included."""

from __future__ import annotations

import json
import os
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast.errors import (
    BadField,
    BadOption,
    DuplicateKey,
    LimitExceeded,
    MissingFile,
    RefusedMetadata,
)
from standfast.packages.documents import json_text
from standfast.packages.documents.records import DatasetInfo, DatasetMetadata, DatasetSample
from standfast.tensorfile.importers import json_files

FOREIGN: dict[str, Any] = {
    "metadata": {
        "total_samples": 2,
        "total_tokens": 7,
        "creation_date": "2024-01-23T14:30:22Z",
        "generation_method": "ollama",
        "ollama_used": True,
        "temperature": 0.7,
        "others": ["a field of this name", None],
    },
    "samples": [
        {"text": "Take two eggs.", "prompt": "recipe", "tokens": 4, "id": 18446744073709551616},
        {"text": "Für ½ Liter Milch\n…", "quality": {"score": -0.0, "by": ["a", {"b": None}]}},
    ],
    "schema": {"version": 3},
}


def written(folder: Path, value: Any) -> Path:
    path = folder / "dataset.json"
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def changed(*place: Any, to: Any) -> dict[str, Any]:
    """What another program wrote, with one value in another place."""
    content: dict[str, Any] = json.loads(json.dumps(FOREIGN))
    inner: Any = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = to
    return content


def test_texts_become_a_dataset_that_comes_back(tmp_path: Path) -> None:
    dataset = DatasetInfo.of_texts(["one two", "three"], lambda text: len(text.split()))
    dataset.save(tmp_path / "dataset.json")
    assert DatasetInfo.load(tmp_path / "dataset.json") == dataset
    assert dataset.metadata.total_samples == 2
    assert dataset.metadata.total_tokens == 3
    assert dataset.samples[1] == DatasetSample("three", tokens=1)


def test_arguments_besides_the_texts_are_metadata() -> None:
    dataset = DatasetInfo.of_texts(["a"], generation_method="collected", total_tokens=9)
    assert dataset.metadata.generation_method == "collected"
    assert dataset.metadata.total_tokens == 9
    assert dataset.samples[0].tokens is None


def test_a_new_dataset_was_made_now_in_a_time_zone() -> None:
    date = datetime.fromisoformat(DatasetMetadata().creation_date)
    assert abs((datetime.now().astimezone() - date).total_seconds()) < 60


def test_plain_text_has_an_empty_line_between_samples() -> None:
    assert DatasetInfo.of_texts(["one\ntwo", "three"]).text() == "one\ntwo\n\nthree\n"


def test_unknown_fields_are_written_again_exactly(tmp_path: Path) -> None:
    path = written(tmp_path, FOREIGN)
    dataset = DatasetInfo.load(path)
    assert dataset.metadata.others["temperature"] == 0.7
    assert dataset.samples[1].others["quality"]["by"] == ["a", {"b": None}]
    dataset.save(path)
    text = path.read_text()
    assert text == json.dumps(FOREIGN, indent=2, sort_keys=True, ensure_ascii=False) + "\n"


def test_a_date_that_a_file_lacks_is_not_made_up(tmp_path: Path) -> None:
    path = written(tmp_path, {"metadata": {}, "samples": []})
    assert DatasetInfo.load(path).metadata == DatasetMetadata(creation_date="")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"samples": []}, "metadata is missing"),
        ({"metadata": {}}, "samples is missing"),
        (changed("metadata", to=[]), "metadata is [], "),
        (changed("samples", to={"text": "a"}), "samples is {'text': 'a'}, "),
        (changed("samples", 1, to="a text"), "samples[1] is 'a text', "),
        (changed("samples", 1, to={"txt": "a"}), "samples[1].text is missing"),
        (changed("samples", 0, "text", to=3), "samples[0].text is 3, "),
        (changed("samples", 0, "text", to=None), "samples[0].text is None, "),
        (changed("samples", to=None), "samples is None, "),
        (changed("samples", 0, "tokens", to=4.5), "samples[0].tokens is 4.5, "),
        (changed("metadata", "total_samples", to=True), "metadata.total_samples is True, "),
        (changed("metadata", "ollama_used", to=1), "metadata.ollama_used is 1, "),
        (changed("metadata", "creation_date", to=3.0), "metadata.creation_date is 3.0, "),
    ],
    ids=lambda value: value.rstrip(", ") if isinstance(value, str) else "",
)
def test_a_known_field_of_the_wrong_kind_is_named_with_the_file(
    tmp_path: Path, content: Any, problem: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(BadField) as caught:
        DatasetInfo.load(path)
    expected = problem.replace(", ", ": it must be ")
    assert str(caught.value).startswith(f"{path}: {expected}")


@pytest.mark.parametrize(
    "content",
    [
        {"metadata": {}, "samples": []},
        {"metadata": {"total_samples": 2}, "samples": [{"text": ""}]},
        changed("metadata", "total_tokens", to=7.0),
        changed("metadata", "total_tokens", to=-0.0),
        changed("metadata", "total_tokens", to=None),
        changed("metadata", "creation_date", to=None),
        changed("metadata", "creation_date", to=""),
        changed("metadata", "ollama_used", to=None),
        changed("samples", 0, "tokens", to=1e300),
        changed("samples", 0, "tokens", to=None),
        changed("samples", 0, "as_written", to={"tokens": None}),
    ],
    ids=range(11),
)
def test_what_is_read_and_written_again_is_the_same_json(
    tmp_path: Path, content: dict[str, Any]
) -> None:
    path = written(tmp_path, content)
    DatasetInfo.load(path).save(path)
    assert path.read_text() == json_text.text(content) + "\n"


def test_a_whole_number_with_a_point_is_a_whole_number(tmp_path: Path) -> None:
    dataset = DatasetInfo.load(written(tmp_path, changed("samples", 0, "tokens", to=4.0)))
    assert type(dataset.samples[0].tokens) is int
    more = dataset.samples[0].changed(tokens=5)
    assert type(more.as_dict()["tokens"]) is int


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"metadata": {}, "samples": [], "samples": []}', DuplicateKey),
        ('{"metadata": {}, "samples": [{"text": "a", "x": {"b": 1, "b": 2}}]}', DuplicateKey),
        ('{"metadata": {}, "samples": [{"text": "a", "x": NaN}]}', BadField),
        ('{"metadata": {}, "samples": [{"text": "a", "x": 1e999}]}', BadField),
        ('{"metadata": {}, "samples": [{"text": "\\ud800"}]}', BadField),
        ('{"metadata": {}, "samples": [], "x": ' + "[" * 100_000, BadField),
        ('{"metadata": {}, "samples": [{"text": "a"}', BadField),
        ("[]", BadField),
        ("", BadField),
    ],
    ids=[
        "key twice",
        "key twice inside",
        "nan",
        "infinity",
        "half a pair",
        "deep",
        "cut",
        "list",
        "empty",
    ],
)
def test_what_is_not_strict_json_is_refused(
    tmp_path: Path, text: str, error: type[Exception]
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(error, match=r"dataset\.json"):
        DatasetInfo.load(path)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingFile, match=r"dataset\.json"):
        DatasetInfo.load(tmp_path / "dataset.json")


def test_a_dataset_may_be_larger_than_other_json_files(tmp_path: Path) -> None:
    text = "flour and butter " * 4096
    dataset = DatasetInfo.of_texts([text] * (json_files.MAX_JSON // len(text) + 1))
    path = tmp_path / "dataset.json"
    dataset.save(path)
    assert path.stat().st_size > json_files.MAX_JSON
    assert DatasetInfo.load(path) == dataset


def test_there_is_a_limit_beyond_what_anybody_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path, FOREIGN)
    monkeypatch.setattr(json_text, "LARGEST", path.stat().st_size - 1)
    with pytest.raises(LimitExceeded, match=r"dataset\.json"):
        DatasetInfo.load(path)


def test_what_json_does_not_have_is_not_written(tmp_path: Path) -> None:
    sample = DatasetSample("a", others={"when": datetime.now()})
    dataset = DatasetInfo(DatasetMetadata(), [sample])
    with pytest.raises(RefusedMetadata, match="JSON"):
        dataset.save(tmp_path / "dataset.json")
    assert list(tmp_path.iterdir()) == []


def test_samples_are_of_their_class() -> None:
    with pytest.raises(BadField, match=r"samples\[1\] is 'b': not a DatasetSample"):
        DatasetInfo(DatasetMetadata(), [DatasetSample("a"), "b"])  # type: ignore[list-item]


def test_one_text_is_not_taken_for_its_letters() -> None:
    with pytest.raises(BadOption, match=r"give a list of them, \[text\]"):
        DatasetInfo.of_texts("abc")
    assert DatasetInfo.of_texts(["abc"]).metadata.total_samples == 1


HALVES = {
    "samples[1].text": DatasetInfo.of_texts(["a", "b\ud800"]),
    "samples[0].tags[1].by": DatasetInfo(
        DatasetMetadata(), [DatasetSample("a", others={"tags": ["x", {"by": "\udfff"}]})]
    ),
    "metadata.creation_date": DatasetInfo.of_texts([], creation_date="\udc80"),
    "a key of metadata.more": DatasetInfo(DatasetMetadata(others={"more": {"\ud800": 1}}), []),
}


@pytest.mark.parametrize("place", HALVES)
def test_half_of_a_character_is_named_and_not_written(tmp_path: Path, place: str) -> None:
    path = tmp_path / "dataset.json"
    with pytest.raises(RefusedMetadata) as caught:
        HALVES[place].save(path)
    assert str(caught.value).startswith(f"{path}: {place} has '\\ud")
    assert str(caught.value).isprintable()
    assert list(tmp_path.iterdir()) == []


def test_without_a_counter_the_number_of_tokens_is_unknown(tmp_path: Path) -> None:
    """The seed: `pub total_tokens: usize` of `DatasetMetadata`; 0 would be a claim."""
    path = tmp_path / "dataset.json"
    dataset = DatasetInfo.of_texts(["one two", "three"])
    assert dataset.metadata.total_tokens is None
    assert dataset.metadata.total_samples == 2
    dataset.save(path)
    assert "total_tokens" not in path.read_text()
    assert DatasetInfo.load(path) == dataset
    assert DatasetInfo.of_texts([], len).metadata.total_tokens == 0
    assert DatasetMetadata().total_tokens is None


def test_a_counter_may_count_in_numbers_of_numpy(tmp_path: Path) -> None:
    """The seed: `pub total_tokens: usize`; a sum of bytes is not to overflow."""
    dataset = DatasetInfo.of_texts(["a", "b", "c"], lambda text: np.uint8(100))  # type: ignore[arg-type, return-value]
    assert dataset.metadata.total_tokens == 300
    assert [type(sample.tokens) for sample in dataset.samples] == [int] * 3
    dataset.save(tmp_path / "dataset.json")
    assert DatasetInfo.load(tmp_path / "dataset.json") == dataset


def test_a_path_may_be_bytes(tmp_path: Path) -> None:
    """The seed: `AsRef<Path>`."""
    path: Any = os.fsencode(tmp_path / "dataset.json")
    DatasetInfo.of_texts(["a"]).save(path)
    assert DatasetInfo.load(path).text() == "a\n"
    (tmp_path / "dataset.json").write_text("{}")
    with pytest.raises(BadField, match=r"dataset\.json: metadata is missing") as caught:
        DatasetInfo.load(path)
    assert str(caught.value).startswith(str(tmp_path))
