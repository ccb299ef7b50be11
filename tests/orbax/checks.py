"""What is promised of reading Orbax's checkpoints, for a process of its own: see test_jax.py."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import standfast
from standfast import orbax
from standfast.errors import (
    DamagedFile,
    LimitExceeded,
    MissingFile,
    UnknownFormat,
    UnknownFramework,
    UnsupportedFile,
)
from standfast.jax import restore
from standfast.tensors import register_framework
from tests.kit.seams import Seams

register_framework("jax", "standfast.jax.framework")


def tree() -> dict[str, Any]:
    mesh = jax.make_mesh((8,), ("rows",))
    cut = jax.device_put(jnp.arange(16.0).reshape(8, 2), NamedSharding(mesh, PartitionSpec("rows")))
    params = {"w": cut, "b": [jnp.ones(3, jnp.bfloat16), 5, 1.5], "n": np.arange(3)}
    return {"params": params, "opt": optax.adam(1e-3).init({"w": cut}), "none": None}


def check(found: Any) -> None:
    expected = tree()
    params = found["params"]
    assert type(params["w"]) is np.ndarray
    assert params["w"].tobytes() == np.asarray(expected["params"]["w"]).tobytes()
    assert params["b"][0].dtype == jnp.bfloat16
    assert params["b"][1:] == [5, 1.5]
    assert params["n"].tolist() == [0, 1, 2]
    assert found["opt"][0]["mu"]["w"].tobytes() == bytes(64)
    assert found["opt"][0]["count"].dtype == np.int32
    assert found["none"] is None


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("orbax")
    with ocp.Checkpointer(ocp.StandardCheckpointHandler()) as writer:
        writer.save(base / "standard", args=ocp.args.StandardSave(tree()))
    ocp.PyTreeCheckpointer().save(base / "pytree", {**tree(), "text": "hello"})
    ocp.PyTreeCheckpointer(use_ocdbt=False).save(base / "files", tree())
    options = ocp.CheckpointManagerOptions(enable_async_checkpointing=False)
    with ocp.CheckpointManager(base / "one", options=options) as manager:
        manager.save(3, args=ocp.args.StandardSave(tree()))
    with ocp.CheckpointManager(base / "many", options=options) as manager:
        items = {
            "state": ocp.args.StandardSave(tree()),
            "settings": ocp.args.JsonSave({"lr": 0.1}),
        }
        manager.save(7, args=ocp.args.Composite(**items))
        key = ocp.args.JaxRandomKeySave(jax.random.key(1))
        manager.save(8, args=ocp.args.Composite(**items, key=key))
    return base


def test_each_kind_of_checkpoint_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("standard", "pytree", "files", "one/3"):
        check(orbax.read(folder / name))
    assert orbax.read(folder / "pytree")["text"] == "hello"
    many = orbax.read(folder / "many/7")
    assert set(many) == {"state", "settings"}
    assert many["settings"] == {"lr": 0.1}
    check(many["state"])
    monkeypatch.chdir(folder)
    check(orbax.read("standard"))


def test_what_was_read_goes_into_a_run_and_comes_back_as_a_pytree(
    folder: Path, tmp_path: Path
) -> None:
    run = standfast.Store(tmp_path).run("from-orbax")
    run.save(3, orbax.read(folder / "one/3")["params"])
    target = tree()["params"]
    found = restore(run, target)
    assert found["w"].sharding == target["w"].sharding
    assert np.asarray(found["w"]).tobytes() == np.asarray(target["w"]).tobytes()


def test_a_folder_that_is_no_checkpoint_is_refused(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownFormat):
        orbax.read(tmp_path)
    with pytest.raises(UnknownFormat, match=r"7.*8"):
        orbax.read(folder / "many")
    with pytest.raises(MissingFile):
        orbax.read(tmp_path / "absent")
    with pytest.raises(UnsupportedFile, match="key"):
        orbax.read(folder / "many/8")


def test_damage_is_an_error_of_ours(folder: Path, tmp_path: Path, seams: Seams) -> None:
    broken = shutil.copytree(folder / "standard", tmp_path / "broken")
    (broken / "_METADATA").write_text("{}")
    with pytest.raises(DamagedFile):
        orbax.read(broken)
    step = shutil.copytree(folder / "many/7", tmp_path / "step")
    (step / "settings" / "metadata").write_text('{"lr": ')
    with pytest.raises(DamagedFile):
        orbax.read(step)
    huge = shutil.copytree(folder / "files", tmp_path / "huge")
    header = huge / "params.n" / ".zarray"
    header.write_text(json.dumps(json.loads(header.read_text()) | {"shape": [1 << 50]}))
    with pytest.raises(LimitExceeded):
        orbax.read(huge)
    seams.bound("bytes of Orbax metadata", 4)
    with pytest.raises(LimitExceeded):
        orbax.read(folder / "many/7")


def test_without_the_library_it_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "orbax.checkpoint", None)
    with pytest.raises(UnknownFramework, match="orbax-checkpoint"):
        orbax.read(folder / "standard")
