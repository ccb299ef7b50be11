import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import split_state_dict_into_shards_factory
from huggingface_hub.serialization._base import parse_size_to_int
from hypothesis import given, settings
from hypothesis import strategies as st

import standfast
from standfast import errors
from standfast.packages.documents import names
from standfast.packages.weights import weights
from standfast.tensors import TensorSpec, source_of
from tests.kit.cases import kept
from tests.packages import hugging

ONE = "model-00001-of-00001.safetensors"


def _bytes(*sizes: int) -> dict[str, TensorSpec]:
    return {f"t{i}": TensorSpec("uint8", (size,)) for i, size in enumerate(sizes)}


VARIANTS: list[dict[str, Any]] = [
    {},
    {"n_layer": 3, "n_embd": 32, "vocab_size": 50},
    {"tie_word_embeddings": False},
    {"dtype": "bfloat16", "n_layer": 1},
]


@pytest.mark.parametrize("changes", kept(VARIANTS, VARIANTS[0], VARIANTS[2]), ids=str)
def test_shards_are_those_that_transformers_writes(tmp_path, changes):
    model = hugging.model(**changes)
    if "dtype" in changes:
        model = model.bfloat16()
    state = model.state_dict()
    if changes.get("tie_word_embeddings", True):
        del state["lm_head.weight"]
    specs = {name: source_of(value).spec for name, value in state.items()}
    for size in ("1KB", "10KB", 20_000, "1MB", 1, 6400, 6399):
        folder = hugging.save(model, tmp_path / str(size), max_shard_size=size)
        ours = weights.split(specs, weights.shard_size(size))
        theirs = sorted(path.name for path in folder.glob("model*.safetensors"))
        if len(ours) == 1:
            assert theirs == [names.MODEL]
            continue
        assert theirs == [names.shard(i + 1, len(ours)) for i in range(len(ours))]
        for name, tensors in zip(theirs, ours, strict=True):
            with standfast.open(folder / name) as file:
                assert sorted(file) == sorted(tensors)
        index = folder / names.INDEX
        assert weights.index_text(ours, specs) == index.read_bytes()
        places = {each: name for name, part in zip(theirs, ours, strict=True) for each in part}
        assert weights.read_index(index) == places


@given(st.lists(st.integers(0, 12), max_size=30), st.integers(1, 20))
def test_a_split_is_that_of_the_hub_library(sizes, limit):
    specs = _bytes(*sizes)
    theirs = split_state_dict_into_shards_factory(
        specs,  # type: ignore[arg-type]
        get_storage_size=lambda spec: spec.nbytes,  # type: ignore[attr-defined]
        filename_pattern="model{suffix}.safetensors",
        max_shard_size=limit,
    )
    assert weights.split(specs, limit) == list(theirs.filename_to_tensors.values())


def test_more_shards_than_five_digits_count_are_refused(seams):
    assert weights.split({}, 5) == []
    seams.bound("shards of a package", 3)
    assert len(weights.split(_bytes(5, 5, 5), 5)) == 3
    with pytest.raises(errors.BadOption, match="4"):
        weights.split(_bytes(5, 5, 5, 5), 5)


def test_a_size_in_words_means_what_it_means_to_the_hub_library():
    for text in ("5GB", "1MB", "0.5kb", "1.5 TB", " 200 MB "):
        assert weights.shard_size(text) == parse_size_to_int(text)
    assert weights.shard_size(1234) == 1234
    assert weights.shard_size(5e9) == 5_000_000_000
    assert weights.shard_size("1GiB") == 1 << 30
    for wrong in ("", "many", "5 apples", "-1GB", 0, -1, math.nan, math.inf, None, True, [5]):
        with pytest.raises(errors.BadOption, match="max_shard_size"):
            weights.shard_size(wrong)


def _index(folder: Path, content: Any) -> Path:
    path = folder / names.INDEX
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_an_index_that_names_anything_but_shards_is_refused(tmp_path):
    elsewhere = (f"../{ONE}", f"/tmp/{ONE}", "..", "", f"sub/{ONE}")
    others = ("model.safetensors", "model-00001-of-00001.bin", "model-1-of-1.safetensors")
    odd = (f"{ONE}\n", f"{ONE}\0", "\x1b[2J", ONE.replace("1", "\u0661"))
    for name in (*elsewhere, *others, "model-000001-of-000001.safetensors", *odd):
        with pytest.raises(errors.BadField, match=r"weight_map\['a'\]") as caught:
            weights.read_index(_index(tmp_path, {"weight_map": {"a": name}}))
        assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    "named",
    [
        ("1-of-3", "3-of-3"),
        ("1-of-3", "2-of-3", "3-of-3", "4-of-3"),
        ("0-of-2", "1-of-2"),
        ("1-of-2", "2-of-3"),
        ("1-of-0",),
    ],
    ids=["missing", "too many", "from 0", "two totals", "of none"],
)
def test_an_index_whose_shards_do_not_add_up_is_refused(tmp_path, named):
    files = [re.sub(r"(\d)", r"0000\1", f"model-{each}.safetensors") for each in named]
    path = _index(tmp_path, {"weight_map": {f"t{i}": name for i, name in enumerate(files)}})
    with pytest.raises(errors.BadField, match=path.name):
        weights.read_index(path)


def test_what_is_not_an_index_is_refused(tmp_path):
    maps: list[Any] = [{}, [ONE], {"a": 3}, {"a": [ONE]}]
    texts = ("", '{"weight_map": ', '{"weight_map": {"a": "\\ud800"}}', "[" * 100_000)
    for content in ({}, [], *texts, *({"weight_map": each} for each in maps)):
        with pytest.raises(errors.BadField):
            weights.read_index(_index(tmp_path, content))
    with pytest.raises(errors.DuplicateKey):
        weights.read_index(_index(tmp_path, f'{{"weight_map": {{"a": "{ONE}", "a": "{ONE}"}}}}'))


def test_an_index_beyond_the_limit_is_not_read(tmp_path, seams):
    path = _index(tmp_path, {"weight_map": {"a": ONE, "b": ONE}})
    seams.bound("bytes of JSON", path.stat().st_size)
    assert weights.read_index(path) == {"a": ONE, "b": ONE}
    seams.bound("bytes of JSON", path.stat().st_size - 1)
    with pytest.raises(errors.LimitExceeded):
        weights.read_index(path)
    with pytest.raises(errors.MissingFile):
        weights.read_index(tmp_path / "missing.json")
    with pytest.raises(errors.UnreadableFile):
        weights.read_index(tmp_path)


@settings(max_examples=30)
@given(st.binary(max_size=200))
def test_no_bytes_crash_an_index(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any.index.json"
    path.write_bytes(b'{"weight_map": {' + data)
    with pytest.raises((errors.BadField, errors.DuplicateKey)):
        weights.read_index(path)
