"""A URL is never taken for a path on this machine: a row for each public function and command."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from typer.testing import CliRunner

import standfast
from standfast import amr, experiments, oxck, tenzor
from standfast import packages as models
from standfast.amr.snapshot.files import exported_paths
from standfast.cli.app import app
from standfast.dcp import DCPFolder
from standfast.errors import BadOption
from standfast.files.paths import check_local
from standfast.orbax import read as read_orbax
from standfast.store.copies.export import export
from standfast.store.copies.imports import import_folder, import_root
from standfast.tensorfile.importers import read_folder, read_root
from standfast.training.proof.proof import prove
from tests.amr.tree_states import golden_scalar, golden_u1
from tests.kit.cases import kept

STATE = {"w": np.arange(3.0)}
TREE, ARENA = golden_scalar()
LINKS, LINK_ARENA = golden_u1()
FILE = "here.safetensors"
_METADATA = tenzor.CheckpointMetadata()


def _store() -> standfast.Store:
    return standfast.Store("store")


def _snapshot() -> amr.Snapshot:
    return amr.Snapshot(_store().resolve("trees"))


def _lightning() -> Any:
    return standfast.lightning.StandfastIO(_store(), "a")


class Counter:
    """What a Checkpointer can save."""

    def state_dict(self) -> dict[str, Any]:
        return STATE

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError


FUNCTIONS: dict[str, Callable[[Any], object]] = {
    "save": lambda url: standfast.save(url, STATE),
    "save, format": lambda url: standfast.save(url, STATE, format="npz"),
    "load": standfast.load,
    "open": standfast.open,
    "verify": standfast.verify,
    "convert from": lambda url: standfast.convert(url, "there.npz"),
    "convert to": lambda url: standfast.convert(FILE, url),
    "convert to, format": lambda url: standfast.convert(FILE, url, format="npz"),
    "diff before": lambda url: standfast.diff(url, FILE),
    "diff after": lambda url: standfast.diff(FILE, url),
    "importers": read_folder,
    "importers, root": read_root,
    "import": lambda url: import_folder(_store(), url),
    "import, root": lambda url: import_root(_store(), url),
    "export": lambda url: export(_store().resolve("a@1"), url),
    "export, snapshot": lambda url: exported_paths(cast("Any", None), url),
    "export, folder": lambda url: export(_store().resolve("a@1"), f"{url}/folder"),
    "oxck save": lambda url: oxck.Checkpoint().save(url),
    "oxck load": oxck.Checkpoint.load,
    "tenzor save": lambda url: tenzor.Checkpoint.save(url, STATE, None, _METADATA),
    "tenzor load": tenzor.Checkpoint.load,
    "tenzor config": lambda url: tenzor.TrainerConfig(checkpoint_dir=url),
    "tenzor save_checkpoint": lambda url: tenzor.Trainer(model=STATE).save_checkpoint(url),
    "tenzor resume": lambda url: tenzor.Trainer(model=STATE).resume(url),
    "experiments": experiments.CheckpointManagerV2,
    "experiments, system": experiments.get_checkpoint_system,
    "tree write": lambda url: amr.TreeCheckpoint(TREE.frontend).write_to_file(TREE, ARENA, url),
    "tree read": lambda url: amr.TreeCheckpoint(TREE.frontend).read_from_file(url),
    "gauge tree write": lambda url: LINKS.write_checkpoint_to_file(LINK_ARENA, url),
    "gauge tree read": partial(amr.GaugeTree.read_checkpoint_from_file, frontend=LINKS.frontend),
    "snapshot export": lambda url: _snapshot().export(url),
    "snapshot export, compressed": lambda url: _snapshot().export(url, compress="zstd"),
    "logical_digest": amr.logical_digest,
    "dcp": DCPFolder,
    "dcp read": standfast.dcp.read,
    "orbax": read_orbax,
    "lightning save": lambda url: _lightning().save_checkpoint({"global_step": 1}, url),
    "lightning load": lambda url: _lightning().load_checkpoint(url),
    "lightning remove": lambda url: _lightning().remove_checkpoint(url),
    "prove": lambda url: prove(["true"], folder=Path(url)),
    "pack": models.pack,
    "pack to": lambda url: models.pack("package", url),
    "unpack": models.unpack,
    "unpack into": lambda url: models.unpack("package.tar.gz", url),
}
COMMANDS = """
    show URL; show here.safetensors --names URL; verify --json URL; verify --json --logical URL;
    diff URL here.safetensors; diff here.safetensors URL; diff a@1 URL; convert URL there.npz;
    convert here.safetensors URL; export a@1 URL; import URL; train --checkpoint URL;
    train --resume URL; train -d URL; prove --keep URL true; pack URL; pack package --to URL;
    unpack URL; ui store --no-open --files URL
"""
QUICK = [name for name in FUNCTIONS if not name.startswith("lightning")]
URLS = ["s3://bucket/x.safetensors", "s3a://bucket/x.npz", "https://host/x.sunc", "file:///x.pt"]
TAKEN_BY_STORES: dict[str, Callable[[Any], object]] = {
    "store": standfast.Store,
    "mirror": lambda url: standfast.Checkpointer(
        "store", standfast.TrainingState(a=Counter()), mirror=url
    ).__enter__(),
    "models": models.list_saved_models,
    "load_model_folder": models.load_model_folder,
    "verify_package": models.verify_package,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file and a store, where nothing may appear."""
    folder = tmp_path_factory.mktemp("urls")
    standfast.save(folder / FILE, STATE)
    store = standfast.Store(folder / "store")
    store.run("a").save(1, STATE)
    with store.run("trees") as run:
        amr.Snapshot.save(run, 1, TREE, ARENA, time=0.0)
    return folder


@pytest.fixture(autouse=True)
def _here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("STANDFAST_STORE", raising=False)


def _names() -> list[str]:
    return sorted(path.name for path in Path().iterdir())


@pytest.mark.parametrize("name", kept(FUNCTIONS, *QUICK))
def test_a_function_refuses_a_url_and_makes_nothing(name):
    before = _names()
    for url in URLS:
        for given in (url, Path(url)):
            with pytest.raises(BadOption):
                FUNCTIONS[name](given)
    assert _names() == before


@pytest.mark.parametrize("command", [" ".join(each.split()) for each in COMMANDS.split(";")])
def test_a_command_refuses_a_url_and_makes_nothing(command, monkeypatch):
    monkeypatch.setenv("STANDFAST_STORE", "store")
    before = _names()
    for url in URLS:
        done = CliRunner().invoke(app, command.replace("URL", url).split())
        if "--json" in command:
            assert [each["error"] for each in json.loads(done.output)] == ["BadOption"]
        else:
            assert isinstance(done.exception, BadOption), done.output
    assert _names() == before


@pytest.mark.parametrize("name", TAKEN_BY_STORES)
def test_what_takes_urls_refuses_what_a_path_makes_of_one(name):
    before = _names()
    for given in (Path("s3://bucket/x"), "s3:/bucket/x", Path("S3://bucket/x"), "S3:/x"):
        with pytest.raises(BadOption):
            TAKEN_BY_STORES[name](given)
    assert _names() == before


def test_a_name_with_a_colon_is_a_path():
    for name in ("a:b.safetensors", "C:/x.safetensors", "s3:x.npz", "e:/x://y.npz"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        standfast.save(name, STATE)
        assert standfast.load(name)["w"].tolist() == [0, 1, 2]


def test_a_secret_in_a_url_is_not_shown():
    for given in ("s3://key:HIDDEN@bucket/x", Path("s3://key:HIDDEN@bucket/x"), b"s3://b/x?HIDDEN"):
        with pytest.raises(BadOption) as caught:
            check_local(given)
        assert "HIDDEN" not in str(caught.value)
