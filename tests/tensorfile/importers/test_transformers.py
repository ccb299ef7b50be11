"""Folders that the Trainer of Transformers wrote, read back without it."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import errors
from standfast.tensorfile.importers import read_folder
from tests.formats.builders import flipped
from tests.kit.stores import same
from tests.tensorfile.importers.builders import trained, write_training, write_transformers


def _ignored(folder: Any) -> set[str]:
    return {path.name for path, _ in folder.ignored}


def _shards(folder: Path, suffix: str = ".safetensors") -> dict[str, torch.Tensor]:
    """The weights of a model in two files, with the index that names them."""
    folder.mkdir(parents=True)
    model, optimizer = trained()
    weights = dict(model.state_dict())
    names = list(weights)
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    places = {}
    for i, part in enumerate((names[:3], names[3:]), 1):
        shard = f"{stem}-{i:05}-of-00002{suffix}"
        tensors = {name: weights[name] for name in part}
        if suffix == ".bin":
            torch.save(tensors, folder / shard)
        else:
            standfast.save(folder / shard, tensors)
        places |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / f"{stem}{suffix}.index.json").write_text(json.dumps(index))
    write_training(folder, 500, optimizer)
    return weights


def test_every_part_of_a_checkpoint_comes_back_bit_for_bit(tmp_path):
    model = write_transformers(tmp_path / "checkpoint-500", 500)
    write_transformers(tmp_path / "checkpoint-1000", 1000)
    folder = read_folder(tmp_path)
    assert folder.kind == "transformers"
    assert [(found.step, found.epoch) for found in folder.found] == [(500, 2), (1000, 5)]
    state = folder.found[0].state()
    parts = ["model", "optimizer", "scheduler", "scaler", "random", "trainer_state", "config"]
    assert list(state) == parts
    assert same(state["model"], dict(model.state_dict()))
    here = tmp_path / "checkpoint-500"
    files = ("optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state.pth")
    for part, file in zip(parts[1:5], files, strict=True):
        assert same(state[part], torch.load(here / file, weights_only=False)), part
    assert state["trainer_state"] == json.loads((here / "trainer_state.json").read_text())
    assert state["config"] == {"model_type": "bert", "hidden_size": 4}
    read = {path.name for path in folder.found[0].paths}
    assert read == {"model.safetensors", *files, "trainer_state.json", "config.json"}
    assert _ignored(folder) == {"training_args.bin", "tokenizer.json"}


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_shards_become_one_model(tmp_path, suffix):
    weights = _shards(tmp_path / "checkpoint-500", suffix)
    found = read_folder(tmp_path).found[0]
    assert same(found.state()["model"], weights)
    assert sum("-of-00002" in path.name for path in found.paths) == 2
    assert any(path.name.endswith(".index.json") for path in found.paths)


def test_weights_in_a_file_of_torch_are_read_as_data(tmp_path):
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    model, optimizer = trained()
    torch.save(model.state_dict(), folder / "pytorch_model.bin")
    write_training(folder, 7, optimizer)
    read = read_folder(tmp_path).found[0].state()["model"]
    assert same(read, model.state_dict())
    assert read._metadata == model.state_dict()._metadata


def test_a_folder_or_a_model_alone(tmp_path):
    given, alone, adapter = (tmp_path / name for name in ("run/checkpoint-500", "alone", "adapter"))
    write_transformers(given, 500)
    (given / "trainer_state.json").unlink()
    for folder in (alone, adapter):
        folder.mkdir()
    standfast.save(alone / "model.safetensors", trained()[0].state_dict())
    (alone / "config.json").write_text("{}")
    standfast.save(adapter / "adapter_model.safetensors", {"lora_A": np.ones((2, 3), np.float32)})
    (adapter / "adapter_config.json").write_text("{}")
    for folder, step in ((given, 500), (alone, 0), (adapter, 0)):
        read = read_folder(folder)
        assert (read.kind, [found.step for found in read.found]) == ("transformers", [step])
    assert read_folder(given).found[0].epoch is None
    assert list(read_folder(alone).found[0].state()) == ["model", "config"]
    model = read_folder(adapter).found[0].state()["model"]
    assert same(model, {"lora_A": torch.ones(2, 3)})


def test_the_final_model_is_ignored_beside_checkpoints(tmp_path):
    write_transformers(tmp_path / "checkpoint-500", 500)
    standfast.save(tmp_path / "model.safetensors", trained()[0].state_dict())
    state = tmp_path / "trainer_state.json"
    for text in ("", '{"global_step": 500}'):
        if text:
            state.write_text(text)
        folder = read_folder(tmp_path)
        assert [found.step for found in folder.found] == [500]
        assert "model.safetensors" in _ignored(folder)
    state.write_text('{"global_step": 600}')
    assert [found.step for found in read_folder(tmp_path).found] == [500, 600]


def test_the_random_states_of_ranks_are_kept_apart(tmp_path):
    folder = tmp_path / "checkpoint-5"
    write_transformers(folder, 5)
    (folder / "rng_state.pth").unlink()
    for rank in (0, 2, 10):
        torch.save({"cpu": torch.full((3,), rank)}, folder / f"rng_state_{rank}.pth")
    read = read_folder(tmp_path).found[0].state()["random"]
    expected = {rank: {"cpu": torch.full((3,), rank)} for rank in (0, 2, 10)}
    assert same(read, expected)


def test_metrics_are_those_that_were_logged_at_the_step(tmp_path):
    history = [
        {"step": 300, "loss": 9.0, "eval_loss": 8.0},
        {"step": 480, "loss": 2.5, "learning_rate": 0.1},
        {"step": 500, "eval_loss": 3.0, "eval_accuracy": 1, "epoch": 2.5, "grad_norm": math.nan},
        {"step": 600, "loss": 0.0},
        "no entry",
    ]
    write_transformers(tmp_path / "checkpoint-500", 500, log_history=history)
    found = read_folder(tmp_path).found[0]
    assert found.metrics == {"loss": 2.5, "eval_loss": 3.0, "eval_accuracy": 1.0}
    assert math.isnan(found.state()["trainer_state"]["log_history"][2]["grad_norm"])


def test_the_best_is_the_one_that_the_newest_names(tmp_path):
    for step, best in ((1, "out/checkpoint-1"), (2, r"C:\out\checkpoint-2"), (3, None)):
        folder = tmp_path / f"checkpoint-{step}"
        write_transformers(folder, step, best_model_checkpoint=best)
    assert [found.best for found in read_folder(tmp_path).found] == [False, True, False]


def test_folders_of_one_step_are_refused(tmp_path):
    write_transformers(tmp_path / "checkpoint-500", 500)
    write_transformers(tmp_path / "checkpoint-501", 500)
    with pytest.raises(errors.UnsupportedFile):
        read_folder(tmp_path)


def test_a_checkpoint_folder_without_a_checkpoint_is_ignored(tmp_path):
    write_transformers(tmp_path / "checkpoint-500", 500)
    (tmp_path / "checkpoint-600" / "pytorch_model_fsdp_0").mkdir(parents=True)
    (tmp_path / "checkpoint-500" / "global_step500").mkdir()
    (tmp_path / "checkpoint-500" / "gone.pt").symlink_to("nowhere")
    ignored = _ignored(read_folder(tmp_path))
    assert {"checkpoint-600", "global_step500", "gone.pt"} <= ignored


@pytest.mark.parametrize(
    ("shard", "error"),
    [
        ("../model-00001-of-00002.safetensors", errors.BadField),
        ("/etc/passwd", errors.BadField),
        ("training_args.bin", errors.BadField),
        (5, errors.BadField),
        ("model-00009-of-00002.safetensors", errors.MissingData),
    ],
)
def test_an_index_cannot_name_what_is_no_shard_of_the_folder(tmp_path, shard, error):
    folder = tmp_path / "checkpoint-500"
    _shards(folder)
    standfast.save(tmp_path / "model-00001-of-00002.safetensors", {"x": np.ones(1)})
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"x": shard}}))
    with pytest.raises(error, match=r"index\.json.*\['x'\]"):
        read_folder(tmp_path)


def test_shards_that_do_not_add_up_are_refused(tmp_path):
    folder = tmp_path / "checkpoint-500"
    weights = _shards(folder)
    index = folder / "model.safetensors.index.json"
    places = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": places | {"more": places["0.weight"]}}))
    with pytest.raises(errors.MissingData, match="'more'"):
        read_folder(tmp_path).found[0].state()
    standfast.save(folder / "model-00002-of-00002.safetensors", weights)
    with pytest.raises(errors.DuplicateKey):
        read_folder(tmp_path).found[0].state()
    index.write_text('{"weight_map": []}')
    with pytest.raises(errors.BadField):
        read_folder(tmp_path)


HOSTILE = [b'{"a": ' + b"[" * 100_000 + b"}", b'{"a": ' + b"9" * 5000 + b"}", b'{"a": "\\ud800"}']
HOSTILE += [b'{"a": "\xff"}', b"[1]", b"", b'{"global_step": -1}', b'{"global_step": "many"}']


def test_hostile_json_is_refused_with_its_path(tmp_path):
    folder = tmp_path / "checkpoint-500"
    write_transformers(folder, 500)
    twice = (b'{"global_step": 1, "global_step": 2}', errors.DuplicateKey)
    for text, error in [twice, *((text, errors.BadField) for text in HOSTILE)]:
        (folder / "trainer_state.json").write_bytes(text)
        with pytest.raises(error, match=r"checkpoint-500/trainer_state\.json:"):
            read_folder(tmp_path)


def test_endless_json_is_refused_before_it_is_read(tmp_path):
    write_transformers(tmp_path / "checkpoint-500", 500)
    with (tmp_path / "checkpoint-500" / "config.json").open("wb") as file:
        file.truncate((64 << 20) + 1)
    with pytest.raises(errors.LimitExceeded, match=r"config\.json.*67,108,865"):
        read_folder(tmp_path).found[0].state()


def test_damage_in_any_part_is_found_with_its_path(tmp_path):
    folder = tmp_path / "checkpoint-500"
    write_transformers(folder, 500)
    weights = folder / "model.safetensors"
    weights.write_bytes(flipped(weights.read_bytes(), weights.stat().st_size - 1))
    with pytest.raises(errors.DigestMismatch, match=r"model\.safetensors"):
        read_folder(tmp_path).found[0].state()
    weights.unlink()
    (folder / "optimizer.pt").write_bytes((folder / "optimizer.pt").read_bytes()[:-100])
    with pytest.raises(errors.DamagedFile, match=r"optimizer\.pt:"):
        read_folder(tmp_path).found[0].state()
    (folder / "optimizer.pt").unlink()
    (folder / "pytorch_model.bin").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(errors.DamagedFile, match=r"pytorch_model\.bin:"):
        read_folder(tmp_path).found[0].state()
