"""The snippets of the seed run as they are printed there, with only the import changed."""

import re
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from standfast.experiments import CheckpointManagerV2
from standfast.experiments import system as systems
from standfast.store.copies.imports import import_root
from tests import WEIGHTSLAB
from tests.experiments.models import DATA, HP, bits, fill, new_model, new_optimizer, train_step

SEED = Path(__file__).parent / "data" / "seed.txt"
"""The document, byte for byte; under this suffix no formatter changes the code in it."""
COMPLETE = "Complete Example: Loading and Resuming"
SYSTEM = "# Resume training with checkpoint system\n"
IMPORT = "from standfast.experiments import CheckpointManagerV2, get_checkpoint_system"
WATCH = "watch(model=model, hyperparameters=config, data_state=data_state)\n"
"""The line that is added: what the system saves."""


class Stopped(Exception):
    """Ends the loop of the complete example, which the snippet itself does not."""


def snippets() -> dict[str, str]:
    """The code under each heading."""
    pattern = r"^##+ ([^\n]+?)\n+(?:[^\n`#]+\n)*```python\n(.+?)^```$"
    text = SEED.read_text().replace("weightslab.components", "standfast.experiments")
    return dict(re.findall(pattern, text, re.M | re.S))


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


def test_every_snippet_is_here():
    assert len(snippets()) == 10
    assert "weightslab" not in "".join(snippets().values())


def test_the_latest_hash_is_found(root, capsys):
    fill(root, 100)
    made = fill(root, 50, hp={"lr": 2})
    assert run("Get Latest Hash", {})["latest_hash"] == made
    assert f"Latest hash: {made}" in capsys.readouterr().out


def test_hashes_are_listed(root, capsys):
    first = fill(root, 100)
    second = fill(root, 100, hp={"lr": 2})
    fill(root, 200)
    namespace = run("Get All Hashes Sorted", names(root))
    assert [entry["hash"] for entry in namespace["hashes"]] == [first, second]
    printed = capsys.readouterr().out
    assert printed.index(second) < printed.index(first)
    assert f"HP: {first[:8]}, Model: {first[8:16]}, Data: {first[16:]}" in printed


@pytest.mark.parametrize("steps", [(100, 200), (999_900, 999_999)])
def test_the_latest_checkpoint_is_loaded(root, steps, capsys):
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


def test_related_experiments_are_found(root):
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


def test_the_reference_runs(root):
    made = fill(root, 100)
    namespace = names(root)
    run("CheckpointManagerV2 Manifest Methods", namespace)
    assert namespace["latest"] == namespace["hashes"][0]["hash"] == made
    run("What Changed Between Two Experiments?", namespace)
    run("ExperimentHashGenerator", namespace)
    assert namespace["changed"] == {"hp"}
    assert set(namespace["hashes"]) == {"hp", "model", "data", "combined"}
    run("Find Hashes by Component", namespace)
    assert namespace["matching_hashes"] == namespace["matching"] == []
    run("2. **Easy Filtering**", namespace)
    assert namespace["experiments"] == []


class Training:
    """What a program has around the complete example: it trains 170 steps and is stopped."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.created = 0
        self.steps = 0

    def create_model(self, config: dict[str, Any]) -> nn.Module:
        assert config == self.config
        self.created += 1
        return new_model(seed=9)

    def train_step(self, model: nn.Module, data_loader: list[int]) -> float:
        if self.steps == 170:
            raise Stopped
        self.steps += 1
        with torch.no_grad():
            model[2].bias.fill_(self.steps)  # type: ignore[index, operator]
        return 0.0

    def run(self) -> dict[str, Any]:
        """The complete example as printed, with the line that says what to watch."""
        code = snippets()[COMPLETE]
        for line, instead in ((IMPORT, f"{IMPORT}, watch"), (SYSTEM, WATCH + SYSTEM)):
            assert code.count(line) == 1
            code = code.replace(line, instead)
        namespace: dict[str, Any] = {"create_model": self.create_model}
        namespace |= {"train_step": self.train_step, "data_loader": []}
        with pytest.raises(Stopped):
            exec(compile(code, COMPLETE, "exec"), namespace)
        return namespace


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(
    "hp",
    [HP, HP | {"class_weight": {0: 1.0, 1: 3.5}, "clip": float("inf"), "frozen": {"a", "b"}}],
    ids=["plain", "with keys and values that only YAML has"],
)
def test_the_complete_example_resumes_and_saves_on(root, pickled, hp, capsys):
    made = fill(root, 100, 150, hp=hp)
    if pickled:
        with CheckpointManagerV2(root) as manager:
            manager.update_experiment_hash(new_model(), hp, DATA)
            manager.save_model_architecture()
    training = Training(hp)
    namespace = training.run()
    assert training.created == (0 if pickled else 1)
    assert "Resuming from step 150" in capsys.readouterr().out
    assert namespace["discarded_uids"] == {"b"}
    assert namespace["tags"] == DATA["tags"]
    manager = CheckpointManagerV2(root)
    assert manager.list_experiment_hashes() == [made]
    assert manager.get_checkpoint_info(made)["steps"] == [100, 150, 200, 300]
    saved = manager.load_checkpoint(made, target_step=300)["weights"]
    assert saved["model_state_dict"]["2.bias"].tolist() == [150.0] * 3  # of steps 151 … 300


def test_the_example_continues_an_imported_run(root, capsys):
    import_root(CheckpointManagerV2(root).store, WEIGHTSLAB)
    Training({"batch": 8, "lr": 0.001}).run()
    assert "Resuming from step 200" in capsys.readouterr().out
    manager = CheckpointManagerV2(root)
    (made,) = manager.list_experiment_hashes()
    assert manager.get_checkpoint_info(made)["steps"] == [100, 200, 300]
