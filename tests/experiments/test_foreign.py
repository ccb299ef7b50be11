"""A root that weightslab wrote: it is listed and loaded from, and never written to."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import nn

import standfast
from standfast import errors
from standfast.experiments import CheckpointManagerV2 as Manager
from standfast.experiments import get_checkpoint_system
from standfast.identity import identify
from standfast.store.copies.imports import import_root
from tests import WEIGHTSLAB
from tests.experiments.models import DATA, HP, bits, new_model, new_optimizer, train_step
from tests.kit.stores import same
from tests.tensorfile.importers.weightslab_roots import FIRST, LAYOUTS, SECOND, Writer

MADE = "c2546cf6b5a79a7800000000"


def content(root: Path) -> dict[str, Any]:
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in root.rglob("*")
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the root, which a test may change."""
    return Path(shutil.copytree(WEIGHTSLAB, tmp_path / "root"))


@pytest.fixture
def root(copy: Path) -> Iterator[Path]:
    """A copy that no test changes."""
    before = content(copy)
    yield copy
    assert content(copy) == before


def v3_root(root: Path) -> str:
    """A root in the layout of 24-character folders, as its first implementation writes it."""
    made = "a1b2c3d4e5f6g7h8i9j0k1l2"
    checkpoints = root / "checkpoints"

    def document(path: str, content: Any) -> None:
        (checkpoints / path).parent.mkdir(parents=True, exist_ok=True)
        (checkpoints / path).write_text(yaml.safe_dump(content))

    document(f"HP/{made}/{made}_config.yaml", {"hyperparameters": HP, "exp_hash": made})
    document(f"data/{made}/{made}_data_state.yaml", DATA)
    times = {"created": "2026-01-21T09:00:00", "last_used": "2026-01-21T10:30:00"}
    document("manifest.yaml", {"latest_hash": made, "experiments": {made: times}})
    (checkpoints / "models" / made).mkdir(parents=True)
    for step in (100, 200):
        state = {"step": step, "model_state_dict": new_model().state_dict(), "exp_hash": made}
        torch.save(state, checkpoints / "models" / made / f"{made}_step_{step:06d}.pt")
    return made


def test_its_experiments_are_listed(root):
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


def test_its_weights_are_loaded(root):
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


def test_the_layout_of_long_folders_is_read_too(tmp_path):
    made = v3_root(tmp_path)
    before = content(tmp_path)
    manager = Manager(tmp_path)
    found = manager.load_checkpoint(made)
    assert found["loaded_components"] == {"weights", "config", "data"}
    assert (found["config"], found["data_state"]) == (HP, DATA)
    assert found["weights"]["step"] == 200
    assert manager.load_config(made[:6]) == HP
    assert content(tmp_path) == before


def test_nothing_is_written_to_it(root, tmp_path):
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
    get_checkpoint_system(tmp_path / "other").close()  # the refused one is not the process's


def test_missing_and_ambiguous_experiments_are_errors(copy):
    manager = Manager(copy)
    with pytest.raises(errors.RefNotFound, match="ffff"):
        manager.load_checkpoint("ffff")
    (path,) = copy.rglob("*_step_000200.pt")
    path.rename(path.with_name("c2546cf6b5a79a7811111111_step_000200.pt"))
    manager = Manager(copy)
    with pytest.raises(errors.AmbiguousRef, match="c2546cf6b5a79a7811111111"):
        manager.load_checkpoint("c2546cf6")
    assert manager.load_checkpoint("c2546cf6b5a79a781")["weights"]["step"] == 200
    for path in copy.rglob("*.pt"):
        path.unlink()
    assert Manager(copy).load_checkpoint(MADE)["loaded_components"] == {"config"}
    with pytest.raises(errors.RefNotFound):
        Manager(copy).load_latest_checkpoint(exp_hash=MADE)


def test_its_architecture_takes_trust(copy):
    (weights,) = copy.rglob("*_step_000200.pt")
    weights.with_name("b5a79a78_architecture.pkl").write_bytes(b"no pickle")
    manager = Manager(copy)
    with pytest.raises(errors.RefusedPickle):
        manager.load_checkpoint(MADE, load_model=True)
    with pytest.raises(errors.BadPickle):
        manager.load_checkpoint(MADE, load_model=True, trust_architecture=True)


def test_without_pyarrow_the_rest_loads(tmp_path, monkeypatch):
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


WEIGHTS = WEIGHTSLAB / "checkpoints" / "models" / "b5a79a78"


@pytest.fixture
def imported(tmp_path: Path) -> Manager:
    manager = Manager(tmp_path / "store")
    import_root(manager.store, WEIGHTSLAB)
    return manager


# Read where it is


@pytest.mark.parametrize("step", [100, 200])
def test_a_root_is_resolved_as_a_store_is(root, step):
    checkpoint = standfast.Store(root).resolve(f"{MADE}@{step}")
    state = checkpoint.state()
    expected = torch.load(WEIGHTS / f"{MADE}_step_{step:06d}.pt", weights_only=False)
    assert state.keys() == expected.keys()
    assert bits(state["model_state_dict"]) == bits(expected["model_state_dict"])
    for index, slots in expected["optimizer_state_dict"]["state"].items():
        assert bits(state["optimizer_state_dict"]["state"][index]) == bits(slots)
    assert checkpoint.head.time == expected["timestamp"] + "Z"
    assert checkpoint["model_state_dict.0.weight"].shape == (8, 10)
    with pytest.raises(errors.UnsupportedFile, match="digest"):
        checkpoint.verify()


def test_a_store_over_a_root_has_its_experiments(tmp_path):
    v3_root(tmp_path)
    store = standfast.Store(tmp_path)
    (run,) = store.runs()
    assert run.hyperparameters["layers"] == [8, 3]
    assert run.load(100)["step"] == 100
    assert store.resolve("latest").step == 200
    model = new_model(seed=9)
    run.load("latest", part="model_state_dict", into=model.state_dict())
    assert bits(model.state_dict()) == bits(new_model().state_dict())


@LAYOUTS
def test_a_root_that_grows_is_seen(tmp_path, short):
    writer = Writer(tmp_path, short)
    writer.experiment(FIRST, 100)
    store = standfast.Store(tmp_path)
    assert store.resolve("latest").ref == f"{FIRST}@100"
    writer.experiment(FIRST, 100, 300)
    writer.experiment(SECOND, 5)
    assert store.resolve(f"{FIRST}@300").state()["step"] == 300
    assert store.resolve("latest").ref == f"{SECOND}@5"
    torch.save({"step": 1, "model_state_dict": {"x": torch.ones(2)}}, writer.weights(FIRST, 100))
    assert store.resolve(f"{FIRST}@100").state()["model_state_dict"]["x"].tolist() == [1.0, 1.0]


def test_tensors_that_are_not_contiguous_are_read(tmp_path):
    writer = Writer(tmp_path, short=True)
    writer.experiment(FIRST, 100)
    whole = torch.arange(12.0).reshape(3, 4)
    given = {"turned": whole.T, "rows": whole[::2], "tied": whole, "number": torch.tensor(7)}
    given |= {"half": torch.arange(4, dtype=torch.bfloat16), "empty": torch.empty(0, 3)}
    torch.save({"step": 100, "model_state_dict": given}, writer.weights(FIRST, 100))
    found = standfast.Store(tmp_path).resolve(f"{FIRST}@100").state()["model_state_dict"]
    assert list(found) == list(given)
    assert all(same(found[name].contiguous(), given[name].contiguous()) for name in given)


def test_a_damaged_file_is_refused_and_the_others_are_read(tmp_path):
    writer = Writer(tmp_path, short=True)
    writer.experiment(FIRST, 100, 200)
    path = writer.weights(FIRST, 200)
    path.write_bytes(path.read_bytes()[:500])
    store = standfast.Store(tmp_path)
    with pytest.raises(errors.StandfastError, match="step_000200"):
        store.resolve(f"{FIRST}@200")
    assert store.resolve(f"{FIRST}@100").state()["step"] == 100


def test_nothing_is_written_through_a_store(root):
    store = standfast.Store(root)
    checkpoint, run = store.resolve("latest"), store.find_run(MADE)
    for write in (
        lambda: checkpoint.tag("paper"),
        lambda: checkpoint.note("text"),
        lambda: run.rename("other"),
        lambda: run.save(300, {}),
        lambda: run.delete(100),
        run.delete_all,
        lambda: run.retain(standfast.KeepLast(1)),
        lambda: store.run("new"),
        lambda: store.backend.replace("models/x", b""),
    ):
        with pytest.raises(errors.StandfastError):
            write()
    store.close()


# Taken over


def test_the_recipe_of_the_seed_works_after_an_import(imported):
    (entry,) = imported.get_all_hashes()
    assert entry["created"] == "2026-11-15T06:46:51.897549Z"
    assert entry["last_used"] == "2026-11-15T06:46:51.921824Z"
    times = [each["time"] for each in imported.get_checkpoint_info(entry["hash"])["checkpoints"]]
    assert times == ["2026-11-15T06:46:51.906914Z", "2026-11-15T06:46:51.917203Z"]
    latest_hash = imported.get_latest_hash()
    model_dir = imported.models_dir / latest_hash
    checkpoint_files = sorted(model_dir.glob(f"{latest_hash}_step_*.pt"))
    checkpoint = torch.load(checkpoint_files[-1], weights_only=True)
    assert checkpoint["step"] == 200
    model = new_model(seed=9)
    optimizer = new_optimizer(model)
    model.load_state_dict(checkpoint["model_state_dict"])
    optimizer.load_state_dict(checkpoint["optimizer_state_dict"])
    expected = torch.load(WEIGHTS / f"{MADE}_step_000200.pt", weights_only=False)
    assert bits(model.state_dict()) == bits(expected["model_state_dict"])
    found = imported.load_checkpoint(latest_hash, target_step=100)["weights"]
    assert found.keys() == expected.keys()
    config = imported.hp_dir / latest_hash / f"{latest_hash}_config.yaml"
    assert yaml.safe_load(config.read_text())["hyperparameters"] == {"batch": 8, "lr": 0.001}


def test_the_same_model_and_settings_continue_an_imported_run(imported):
    made = imported.get_latest_hash()
    model = new_model()
    optimizer = new_optimizer(model)
    hp = {"lr": 0.001, "batch": 8}
    assert imported.update_experiment_hash(model, hp) == (made, True, {"hp", "model"})
    assert imported.load_latest_checkpoint(model, optimizer=optimizer)["step"] == 200
    train_step(model, optimizer, 201)
    path = imported.save_model_checkpoint(model, optimizer=optimizer)
    assert path.name == f"{made}_step_000201.pt"
    assert imported.list_experiment_hashes() == [made]
    assert imported.update_experiment_hash(model, hp) == (made, False, set())
    wider, _, changed = imported.update_experiment_hash(nn.Linear(10, 3))
    assert (wider, changed) == (identify(hp=hp, model=nn.Linear(10, 3)).hash, {"model"})
    imported.load_latest_checkpoint(model, exp_hash=made)
    imported.update_experiment_hash(model, {"lr": 0.5, "batch": 8})  # other settings branch
    path = imported.save_model_checkpoint(model, 1)
    assert imported.get_checkpoint_info(path.name[:24])["parent"] == f"{made}@201"


def test_the_latest_of_a_root_is_the_latest_after_an_import(tmp_path):
    writer = Writer(tmp_path / "root", short=False)
    times: list[Any] = ["2026-01-21T08:00:00", "2026-01-21T09:00:00", "2026-01-21T10:00:00"]
    writer.experiment(SECOND, 5, created=times[1], last_used=times[1])
    writer.experiment(FIRST, 100, created=times[0], last_used=times[2])
    writer.config(FIRST, {"lr": 1})
    manager = Manager(tmp_path / "store")
    done = import_root(manager.store, writer.path)
    of = {each.experiment: each.run.hash for each in done.runs}
    assert manager.get_latest_hash() == of[FIRST]
    by_use = [entry["hash"] for entry in manager.get_all_hashes(sort_by="last_used")]
    assert by_use == [of[FIRST], of[SECOND]]
    assert manager.get_all_hashes()[0]["hash"] == of[SECOND]  # the newest
