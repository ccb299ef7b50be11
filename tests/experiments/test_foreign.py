"""A root that weightslab wrote: it is listed and loaded from, and never written to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from standfast import errors
from standfast.experiments import CheckpointManagerV2 as Manager
from standfast.experiments import get_checkpoint_system
from tests import WEIGHTSLAB
from tests.experiments.models import DATA, HP, bits, new_model, new_optimizer
from tests.tensorfile.importers.weightslab_roots import FIRST, Writer

ROOT = WEIGHTSLAB
MADE = "c2546cf6b5a79a7800000000"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "root"))


def content(root: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


def v3_root(root: Path) -> str:
    """A root in the layout of 24-character folders, as its first implementation writes it."""
    made = "a1b2c3d4e5f6g7h8i9j0k1l2"
    checkpoints = root / "checkpoints"
    for kind in ("models", "HP", "data"):
        (checkpoints / kind / made).mkdir(parents=True)
    model = new_model()
    for step in (100, 200):
        state = {"step": step, "model_state_dict": model.state_dict(), "exp_hash": made}
        torch.save(state, checkpoints / "models" / made / f"{made}_step_{step:06d}.pt")
    config = {"hyperparameters": HP, "exp_hash": made}
    (checkpoints / "HP" / made / f"{made}_config.yaml").write_text(yaml.safe_dump(config))
    data = yaml.safe_dump(DATA)
    (checkpoints / "data" / made / f"{made}_data_state.yaml").write_text(data)
    times = {"created": "2026-01-21T09:00:00", "last_used": "2026-01-21T10:30:00"}
    manifest = {"latest_hash": made, "experiments": {made: times}}
    (checkpoints / "manifest.yaml").write_text(yaml.safe_dump(manifest))
    return made


def test_its_experiments_are_listed(root: Path) -> None:
    before = content(root)
    manager = Manager(root)
    assert manager.get_latest_hash() == MADE
    assert manager.list_experiment_hashes() == [MADE]
    assert manager.get_all_hashes(sort_by="last_used") == [
        {
            "hash": MADE,
            "hp_hash": "c2546cf6",
            "model_hash": "b5a79a78",
            "data_hash": "00000000",
            "created": "2026-11-15T06:46:51.897549Z",
            "last_used": "2026-11-15T06:46:51.921824Z",
        }
    ]
    assert manager.get_hashes_by_component(model_hash="b5a79a78") == [MADE]
    assert manager.get_hashes_by_component(model_hash="00000000") == []
    info = manager.get_checkpoint_info()
    assert (info["steps"], info["latest_step"]) == ([100, 200], 200)
    assert info["config"]["lr"] == 0.001
    assert info["nbytes"] == 2 * 1396
    assert [each["path"] for each in info["checkpoints"]] == sorted(root.rglob("*.pt"))
    assert content(root) == before


def test_its_weights_are_loaded(root: Path) -> None:
    before = content(root)
    manager = Manager(root)
    found = manager.load_checkpoint("c2546cf6_b5a79a78", target_step=130)
    assert (found["exp_hash"], found["weights"]["step"]) == (MADE, 100)
    assert found["loaded_components"] == {"weights", "config"}
    assert found["config"]["batch"] == 8
    (path,) = root.rglob("*_step_000200.pt")
    model = new_model()
    optimizer = new_optimizer(model)
    assert manager.load_latest_checkpoint(model, optimizer=optimizer)["step"] == 200
    expected = torch.load(path, weights_only=False)
    assert bits(model.state_dict()) == bits(expected["model_state_dict"])
    assert list(optimizer.state_dict()["state"]) == list(expected["optimizer_state_dict"]["state"])
    assert content(root) == before


def test_the_layout_of_long_folders_is_read_too(tmp_path: Path) -> None:
    made = v3_root(tmp_path)
    before = content(tmp_path)
    manager = Manager(tmp_path)
    found = manager.load_checkpoint(made)
    assert found["loaded_components"] == {"weights", "config", "data"}
    assert (found["config"], found["data_state"]) == (HP, DATA)
    assert found["weights"]["step"] == 200
    assert manager.load_config(made[:6]) == HP
    assert content(tmp_path) == before


def test_nothing_is_written_to_it(root: Path, tmp_path: Path) -> None:
    before = content(root)
    manager = Manager(root)
    for write in (
        lambda: manager.update_experiment_hash(hp_snapshot=HP),
        manager.dump_pending_changes,
        lambda: manager.save_model_checkpoint(new_model(), 300),
        lambda: manager.save_model_architecture(new_model()),
        lambda: manager.save_config(HP),
        lambda: manager.save_data_snapshot(DATA),
        lambda: get_checkpoint_system(root),
    ):
        with pytest.raises(errors.NotAStore, match="import"):
            write()
    manager.close()
    assert content(root) == before
    get_checkpoint_system(tmp_path / "other").close()  # the refused one is not the process's


def test_missing_and_ambiguous_experiments_are_errors(root: Path) -> None:
    manager = Manager(root)
    with pytest.raises(errors.RefNotFound, match="ffff"):
        manager.load_checkpoint("ffff")
    (path,) = root.rglob("*_step_000200.pt")
    path.rename(path.with_name("c2546cf6b5a79a7811111111_step_000200.pt"))
    manager = Manager(root)
    with pytest.raises(errors.AmbiguousRef, match="c2546cf6b5a79a7811111111"):
        manager.load_checkpoint("c2546cf6")
    assert manager.load_checkpoint("c2546cf6b5a79a781")["weights"]["step"] == 200
    for path in root.rglob("*.pt"):
        path.unlink()
    assert Manager(root).load_checkpoint(MADE)["loaded_components"] == {"config"}
    with pytest.raises(errors.RefNotFound):
        Manager(root).load_latest_checkpoint(exp_hash=MADE)


def test_its_architecture_takes_trust(root: Path) -> None:
    (weights,) = root.rglob("*_step_000200.pt")
    weights.with_name("b5a79a78_architecture.pkl").write_bytes(b"no pickle")
    manager = Manager(root)
    with pytest.raises(errors.RefusedPickle):
        manager.load_checkpoint(MADE, load_model=True)
    with pytest.raises(errors.BadPickle):
        manager.load_checkpoint(MADE, load_model=True, trust_architecture=True)


def test_without_pyarrow_the_rest_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path, short=True)
    writer.experiment(FIRST, 100)
    writer.config(FIRST, HP)
    name = f"{FIRST[16:]}_data_snapshot.parquet"
    writer.snapshot(FIRST, {"data_format": "parquet", "data_file": name})
    (writer.checkpoints / "data" / FIRST[16:] / name).write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    manager = Manager(tmp_path)
    with pytest.raises(errors.UnsupportedFile, match=r"pyarrow.*load_data=False"):
        manager.load_checkpoint()
    found = manager.load_checkpoint(load_data=False)
    assert found["config"] == HP
    assert found["loaded_components"] == {"config", "weights"}
