"""`dataset.json` and `generation_info.json`: what they say comes back, unknown fields included."""

import json
import math
import os
import pickle
import re
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import errors
from standfast.packages.documents.json_text import text
from standfast.packages.documents.records import (
    DatasetInfo,
    DatasetMetadata,
    DatasetSample,
    DataStats,
    GenerationInfo,
    TrainingParams,
)

DATASET: dict[str, Any] = {
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
"""What another program wrote."""
INFO: dict[str, Any] = {
    "candle_version": "0.8.4",
    "creation_date": "2024-01-23 14:30:22",
    "data_stats": {"avg_tokens_per_sample": 104.7},
    "libraries": {},
    "model_size": "33M",
    "prompt": "a cooking recipe generator",
    "training_params": {"epochs": 20, "schedule": {"kind": "cosine", "to": 1e-05}},
}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "record.json"


def changed(*place: Any, to: Any) -> dict[str, Any]:
    """The data set, with another value in one place."""
    content: dict[str, Any] = json.loads(json.dumps(DATASET))
    inner: Any = content
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = to
    return content


def test_texts_become_a_dataset_that_comes_back(path):
    dataset = DatasetInfo.of_texts(["one two", "three"], lambda text: len(text.split()))
    dataset.save(path)
    assert DatasetInfo.load(path) == dataset
    assert (dataset.metadata.total_samples, dataset.metadata.total_tokens) == (2, 3)
    assert dataset.samples[1] == DatasetSample("three", tokens=1)
    other = DatasetInfo.of_texts(["a"], generation_method="collected", total_tokens=9)
    assert (other.metadata.generation_method, other.metadata.total_tokens) == ("collected", 9)
    assert other.samples[0].tokens is None


def test_plain_text_has_an_empty_line_between_samples():
    assert DatasetInfo.of_texts(["one\ntwo", "three"]).text() == "one\ntwo\n\nthree\n"


def test_without_a_counter_the_number_of_tokens_is_unknown(path):
    dataset = DatasetInfo.of_texts(["one two", "three"])
    assert dataset.metadata.total_tokens is None
    dataset.save(path)
    assert "total_tokens" not in path.read_text()
    assert DatasetInfo.load(path) == dataset
    assert DatasetInfo.of_texts([], len).metadata.total_tokens == 0
    assert DatasetMetadata().total_tokens is None


def test_a_prompt_and_a_size_are_enough(path):
    before = datetime.now().astimezone()
    info = GenerationInfo(prompt="recipes", model_size="small")
    info.save(path)
    assert GenerationInfo.load(path) == info
    assert info.libraries["numpy"] == version("numpy")
    for record in (info, DatasetMetadata()):
        made = datetime.fromisoformat(record.creation_date)
        assert before.replace(microsecond=0) <= made <= datetime.now().astimezone()


def test_everything_that_is_given_comes_back(path):
    info = GenerationInfo(
        "recipes",
        "12M",
        TrainingParams(epochs=3, learning_rate=1, final_loss=0.1 + 0.2, optimizer="adamw"),
        DataStats(total_samples=10, vocab_size=5000),
        creation_date="2026-11-16T12:00:00+01:00",
        libraries={"candle": "0.8.4"},
        quantization={"largest_error": 0.001, "scheme": "int8"},
        others={"notes": ["a", None]},
    )
    info.save(path)
    assert GenerationInfo.load(path) == info
    params = {"epochs": 3, "learning_rate": 1, "final_loss": 0.1 + 0.2, "optimizer": "adamw"}
    assert json.loads(path.read_text()) == {
        "prompt": "recipes",
        "model_size": "12M",
        "training_params": params,
        "data_stats": {"total_samples": 10, "vocab_size": 5000},
        "creation_date": "2026-11-16T12:00:00+01:00",
        "libraries": {"candle": "0.8.4"},
        "quantization": {"largest_error": 0.001, "scheme": "int8"},
        "notes": ["a", None],
    }


def test_numbers_of_numpy_are_numbers_and_a_path_may_be_bytes(path):
    given: Any = os.fsencode(path)
    params = TrainingParams(final_loss=np.float64(2.5), epochs=np.int64(3))  # type: ignore[arg-type]
    assert (type(params.final_loss), type(params.epochs)) == (float, int)
    info = GenerationInfo(training_params=params)
    info.save(given)
    assert GenerationInfo.load(given) == info
    counted: Any = lambda text: np.uint8(100)  # noqa: E731
    dataset = DatasetInfo.of_texts(["a", "b", "c"], counted)
    assert dataset.metadata.total_tokens == 300  # a sum of bytes is not to overflow
    assert [type(sample.tokens) for sample in dataset.samples] == [int] * 3
    dataset.save(given)
    assert DatasetInfo.load(given) == dataset
    for wrong in (np.bool_(True), np.float64(2.5)):
        with pytest.raises(errors.BadField, match="epochs"):
            TrainingParams(epochs=wrong)
    for wrong in (math.nan, np.float32("nan")):
        with pytest.raises(errors.BadField, match="final_loss"):
            TrainingParams(final_loss=wrong)


FOREIGN: list[tuple[Any, dict[str, Any]]] = [
    (DatasetInfo, DATASET),
    (DatasetInfo, {"metadata": {}, "samples": []}),
    (DatasetInfo, {"metadata": {"total_samples": 2}, "samples": [{"text": ""}]}),
    *((DatasetInfo, changed("metadata", "total_tokens", to=to)) for to in (7.0, -0.0, None)),
    *((DatasetInfo, changed("metadata", "creation_date", to=to)) for to in (None, "")),
    (DatasetInfo, changed("metadata", "ollama_used", to=None)),
    *((DatasetInfo, changed("samples", 0, "tokens", to=to)) for to in (1e300, None)),
    (DatasetInfo, changed("samples", 0, "as_written", to={"tokens": None})),
    (GenerationInfo, INFO),
    (GenerationInfo, {}),
    (GenerationInfo, {"prompt": "recipes"}),
    (GenerationInfo, {"training_params": None, "data_stats": None, "prompt": None}),
    (GenerationInfo, {"training_params": {}, "data_stats": {}, "prompt": "", "libraries": {}}),
    (GenerationInfo, {"libraries": None, "creation_date": None, "quantization": None}),
    (GenerationInfo, {"libraries": {"torch": None, "candle": "0.8.4"}}),
    (GenerationInfo, {"training_params": {"epochs": None, "optimizer": None}}),
    (GenerationInfo, {"training_params": {"epochs": 3.0, "learning_rate": 1.0, "seconds": 2}}),
    (GenerationInfo, {"training_params": {"epochs": -0.0}, "data_stats": {"vocab_size": 300.0}}),
    (GenerationInfo, {"as_written": {"prompt": None}, "others": {"prompt": 3}}),
]


def test_what_a_file_lacks_or_has_as_null_is_not_made_up_and_written_once_it_is_set():
    nothing = GenerationInfo(creation_date="", libraries={})
    assert GenerationInfo.of_dict({}) == nothing
    assert GenerationInfo.of_dict({}).libraries is not GenerationInfo.of_dict({}).libraries
    given = {"training_params": None, "libraries": None, "creation_date": None, "prompt": None}
    assert GenerationInfo.of_dict(given) == nothing
    found = DatasetInfo.of_dict({"metadata": {}, "samples": [{"text": "a", "tokens": 4.0}]})
    assert found.metadata == DatasetMetadata(creation_date="")
    assert type(found.samples[0].tokens) is int
    assert type(found.samples[0].changed(tokens=5).as_dict()["tokens"]) is int
    info = GenerationInfo.of_dict({"prompt": None, "training_params": {"epochs": 3.0}})
    params = {"epochs": 4, "steps": 10}
    changes: dict[str, Any] = {"prompt": "recipes", "quantization": {"scheme": "int8"}}
    other = info.changed(training_params=info.training_params.changed(**params), **changes)
    assert info.quantization is None
    assert other.as_dict() == {"training_params": params, **changes}


REST = '{"metadata": {}, "samples": [{"text": "a", "x": '


def test_a_dataset_may_be_larger_than_other_json_files(path, seams):
    seams.bound("bytes of JSON", 1 << 16)
    dataset = DatasetInfo.of_texts(["flour and butter " * 4096])
    dataset.save(path)
    assert DatasetInfo.load(path) == dataset
    seams.bound("bytes of package JSON", path.stat().st_size - 1)
    with pytest.raises(errors.LimitExceeded, match=r"record\.json"):
        DatasetInfo.load(path)


HALF = "\ud800"
UNWRITABLE: dict[str, Any] = {
    "samples[1].text": DatasetInfo.of_texts(["a", f"b{HALF}"]),
    "samples[0].tags[1].by": DatasetInfo(
        DatasetMetadata(), [DatasetSample("a", others={"tags": ["x", {"by": "\udfff"}]})]
    ),
    "metadata.creation_date": DatasetInfo.of_texts([], creation_date="\udc80"),
    "a key of metadata.more": DatasetInfo(DatasetMetadata(others={"more": {HALF: 1}}), []),
    "prompt": GenerationInfo(f"crêpes {HALF}"),
}


@pytest.mark.parametrize("place", UNWRITABLE)
def test_half_of_a_character_is_named_and_not_written(place, path):
    with pytest.raises(errors.RefusedMetadata, match=re.escape(f"{path}: {place} ")) as caught:
        UNWRITABLE[place].save(path)
    assert str(caught.value).isprintable()
    assert not path.exists()


def test_what_json_does_not_have_is_not_written(path):
    sample = DatasetSample("a", others={"when": datetime.now()})
    with pytest.raises(errors.RefusedMetadata, match="JSON"):
        DatasetInfo(DatasetMetadata(), [sample]).save(path)
    assert not path.exists()


def test_samples_are_of_their_class_and_one_text_is_not_taken_for_its_letters():
    with pytest.raises(errors.BadField, match=r"samples\[1\]"):
        DatasetInfo(DatasetMetadata(), [DatasetSample("a"), "b"])  # type: ignore[list-item]
    with pytest.raises(errors.BadOption):
        DatasetInfo.of_texts("abc")


@pytest.mark.parametrize(("kind", "content"), FOREIGN)
def test_unknown_fields_are_written_again_exactly(kind, content, path):
    path.write_text(json.dumps(content))
    record = kind.load(path)
    record.save(path)
    expected = json.dumps(content, indent=2, sort_keys=True, ensure_ascii=False)
    assert path.read_text() == expected + "\n"
    assert text(pickle.loads(pickle.dumps(record)).as_dict()) == expected
    if content is DATASET:
        assert record.metadata.others["temperature"] == 0.7
        assert record.samples[1].others["quality"]["by"] == ["a", {"b": None}]
    elif content is INFO:
        assert record.others == {"candle_version": "0.8.4"}


WRONG: list[tuple[Any, dict[str, Any], str]] = [
    (DatasetInfo, {"samples": []}, "metadata"),
    (DatasetInfo, {"metadata": {}}, "samples"),
    (DatasetInfo, changed("metadata", to=[]), "metadata"),
    *((DatasetInfo, changed("samples", to=to), "samples") for to in ({"text": "a"}, None)),
    (DatasetInfo, changed("samples", 1, to="a text"), "samples[1]"),
    (DatasetInfo, changed("samples", 1, to={"txt": "a"}), "samples[1].text"),
    *((DatasetInfo, changed("samples", 0, "text", to=to), "samples[0].text") for to in (3, None)),
    (DatasetInfo, changed("samples", 0, "tokens", to=4.5), "samples[0].tokens"),
    (DatasetInfo, changed("metadata", "total_samples", to=True), "metadata.total_samples"),
    (DatasetInfo, changed("metadata", "ollama_used", to=1), "metadata.ollama_used"),
    (DatasetInfo, changed("metadata", "creation_date", to=3.0), "metadata.creation_date"),
    (GenerationInfo, {"prompt": 3.0}, "prompt"),
    (GenerationInfo, {"model_size": 12}, "model_size"),
    (GenerationInfo, {"training_params": []}, "training_params"),
    (GenerationInfo, {"training_params": {"epochs": 2.5}}, "training_params.epochs"),
    (GenerationInfo, {"training_params": {"epochs": "3"}}, "training_params.epochs"),
    (GenerationInfo, {"training_params": {"learning_rate": "a"}}, "training_params.learning_rate"),
    (GenerationInfo, {"data_stats": {"total_tokens": False}}, "data_stats.total_tokens"),
    (GenerationInfo, {"libraries": {"torch": 2.4}}, "libraries['torch']"),
    (GenerationInfo, {"libraries": ["torch"]}, "libraries"),
    (GenerationInfo, {"quantization": "int8"}, "quantization"),
]


@pytest.mark.parametrize(("kind", "content", "place"), WRONG, ids=range(len(WRONG)))
def test_a_field_of_the_wrong_kind_is_named(kind, content, place, path):
    path.write_text(json.dumps(content))
    with pytest.raises(errors.BadField, match=re.escape(f"{path}: {place} ")):
        kind.load(path)


NOT_JSON: dict[str, type[Exception]] = {
    '{"metadata": {}, "samples": [], "samples": []}': errors.DuplicateKey,
    REST + '{"b": 1, "b": 2}}]}': errors.DuplicateKey,
    REST + "NaN}]}": errors.BadField,
    REST + "1e999}]}": errors.BadField,
    '{"metadata": {}, "samples": [{"text": "\\ud800"}]}': errors.BadField,
    REST + "[" * 100_000: errors.BadField,
    '{"metadata": {}, "samples": [{"text": "a"}': errors.BadField,
    "[]": errors.BadField,
    "": errors.BadField,
}


@pytest.mark.parametrize("kind", [DatasetInfo, GenerationInfo])
def test_what_is_not_strict_json_is_refused(kind, path):
    with pytest.raises(errors.MissingFile, match=r"record\.json"):
        kind.load(path)
    for content, error in NOT_JSON.items():
        path.write_text(content)
        with pytest.raises(error, match=r"record\.json"):
            kind.load(path)
