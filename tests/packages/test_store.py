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
    checkpoint = save_to_store(run, 3, made, TOKENIZER, TINY, metrics={"loss": 2.5}, epoch=1)
    state = run.load(3)
    assert list(state) == ["model", "package"]
    assert bits(state["model"]) == bits(made)
    package = state["package"]
    assert package["format"] == "standfast package 1"
    assert package["config"] == TINY.as_dict()
    assert package["files"]["tokenizer.json"].tobytes() == tokenizer_text(TOKENIZER)
    assert sorted(package["files"]) == ["tokenizer.json", "tokenizer_config.json"]
    assert (checkpoint.step, checkpoint.metrics, checkpoint.epoch) == (3, {"loss": 2.5}, 1)


def test_data_set_and_generation_info_are_kept_with_it(run: Run) -> None:
    dataset = DatasetInfo.of_texts(["one", "two"])
    info = GenerationInfo("recipes", "small")
    checkpoint = save_to_store(
        run, 1, model(), TOKENIZER, TINY, dataset=dataset, generation_info=info
    )
    package = stored_package(checkpoint)
    assert package is not None
    assert package.files["dataset.txt"] == b"one\n\ntwo\n"
    assert b'"recipes"' in package.files["generation_info.json"]
    assert b'"two"' in package.files["dataset.json"]


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


# What is written


def _sizes(tensors: dict[str, Any]) -> dict[str, int]:
    return {name: tensor.nbytes for name, tensor in tensors.items()}


def test_a_fine_tune_of_the_last_layer_writes_the_last_layer(run: Run) -> None:
    config = Config.small(vocab_size=1000, n_positions=256)
    made = model(config=config)
    whole = bytes_written(run, lambda: save_to_store(run, 1, made, TOKENIZER, config))
    sizes = _sizes(made.state_dict())
    assert sum(sizes.values()) <= whole <= sum(sizes.values()) + HEADERS + (64 << 10)
    with torch.no_grad():
        for parameter in made.h[-1].parameters():
            parameter.add_(1)
    tuned = bytes_written(run, lambda: save_to_store(run, 2, made, TOKENIZER, config))
    changed = {name: size for name, size in sizes.items() if name.startswith("h.5.")}
    # Small tensors, and the small files beside them, are always written.
    small = {name: size for name, size in sizes.items() if size < SMALL}
    files = sum(array.nbytes for array in run.load(2)["package"]["files"].values())
    least = sum({**changed, **small}.values())
    assert least <= tuned <= least + files + HEADERS
    assert tuned < whole / 5
    assert bits(run.load(2)["model"]) == bits(made)


# Other models


def test_the_configuration_may_be_the_one_of_the_model(run: Run) -> None:
    checkpoint = save_to_store(run, 1, model(), TOKENIZER)
    package = stored_package(checkpoint)
    assert package is not None
    assert package.config == TINY.as_dict()


def test_a_wrapped_model_is_saved_under_its_own_names(run: Run) -> None:
    made = model()
    save_to_store(run, 1, torch.nn.DataParallel(made), TOKENIZER, TINY)
    assert bits(run.load(1)["model"]) == bits(made)


# Refused


def test_weights_of_another_configuration_are_refused_before_anything_is_saved(run: Run) -> None:
    with pytest.raises(errors.StateMismatch, match=r"'h\.2\.ln_1\.weight' is missing"):
        save_to_store(run, 1, model(), TOKENIZER, TINY.changed(n_layer=3))
    assert run.checkpoints() == []


def test_weights_without_a_configuration_are_refused(run: Run) -> None:
    with pytest.raises(errors.BadOption, match="give a Config"):
        save_to_store(run, 1, model().state_dict(), TOKENIZER)


# Checkpoints of other programs, and hostile ones


def test_another_checkpoint_is_no_package(run: Run) -> None:
    for step, state in enumerate(
        [{"model": {}}, {"package": "box"}, {"package": {"format": "mine"}}, [1, 2]]
    ):
        assert stored_package(run.save(step, state)) is None


def test_a_package_of_a_later_release_is_not_read(run: Run) -> None:
    checkpoint = run.save(1, {"package": {"format": "standfast package 2"}})
    with pytest.raises(errors.UnsupportedFile, match="install a newer Standfast"):
        stored_package(checkpoint)


@pytest.mark.parametrize(
    "package",
    [
        {"config": {}},
        {"files": {}},
        {"config": [], "files": {}},
        {"config": {}, "files": {"../outside": np.zeros(1, np.uint8)}},
        {"config": {}, "files": {"model.safetensors": np.zeros(1, np.uint8)}},
        {"config": {}, "files": {"manifest.json": np.zeros(1, np.uint8)}},
        {"config": {}, "files": {"training_args.bin": np.zeros(1, np.uint8)}},
        {"config": {}, "files": {7: np.zeros(1, np.uint8)}},
        {"config": {}, "files": {"tokenizer.json": "text"}},
        {"config": {}, "files": {"tokenizer.json": np.zeros(1, np.float32)}},
    ],
    ids=str,
)
def test_what_no_package_has_is_refused(run: Run, package: dict[str, Any]) -> None:
    checkpoint = run.save(1, {"package": {"format": "standfast package 1", **package}})
    with pytest.raises(errors.BadField, match="package"):
        stored_package(checkpoint)


def test_a_damaged_file_is_named(run: Run) -> None:
    checkpoint = save_to_store(run, 1, model(), TOKENIZER, TINY)
    flip_in(run.store, "gpt@1", "package.files.tokenizer.json")
    with pytest.raises(errors.DigestMismatch, match=r"package\.files\.tokenizer\.json"):
        stored_package(checkpoint)
