"""Packages in a store: what is saved, what is written of it, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from standfast import errors
from standfast.packages.documents.records import DatasetInfo, GenerationInfo
from standfast.packages.documents.tokenizer import tokenizer_text
from standfast.packages.model.config import Config
from standfast.packages.store import save_to_store, stored_package
from standfast.store import Run, Store
from standfast.store.save.known import SMALL
from tests.kit.cli import flip_in
from tests.kit.stores import bytes_written
from tests.packages import hugging
from tests.packages.stored_models import TINY, bits, model

TOKENIZER = hugging.byte_level_bpe()
HEADERS = 32 << 10
"""More than the headers of the data files here take."""


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Store(tmp_path / "store").run("gpt")


def test_the_state_is_the_weights_and_the_files(run: Run) -> None:
    made = model()
    dataset, info = DatasetInfo.of_texts(["one", "two"]), GenerationInfo("recipes", "small")
    more: Any = {"dataset": dataset, "generation_info": info, "metrics": {"loss": 2.5}, "epoch": 1}
    checkpoint = save_to_store(run, 3, made, TOKENIZER, TINY, **more)
    assert (checkpoint.step, checkpoint.metrics, checkpoint.epoch) == (3, {"loss": 2.5}, 1)
    state = run.load(3)
    assert list(state) == ["model", "package"]
    assert bits(state["model"]) == bits(made)
    package = state["package"]
    assert package["format"] == "standfast package 1"
    assert package["config"] == TINY.as_dict()
    found = stored_package(checkpoint)
    assert found is not None
    assert found.files == {name: file.tobytes() for name, file in package["files"].items()}
    assert found.files["tokenizer.json"] == tokenizer_text(TOKENIZER)
    assert found.files["dataset.txt"] == b"one\n\ntwo\n"
    assert b'"recipes"' in found.files["generation_info.json"]
    assert b'"two"' in found.files["dataset.json"]
    assert len(found.files) == 5


def test_the_state_fills_the_model_again(run: Run) -> None:
    save_to_store(run, 1, model(1), TOKENIZER, TINY)
    other = model(2)
    run.load(1, into={"model": other.state_dict()}, strict=False)
    assert bits(other) == bits(model(1))


def test_a_step_is_replaced_only_if_told(run: Run) -> None:
    save_to_store(run, 1, model(1), TOKENIZER, TINY, best=True)
    with pytest.raises(errors.StepExists):
        save_to_store(run, 1, model(2), TOKENIZER, TINY)
    save_to_store(run, 1, model(2), TOKENIZER, TINY, replace=True)
    assert bits(run.load(1)["model"]) == bits(model(2))


def test_a_fine_tune_of_the_last_layer_writes_the_last_layer(run: Run) -> None:
    config = Config.small(vocab_size=1000, n_positions=256)
    made = model(config=config)
    whole = bytes_written(run, lambda: save_to_store(run, 1, made, TOKENIZER, config))
    sizes = {name: tensor.nbytes for name, tensor in made.state_dict().items()}
    assert sum(sizes.values()) <= whole <= sum(sizes.values()) + HEADERS + (64 << 10)
    with torch.no_grad():
        for parameter in made.h[-1].parameters():
            parameter.add_(1)
    tuned = bytes_written(run, lambda: save_to_store(run, 2, made, TOKENIZER, config))
    # Small tensors, and the small files beside them, are always written.
    changed = {name for name in sizes if name.startswith("h.5.") or sizes[name] < SMALL}
    least = sum(sizes[name] for name in changed)
    files = sum(array.nbytes for array in run.load(2)["package"]["files"].values())
    assert least <= tuned <= least + files + HEADERS
    assert tuned < whole / 5
    assert bits(run.load(2)["model"]) == bits(made)


def test_a_wrapped_model_is_saved_under_its_own_names_and_with_its_configuration(run: Run) -> None:
    made = model()
    package = stored_package(save_to_store(run, 1, torch.nn.DataParallel(made), TOKENIZER))
    assert package is not None
    assert package.config == TINY.as_dict()
    assert bits(run.load(1)["model"]) == bits(made)


def test_weights_without_their_configuration_are_refused_before_anything_is_saved(run: Run) -> None:
    with pytest.raises(errors.StateMismatch, match=r"h\.2\.ln_1\.weight"):
        save_to_store(run, 1, model(), TOKENIZER, TINY.changed(n_layer=3))
    with pytest.raises(errors.BadOption, match="Config"):
        save_to_store(run, 1, model().state_dict(), TOKENIZER)
    assert run.checkpoints() == []


def test_another_checkpoint_is_no_package_and_a_later_one_is_refused(run: Run) -> None:
    others = [{"model": {}}, {"package": "box"}, {"package": {"format": "mine"}}, [1, 2]]
    for step, state in enumerate(others):
        assert stored_package(run.save(step, state)) is None
    checkpoint = run.save(9, {"package": {"format": "standfast package 2"}})
    with pytest.raises(errors.UnsupportedFile, match="2"):
        stored_package(checkpoint)


def test_what_no_package_has_is_refused(run: Run) -> None:
    byte = np.zeros(1, np.uint8)
    for step, package in enumerate(
        [
            {"config": {}},
            {"files": {}},
            {"config": [], "files": {}},
            *({"config": {}, "files": {name: byte}} for name in ("../outside", "manifest.json", 7)),
            {"config": {}, "files": {"model.safetensors": byte}},
            {"config": {}, "files": {"training_args.bin": byte}},
            {"config": {}, "files": {"tokenizer.json": "text"}},
            {"config": {}, "files": {"tokenizer.json": np.zeros(1, np.float32)}},
        ]
    ):
        checkpoint = run.save(step, {"package": {"format": "standfast package 1", **package}})
        with pytest.raises(errors.BadField, match="package"):
            stored_package(checkpoint)


def test_a_damaged_file_is_named(run: Run) -> None:
    checkpoint = save_to_store(run, 1, model(), TOKENIZER, TINY)
    flip_in(run.store, "gpt@1", "package.files.tokenizer.json")
    with pytest.raises(errors.DigestMismatch, match=r"package\.files\.tokenizer\.json"):
        stored_package(checkpoint)
