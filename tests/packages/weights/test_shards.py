from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import standfast
from standfast import errors
from standfast.packages.documents import names
from standfast.packages.weights import weights
from standfast.tensorfile.importers import json_files
from standfast.tensors import TensorSpec, source_of
from tests.packages import hugging

ONE = "model-00001-of-00001.safetensors"


def _specs(state: Mapping[str, Any]) -> dict[str, TensorSpec]:
    return {name: source_of(value).spec for name, value in state.items()}


def _bytes(*sizes: int) -> dict[str, TensorSpec]:
    return {f"t{i}": TensorSpec("uint8", (size,)) for i, size in enumerate(sizes)}


@pytest.mark.parametrize("size", ["1KB", "4KB", "10KB", 20_000, "1MB", 1, 6400, 6399])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"n_layer": 3, "n_embd": 32, "vocab_size": 50},
        {"tie_word_embeddings": False},
        {"dtype": "bfloat16", "n_layer": 1},
    ],
    ids=["tied", "deeper", "untied", "bfloat16"],
)
def test_shards_and_index_are_those_that_transformers_writes(
    tmp_path: Path, changes: dict[str, Any], size: int | str
) -> None:
    model = hugging.model(**changes)
    state = model.state_dict()
    if "dtype" in changes:
        model, state = model.bfloat16(), model.bfloat16().state_dict()
    if changes.get("tie_word_embeddings", True):
        del state["lm_head.weight"]
    specs = _specs(state)
    folder = hugging.save(model, tmp_path, max_shard_size=size)
    ours = weights.split(specs, weights.shard_size(size))
    theirs = sorted(path.name for path in folder.glob("model*.safetensors"))
    if len(ours) == 1:
        assert theirs == [names.MODEL]
        return
    assert theirs == [names.shard(i + 1, len(ours)) for i in range(len(ours))]
    for name, tensors in zip(theirs, ours, strict=True):
        with standfast.open(folder / name) as file:
            assert sorted(file) == sorted(tensors)
    index = folder / names.INDEX
    assert weights.index_text(ours, specs) == index.read_bytes()
    assert weights.read_index(index) == {
        tensor: name for name, tensors in zip(theirs, ours, strict=True) for tensor in tensors
    }


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 20))
def test_a_split_is_that_of_the_hub_library(sizes: list[int], limit: int) -> None:
    from huggingface_hub import split_state_dict_into_shards_factory

    specs = _bytes(*sizes)
    theirs = split_state_dict_into_shards_factory(
        specs,  # type: ignore[arg-type]
        get_storage_size=lambda spec: spec.nbytes,  # type: ignore[attr-defined]
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=limit,
    )
    assert weights.split(specs, limit) == list(theirs.filename_to_tensors.values())


def test_a_tensor_beyond_the_limit_is_numbered_before_the_shard_that_is_open() -> None:
    assert weights.split(_bytes(2, 9, 3, 3), 6) == [["t1"], ["t0", "t2"], ["t3"]]


def test_no_tensors_need_no_shard() -> None:
    assert weights.split({}, 5) == []


def test_more_shards_than_five_digits_count_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "MAX_SHARDS", 3)
    assert len(weights.split(_bytes(5, 5, 5), 5)) == 3
    with pytest.raises(errors.BadOption, match="4 shards, over 3: give a larger one"):
        weights.split(_bytes(5, 5, 5, 5), 5)


@pytest.mark.parametrize("text", ["5GB", "1MB", "0.5kb", "1.5 TB", " 200 MB "])
def test_a_size_in_words_means_what_it_means_to_the_hub_library(text: str) -> None:
    from huggingface_hub.serialization._base import parse_size_to_int

    assert weights.shard_size(text) == parse_size_to_int(text)


def test_a_size_may_be_a_number_or_binary() -> None:
    assert weights.shard_size(1234) == 1234
    assert weights.shard_size(5e9) == 5_000_000_000
    assert weights.shard_size("1GiB") == 1 << 30


@pytest.mark.parametrize(
    "value", ["", "many", "5 apples", "-1GB", 0, -1, float("nan"), float("inf"), None, True, [5]]
)
def test_a_size_that_is_none_is_refused(value: Any) -> None:
    with pytest.raises(errors.BadOption, match=r"max_shard_size is .*such as '5GB'"):
        weights.shard_size(value)


def _index(folder: Path, content: Any) -> Path:
    path = folder / names.INDEX
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize(
    "name",
    [
        "../model-00001-of-00001.safetensors",
        "/tmp/model-00001-of-00001.safetensors",
        "..",
        "",
        "sub/" + ONE,
        "model.safetensors",
        "pytorch_model-00001-of-00001.bin",
        "model-00001-of-00001.bin",
        "model-1-of-1.safetensors",
        "model-000001-of-000001.safetensors",
        "model-00001-of-00001.safetensors\n",
        "model-00001-of-00001.safetensors\0",
        "\x1b[2J",
    ],
)
def test_an_index_that_names_anything_but_shards_is_refused(tmp_path: Path, name: str) -> None:
    path = _index(tmp_path, {"weight_map": {"a": name}})
    refusal = r"index\.json: weight_map\['a'\] is .*, which is not the name of a shard: they are"
    with pytest.raises(errors.BadField, match=refusal) as caught:
        weights.read_index(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "named",
    [
        ["model-00001-of-00003.safetensors", "model-00003-of-00003.safetensors"],
        [f"model-0000{i}-of-00003.safetensors" for i in (1, 2, 3, 4)],
        ["model-00000-of-00002.safetensors", "model-00001-of-00002.safetensors"],
        ["model-00001-of-00002.safetensors", "model-00002-of-00003.safetensors"],
        ["model-00001-of-00000.safetensors"],
    ],
    ids=["missing", "too many", "from 0", "two totals", "of none"],
)
def test_an_index_whose_shards_do_not_add_up_is_refused(tmp_path: Path, named: list[str]) -> None:
    path = _index(tmp_path, {"weight_map": {f"t{i}": name for i, name in enumerate(named)}})
    with pytest.raises(errors.BadField, match=r"it names \d shards, which should be called"):
        weights.read_index(path)


def test_digits_of_other_scripts_do_not_count_shards(tmp_path: Path) -> None:
    with pytest.raises(errors.BadField, match="shard"):
        weights.read_index(_index(tmp_path, {"weight_map": {"a": ONE.replace("1", "\u0661")}}))


@pytest.mark.parametrize(
    ("content", "error", "reason"),
    [
        ({}, errors.BadField, "weight_map should be"),
        ({"weight_map": {}}, errors.BadField, "weight_map should be"),
        ({"weight_map": [ONE]}, errors.BadField, "weight_map should be"),
        ({"weight_map": {"a": 3}}, errors.BadField, r"weight_map\['a'\] should be the name"),
        ({"weight_map": {"a": [ONE]}}, errors.BadField, r"weight_map\['a'\] should be the name"),
        ([], errors.BadField, "expected a JSON object"),
        ("", errors.BadField, "not the JSON"),
        ('{"weight_map": ', errors.BadField, "not the JSON"),
        ('{"weight_map": {"a": "\\ud800"}}', errors.BadField, "not the JSON"),
        ("[" * 100_000, errors.BadField, "nests deeper"),
        (f'{{"weight_map": {{"a": "{ONE}", "a": "{ONE}"}}}}', errors.DuplicateKey, "stands twice"),
    ],
)
def test_an_index_that_is_none_is_refused(
    tmp_path: Path, content: Any, error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        weights.read_index(_index(tmp_path, content))


def test_an_index_of_one_shard_is_read(tmp_path: Path) -> None:
    path = _index(tmp_path, {"weight_map": {"a": ONE, "b": ONE}})
    assert weights.read_index(path) == {"a": ONE, "b": ONE}


def test_an_index_beyond_the_limit_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _index(tmp_path, {"weight_map": {"a": ONE}})
    monkeypatch.setattr(json_files, "MAX_JSON", path.stat().st_size)
    assert weights.read_index(path) == {"a": ONE}
    monkeypatch.setattr(json_files, "MAX_JSON", path.stat().st_size - 1)
    with pytest.raises(errors.LimitExceeded, match="bytes of JSON"):
        weights.read_index(path)


def test_an_index_that_is_not_there_or_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.MissingFile):
        weights.read_index(tmp_path / names.INDEX)
    with pytest.raises(errors.UnreadableFile):
        weights.read_index(tmp_path)


@given(st.binary(max_size=200))
def test_no_bytes_make_an_index_crash(
    tmp_path_factory: pytest.TempPathFactory, data: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.index.json"
    path.write_bytes(b'{"weight_map": {' + data)
    with pytest.raises((errors.BadField, errors.DuplicateKey)):
        weights.read_index(path)
