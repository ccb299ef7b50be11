"""A checkpoint as files that need no store."""

import json
import math
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.store.copies.export import export
from standfast.store.query.view import CheckpointView, diff_checkpoints
from standfast.tensorfile.diff import compare
from tests.kit.stores import flip

WEIGHT = np.arange(40_000, dtype=np.float32).reshape(200, 200)


def saved(path: Path, state: Any, **options: Any) -> standfast.Checkpoint:
    with standfast.Store(path).run("a run") as run:
        return run.save(3, state, **options)


def state() -> dict[str, Any]:
    return {
        "model": OrderedDict(weight=WEIGHT, tied=WEIGHT, rows=WEIGHT[10:20]),
        "optimizer": {"state": {0: {"moment": WEIGHT + 1}}, "lr": 0.5, "betas": (0.9, 0.99)},
        "step": np.array(3),
        "epoch": 7,
        "text": "x",
        "odd": [math.nan, {"bytes": b"\x00", "big": 10**5000, "empty": []}],
    }


@pytest.fixture
def checkpoint(tmp_path: Path) -> standfast.Checkpoint:
    return saved(tmp_path / "store", state(), metrics={"loss": 0.5, "bad": math.inf}, epoch=1)


@pytest.mark.parametrize("suffix", ["safetensors", "pt", "npz", "tenzor"])
def test_a_whole_file_of_any_format(checkpoint, tmp_path, suffix):
    target = tmp_path / f"whole.{suffix}"
    done = export(checkpoint, target)
    assert done.files == (target,)
    loaded = standfast.load(target)
    assert set(loaded) == set(checkpoint.tensors)
    assert np.array_equal(loaded["model.tied"], WEIGHT)
    assert np.array_equal(loaded["model.rows"], WEIGHT[10:20])
    assert (done.tensors, done.nbytes) == (5, sum(array.nbytes for array in loaded.values()))
    with standfast.open(target) as file:
        assert file.metadata == {
            "run": checkpoint.head.run,
            "step": 3,
            "epoch": 1,
            "metrics": {"loss": 0.5},
            "state": {"optimizer.lr": 0.5, "epoch": 7, "text": "x", "odd.1.empty": []},
        }
        assert not compare(file, CheckpointView(checkpoint))


def test_a_part_opens_as_it_was_saved(checkpoint, tmp_path):
    export(checkpoint, tmp_path / "model.pt", part="model")
    assert list(standfast.load(tmp_path / "model.pt")) == ["weight", "tied", "rows"]
    export(checkpoint, tmp_path / "optimizer.bin", part="optimizer", format="npz")
    with standfast.open(tmp_path / "optimizer.bin") as file:
        assert (file.format, list(file)) == ("npz", ["state.0.moment"])
        assert file.metadata["state"] == {"lr": 0.5}
    export(checkpoint, tmp_path / "state.npz", part="state")
    assert list(standfast.load(tmp_path / "state.npz")) == ["step"]
    with pytest.raises(errors.RefNotFound, match="optimizer"):
        export(checkpoint, tmp_path / "no.npz", part="no")


def test_a_folder_has_all_parts_and_all_plain_values(checkpoint, tmp_path):
    folder = tmp_path / "folder"
    done = export(checkpoint, folder)
    parts = [f"{part}.safetensors" for part in ("model", "optimizer", "state")]
    assert [path.name for path in done.files] == [*parts, "checkpoint.json"]
    assert list(standfast.load(folder / "model.safetensors")) == ["weight", "tied", "rows"]
    beside = json.loads((folder / "checkpoint.json").read_text())
    assert (beside["run"], beside["name"]) == (checkpoint.head.run, "a run")
    assert (beside["step"], beside["epoch"]) == (3, 1)
    assert beside["metrics"] == {"loss": 0.5, "bad": {"$float": "7ff0000000000000"}}
    assert beside["parts"] == {"model": "model", "optimizer": "optimizer", "state": None}
    values = beside["values"]
    assert values["optimizer.betas"] == {"$tuple": [0.9, 0.99]}
    assert values["odd.0"] == {"$float": "7ff8000000000000"}
    assert values["odd.1.bytes"] == {"$bytes": "AA=="}
    assert list(values) == [
        *("optimizer.lr", "optimizer.betas", "epoch", "text"),
        *("odd.0", "odd.1.bytes", "odd.1.big", "odd.1.empty"),
    ]
    export(checkpoint, folder)  # over the old one
    one = export(checkpoint, tmp_path / "one part", part="optimizer").files
    assert [path.name for path in one] == ["optimizer.safetensors", "checkpoint.json"]
    assert list(json.loads(one[1].read_text())["values"]) == ["lr", "betas"]


def test_damage_is_found_before_anything_is_written(checkpoint, tmp_path):
    for path in (tmp_path / "store").rglob("*.safetensors"):
        flip(path)
    with pytest.raises(errors.DigestMismatch):
        export(checkpoint, tmp_path / "whole.safetensors")
    assert not (tmp_path / "whole.safetensors").exists()


def test_a_dtype_that_the_format_lacks_is_cast_when_asked(tmp_path):
    checkpoint = saved(tmp_path / "store", {"z": np.ones(2, np.complex128)})
    with pytest.raises(errors.UnsupportedDType):
        export(checkpoint, tmp_path / "z.safetensors")
    export(checkpoint, tmp_path / "z.safetensors", cast=True)
    assert standfast.load(tmp_path / "z.safetensors")["z"].dtype == np.complex64


def test_a_target_that_cannot_be_a_folder(checkpoint, tmp_path):
    (tmp_path / "taken").write_bytes(b"")
    for target in ("taken", "no/folder", "a\0b"):
        with pytest.raises((errors.WriteFailed, errors.MissingFile)):
            export(checkpoint, tmp_path / target)


def test_a_state_that_is_one_tensor(tmp_path):
    checkpoint = saved(tmp_path / "store", WEIGHT)
    export(checkpoint, tmp_path / "one.safetensors")
    assert list(standfast.load(tmp_path / "one.safetensors")) == ["state"]
    export(checkpoint, tmp_path / "folder")
    assert (tmp_path / "folder" / "state.safetensors").exists()


def test_paths_that_read_alike_are_told_apart(tmp_path):
    checkpoint = saved(tmp_path / "store", {"a": {"b": 1}, "a.b": 2, "a.b~2": 3})
    assert CheckpointView(checkpoint).values == {"a.b": 1, "a.b~2": 2, "a.b~2~2": 3}


def test_tied_tensors_are_compared_without_being_read(checkpoint, tmp_path):
    digests = CheckpointView(checkpoint).stored_digests()
    assert digests["model.tied"] == digests["model.weight"]
    assert "model.rows" not in digests
    transposed = {"w": np.ones((30, 30)), "t": np.ones(())}
    transposed["t"] = transposed["w"].T
    view = CheckpointView(saved(tmp_path / "other", transposed))
    assert list(view.stored_digests()) == ["w"]
    assert np.array_equal(view["t"], transposed["t"])


def test_checkpoints_differ_by_what_is_in_them(tmp_path):
    store = standfast.Store(tmp_path / "store")
    with store.run("a run") as run:
        first = run.save(1, {"w": WEIGHT, "seed": b"a"}, {"loss": math.nan})
        same = run.save(2, {"w": WEIGHT, "seed": b"a"}, {"loss": math.nan})
        other = run.save(3, {"w": WEIGHT, "seed": b"b"}, {"loss": 1.0})
    assert not diff_checkpoints(first, same)
    found = diff_checkpoints(first, other)
    assert not found.changed
    assert found.metadata["state"] == ({"seed": b"a"}, {"seed": b"b"})
    assert list(found.metadata) == ["metrics", "state"]
