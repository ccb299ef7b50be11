"""The snippets of layout V3's users run as they stand, with only the import changed."""

from __future__ import annotations

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from standfast.experiments import CheckpointManagerV2, watch
from standfast.experiments import system as systems
from tests.experiments.models import DATA, HP, bits, fill, new_model, new_optimizer, train_step

SNIPPETS = Path(__file__).parent / "data" / "seed_snippets.md"
COMPLETE = "Complete Example: Loading and Resuming"
SYSTEM = "# Resume training with checkpoint system\n"
WATCH = "watch(model=model, hyperparameters=config, data_state=data_state)\n"


class Stopped(Exception):
    """Ends the loop of the complete example, which the snippet itself does not."""


def snippets() -> dict[str, str]:
    """The code under each heading."""
    found = re.findall(r"^## (.+?)\n\n```python\n(.+?)^```$", SNIPPETS.read_text(), re.M | re.S)
    return {
        title: code.replace(
            "from weightslab.components import", "from standfast.experiments import"
        )
        for title, code in found
    }


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "experiments"
    if systems._the_system._system is not None:
        systems._the_system._system.close()


def run(title: str, namespace: dict[str, Any]) -> dict[str, Any]:
    exec(compile(snippets()[title], title, "exec"), namespace)
    return namespace


def names(root: Path) -> dict[str, Any]:
    """What a program has where such a snippet stands."""
    model = new_model(seed=9)
    return {
        "manager": CheckpointManagerV2(root),
        "CheckpointManagerV2": CheckpointManagerV2,
        "model": model,
        "optimizer": new_optimizer(model),
        **{name: getattr(typing, name) for name in ("Dict", "List", "Optional", "Set")},
    }


def test_every_snippet_is_here() -> None:
    assert len(snippets()) == 10
    assert "weightslab" not in "".join(snippets().values())


def test_the_latest_hash_is_found(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(root, 100)
    made = fill(root, 50, hp={"lr": 2})
    assert run("Get Latest Hash", {})["latest_hash"] == made
    assert f"Latest hash: {made}" in capsys.readouterr().out


def test_hashes_are_listed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = fill(root, 100)
    second = fill(root, 100, hp={"lr": 2})
    fill(root, 200)
    namespace = run("Get All Hashes Sorted", names(root))
    assert [entry["hash"] for entry in namespace["hashes"]] == [first, second]
    printed = capsys.readouterr().out
    assert printed.index(f"Hash: {second}") < printed.index(f"Hash: {first}")
    assert f"HP: {first[:8]}, Model: {first[8:16]}, Data: {first[16:]}" in printed


def test_hashes_are_found_by_components(root: Path) -> None:
    fill(root, 100)
    namespace = run("Find Hashes by Component", names(root))
    assert namespace["matching_hashes"] == namespace["matching"] == []


@pytest.mark.parametrize("steps", [(100, 200), (999_900, 999_999)])
def test_the_latest_checkpoint_is_loaded(
    root: Path, steps: tuple[int, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    fill(root, *steps)
    trained = new_model()
    optimizer = new_optimizer(trained)
    for step in (*steps, 1):
        train_step(trained, optimizer, step)
    namespace = run("Load Latest Checkpoint", names(root))
    assert f"Loaded checkpoint from step {steps[-1]}" in capsys.readouterr().out
    train_step(namespace["model"], namespace["optimizer"], 1)
    assert bits(namespace["model"].state_dict()) == bits(trained.state_dict())
    assert namespace["config"] == HP
    assert namespace["data_state"] == DATA


def test_hashes_are_compared() -> None:
    assert run("What Changed Between Two Experiments?", {})["changed"] == {"hp"}


def test_related_experiments_are_found(root: Path) -> None:
    made = fill(root, 100)
    other = fill(root, 100, hp={"lr": 2})
    namespace = names(root)
    code = snippets()["Find Related Experiments"]
    assert "a1b2c3d4e5f6g7h8i9j0k1l2" in code
    exec(code.replace("a1b2c3d4e5f6g7h8i9j0k1l2", made), namespace)
    assert namespace["same_hp_exps"] == [made]
    assert namespace["same_model_exps"] == namespace["same_data_exps"] == [other, made]
    run("Find Related Experiments", namespace)
    assert namespace["same_model_exps"] == []


def test_experiments_are_filtered(root: Path) -> None:
    fill(root, 100)
    assert run("2. **Easy Filtering**", names(root))["experiments"] == []


def test_the_reference_runs(root: Path) -> None:
    made = fill(root, 100)
    namespace = names(root)
    run("CheckpointManagerV2 Manifest Methods", namespace)
    assert namespace["latest"] == made
    assert set(namespace["hashes"][0]) == {
        *("hash", "hp_hash", "model_hash", "data_hash", "created", "last_used")
    }
    run("What Changed Between Two Experiments?", namespace)
    run("ExperimentHashGenerator", namespace)
    assert namespace["changed"] == {"hp"}
    assert set(namespace["hashes"]) == {"hp", "model", "data", "combined"}


@pytest.mark.parametrize("pickled", [False, True], ids=["created", "pickled"])
def test_the_complete_example_resumes_and_saves_on(
    root: Path, pickled: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    made = fill(root, 100, 150)
    if pickled:
        with CheckpointManagerV2(root) as manager:
            manager.update_experiment_hash(new_model(), HP, DATA)
            manager.save_model_architecture()
    calls: list[nn.Module] = []

    def create_model(config: dict[str, Any]) -> nn.Module:
        assert not pickled
        assert config == HP
        return new_model(seed=9)

    def step_of_training(model: nn.Module, data_loader: list[int]) -> float:
        if len(calls) == 170:
            raise Stopped
        calls.append(model)
        with torch.no_grad():
            model[2].bias.fill_(len(calls))  # type: ignore[index, operator]
        return 0.0

    namespace: dict[str, Any] = {"watch": watch, "create_model": create_model}
    namespace |= {"train_step": step_of_training, "data_loader": []}
    code = snippets()[COMPLETE]
    assert code.count(SYSTEM) == 1
    code = code.replace(SYSTEM, WATCH + SYSTEM)
    with pytest.raises(Stopped):
        exec(compile(code, COMPLETE, "exec"), namespace)

    assert "Resuming from step 150" in capsys.readouterr().out
    assert namespace["discarded_uids"] == {"b"}
    assert namespace["tags"] == DATA["tags"]
    manager = CheckpointManagerV2(root)
    assert manager.list_experiment_hashes() == [made]
    assert manager.get_checkpoint_info(made)["steps"] == [100, 150, 200, 300]
    saved = manager.load_checkpoint(made, target_step=300)["weights"]
    assert saved["model_state_dict"]["2.bias"].tolist() == [150.0] * 3  # of steps 151 … 300
