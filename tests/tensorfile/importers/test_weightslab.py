"""Roots that weightslab wrote, in both layouts, their samples, and what a hostile one may hold."""

import json
import os
import sys
import types
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import errors
from standfast.tensorfile.importers import Experiment, read_root
from tests import WEIGHTSLAB
from tests.fuzz.limits import processor_limit
from tests.kit.stores import same
from tests.tensorfile.importers.weightslab_roots import (
    FIRST,
    LAYOUTS,
    SECOND,
    WRITTEN,
    Writer,
    everything_in,
)

STATE = {"uids": ["a", "b"], "discarded": ["b"], "tags": {"a": ["cat", "hard"]}}


def _only(root: Path) -> Experiment:
    (experiment,) = read_root(root).experiments.values()
    return experiment


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """A root of one experiment."""
    writer = Writer(tmp_path, short=True)
    writer.experiment(FIRST, 100)
    return writer


def test_the_root_that_weightslab_wrote():
    root = read_root(WEIGHTSLAB)
    assert root.latest == WRITTEN
    assert root.problems == []
    experiment = root.experiments[WRITTEN]
    assert list(root.experiments) == [WRITTEN]
    assert experiment.name == "wl-jade-tide"
    assert experiment.created == "2026-11-15T06:46:51.897549"
    assert experiment.last_used == "2026-11-15T06:46:51.921824"
    assert experiment.config() == {"batch": 8, "lr": 0.001}
    assert experiment.data_state() is None
    folder = WEIGHTSLAB / "checkpoints" / "models" / "b5a79a78"
    assert experiment.checkpoints == {
        100: folder / f"{WRITTEN}_step_000100.pt",
        200: folder / f"{WRITTEN}_step_000200.pt",
    }
    assert experiment.file_of(200)[0] == 25_457


def test_its_weights_are_what_torch_reads():
    experiment = _only(WEIGHTSLAB)
    for step, path in experiment.checkpoints.items():
        expected = torch.load(path, weights_only=True)
        weights = expected["model_state_dict"]
        loaded = standfast.load(path, verify=False)
        state = experiment.found(step).state()
        assert standfast.open(path).metadata["step"] == state["step"] == step
        assert len(expected["optimizer_state_dict"]["state"]) == 4
        for part in ("model_state_dict", "optimizer_state_dict"):
            assert same(state[part], expected[part])
        for name, tensor in weights.items():
            assert np.array_equal(loaded[f"model_state_dict.{name}"], tensor.numpy())
        specs = {name: standfast.open(path).spec(f"model_state_dict.{name}") for name in weights}
        assert experiment.model(step) == specs


def test_reading_changes_nothing():
    before = everything_in(WEIGHTSLAB)
    experiment = _only(WEIGHTSLAB)
    experiment.config(), experiment.data_state(), experiment.found(100).state()
    assert everything_in(WEIGHTSLAB) == before


@LAYOUTS
def test_each_layout(tmp_path, short):
    writer = Writer(tmp_path, short)
    writer.experiment(SECOND, 7, created="2026-01-21T08:00:00", last_used="2026-01-21T08:45:00")
    writer.experiment(FIRST, 200, 10_000_000, 2_000_000, 30, last_used="2026-01-21T10:30:00")
    writer.config(FIRST, {"lr": 0.1, "layers": [1, 2]})
    writer.data_state(FIRST, STATE)
    root = read_root(tmp_path)
    assert list(root.experiments) == [FIRST, SECOND]
    assert root.latest == FIRST
    assert root.problems == []
    first, second = root.experiments.values()
    assert list(first.checkpoints) == [30, 200, 2_000_000, 10_000_000]
    assert first.config() == {"lr": 0.1, "layers": [1, 2]}
    assert first.data_state() == STATE
    assert second.config() is None
    assert second.data_state() == (STATE if short else None)  # the two share their data
    assert second.created == "2026-01-21T08:00:00"


@LAYOUTS
def test_without_a_manifest_the_names_of_files_count(tmp_path, short):
    writer = Writer(tmp_path, short)
    writer.experiment(SECOND, 7)
    writer.experiment(FIRST, 100)
    os.utime(writer.weights(FIRST, 100), (1, 1))
    writer.manifest.unlink()
    root = read_root(tmp_path)
    assert list(root.experiments) == [SECOND, FIRST]
    assert root.latest == SECOND
    assert [path for path, _ in root.problems] == [writer.manifest]
    assert root.experiments[FIRST].name is None


BAD_MANIFESTS = {
    "torn": b"experiments:\n  a: {hp_hash: 'x",
    "text": b"hello",
    "a list": b"[1, 2]",
    "an alias": b"a: &x [1]\nexperiments: *x",
    "a bomb": b"a: &a [x, x]\n"
    + b"".join(b"%c: &%c [*%c, *%c]\n" % (98 + i, 98 + i, 97 + i, 97 + i) for i in range(24)),
    "an object": b"!!python/object/apply:os.system ['touch /tmp/harmed']",
    "nested": b"[" * 100_000,
    "experiments that are a list": b"experiments: [a, b]",
    "an experiment that is text": b"experiments: {" + FIRST.encode() + b": hello}",
    "a path for a hash": b"experiments: {../../../etc/passwd: {created: x}}",
    "numbers": b"experiments: {1: {}, 2.5: []}",
    "bytes": bytes(range(256)),
    "nothing": b"",
}


@pytest.mark.parametrize("name", BAD_MANIFESTS)
def test_of_a_bad_manifest_the_names_of_files_are_left(tmp_path, name, writer):
    writer.manifest.write_bytes(BAD_MANIFESTS[name])
    with processor_limit(5):
        root = read_root(tmp_path)
    assert list(root.experiments) == [FIRST]
    assert root.latest == FIRST
    assert {path for path, _ in root.problems} == {writer.manifest}


def test_a_manifest_that_is_too_large_or_a_pipe_is_not_read(tmp_path, writer):
    os.truncate(writer.manifest, 1 << 40)
    root = read_root(tmp_path)
    assert list(root.experiments) == [FIRST]
    assert len(root.problems) == 1
    writer.manifest.unlink()
    os.mkfifo(writer.manifest)
    assert len(read_root(tmp_path).problems) == 1


def test_values_of_the_wrong_types_are_not_taken(tmp_path, writer):
    entry: dict[str, Any] = {"experiment_name": ["x"], "created": 7, "last_used": "yesterday"}
    writer.experiment(FIRST, 100, **entry)
    experiment = _only(tmp_path)
    assert (experiment.name, experiment.created, experiment.last_used) == (None, None, None)


def test_only_names_of_weights_are_weights(tmp_path, writer):
    folder = writer.weights(FIRST, 100).parent
    for name in (
        f"{FIRST}_step_12.pt",
        f"{FIRST}_step_000100.pth",
        f"{FIRST[:8]}_step_000300.pt",
        f"{FIRST}_step_١٢٣٤٥٦.pt",
        f"{FIRST}_step_9999999999999999.pt",
        f"{FIRST.upper()}_step_000400.pt",
        "e5f6g7h8_architecture.pkl",
    ):
        (folder / name).write_bytes(b"")
    other = tmp_path / "checkpoints" / "models" / "latest"
    other.mkdir()
    (other / f"{SECOND}_step_000100.pt").write_bytes(b"")
    root = read_root(tmp_path)
    assert list(root.experiments) == [FIRST]
    assert list(root.experiments[FIRST].checkpoints) == [100]


def test_a_step_is_taken_once(tmp_path, writer):
    twice = writer.weights(FIRST, 100).with_name(f"{FIRST}_step_0000100.pt")
    twice.write_bytes(b"")
    root = read_root(tmp_path)
    assert list(root.experiments[FIRST].checkpoints) == [100]
    assert len(root.problems) == 1


def test_links_out_of_the_root_are_not_followed(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / f"{SECOND}_step_000100.pt").write_bytes(b"")
    (outside / "secret.yaml").write_text("hyperparameters: {key: secret}\nexperiments: {}")
    writer = Writer(tmp_path / "root", short=False)
    writer.experiment(FIRST, 100)
    models = writer.checkpoints / "models"
    (models / SECOND).symlink_to(outside)
    (models / FIRST / f"{FIRST}_step_000200.pt").symlink_to(outside / f"{SECOND}_step_000100.pt")
    (models / FIRST / f"{FIRST}_step_000300.pt").symlink_to(writer.weights(FIRST, 100))
    config = writer.config(FIRST, {})
    config.unlink()
    config.symlink_to(outside / "secret.yaml")
    writer.manifest.unlink()
    writer.manifest.symlink_to(outside / "secret.yaml")
    root = read_root(tmp_path / "root")
    assert list(root.experiments) == [FIRST]
    assert list(root.experiments[FIRST].checkpoints) == [100, 300]
    assert len(root.problems) == 3
    with pytest.raises(errors.UnreadableFile):
        root.experiments[FIRST].config()


def test_a_folder_that_is_no_root(tmp_path):
    with pytest.raises(errors.MissingFile):
        read_root(tmp_path)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "models").write_bytes(b"")
    with pytest.raises(errors.UnreadableFile):
        read_root(tmp_path)


def test_a_damaged_configuration_is_refused(tmp_path, writer):
    path = writer.config(FIRST, {})
    wrong = (b"hyperparameters: 7", b"hyperparameters: [1]")
    for content in (b"", b"[1]", b"a: 1", b"a: *b", b"{", *wrong):
        path.write_bytes(content)
        with pytest.raises(errors.BadField, match=r"config\.yaml"):
            _only(tmp_path).config()


TAGS = ["a"], {"a": "cat"}, {"a": None}


@pytest.mark.parametrize(
    "content", [{"uids": "abc"}, {"discarded": {"a": True}}, *({"tags": tags} for tags in TAGS)]
)
def test_a_data_state_of_the_wrong_types_is_refused(writer, content):
    path = writer.data_state(FIRST, {"uids": [], **content})
    with pytest.raises(errors.BadField, match=r"data_state\.yaml"):
        _only(writer.path).data_state()
    path.unlink()
    writer.snapshot(FIRST, {"uids": [], **content})
    with pytest.raises(errors.BadField, match=r"data_snapshot\.json"):
        _only(writer.path).data_state()


ROWS = [
    {"sample_id": "a", "annotation_id": 0, "discarded": False, "tag:cat": True, "tag:dog": False},
    {"sample_id": "a", "annotation_id": 1, "discarded": None, "tag": "hard", "tag:dog": 0},
    {"sample_id": "b", "annotation_id": 0, "discarded": True, "tag": "", "tag:cat": None},
    {"sample_id": "c", "tag": ["x", "y"], "tag:weather": "rain", "tag:size": 1.0, "target": 3},
]
SAMPLES = {
    "uids": ["a", "b", "c"],
    "discarded": ["b"],
    "tags": {"a": ["cat", "hard"], "c": ["x", "y", "weather:rain", "size"]},
}


def _columns(rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """As pandas writes them: by the names of the rows."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: {str(i): row.get(name) for i, row in enumerate(rows)} for name in names}


@LAYOUTS
def test_a_snapshot_of_rows_or_of_columns(tmp_path, short):
    writer = Writer(tmp_path, short)
    writer.experiment(FIRST, 100)
    columns = _columns(ROWS)
    lists = {name: list(column.values()) for name, column in columns.items()}
    for table in (ROWS, columns, lists):
        writer.snapshot(FIRST, {"exp_hash": FIRST, "rng_state": {"torch": [1]}, "data": table})
        samples = _only(tmp_path).data_state()
        assert samples["uids"] == SAMPLES["uids"]
        assert samples["discarded"] == SAMPLES["discarded"]
        tags = {uid: sorted(names) for uid, names in samples["tags"].items()}
        assert tags == {uid: sorted(names) for uid, names in SAMPLES["tags"].items()}


def test_a_table_of_another_shape_stays_as_it_is(writer):
    tables = [{"some": ["thing"]}, [1, 2], "text", 7, [{"id": "a"}], [{"sample_id": [1]}]]
    tables += [{"sample_id": 7}, {"sample_id": ["a"], "tag": "x"}]
    for table in [*tables, [{"sample_id": "a", "tag": {"x": 1}}]]:
        writer.snapshot(FIRST, {"data": table})
        assert _only(writer.path).data_state() == {"data": table}
    writer.snapshot(FIRST, {"exp_hash": FIRST})
    assert _only(writer.path).data_state() == {"uids": [], "discarded": [], "tags": {}}


def test_a_table_beside_the_snapshot(writer):
    name = f"{FIRST[16:]}_data_snapshot.data.json"
    path = writer.snapshot(FIRST, {"data_format": "json", "data_file": name})
    with pytest.raises(errors.MissingFile):
        _only(writer.path).data_state()
    path.with_name(name).write_text(json.dumps(_columns(ROWS)))
    samples = _only(writer.path).data_state()
    assert samples["uids"] == SAMPLES["uids"]
    path.with_name(name).write_text("{torn")
    with pytest.raises(errors.DamagedFile):
        _only(writer.path).data_state()


def test_no_name_in_a_snapshot_becomes_a_path(writer):
    for name in ("../secret.json", "/etc/passwd", "other.parquet", 7, ["a"]):
        writer.snapshot(FIRST, {"data_file": name})
        with pytest.raises(errors.BadField):
            _only(writer.path).data_state()


def _parquet(table: dict[str, list[Any]], rows: int) -> Any:
    """What of pyarrow is used, with a table in its place."""
    file = types.SimpleNamespace(
        metadata=types.SimpleNamespace(num_rows=rows),
        schema_arrow=types.SimpleNamespace(names=list(table)),
        read=lambda columns: types.SimpleNamespace(
            to_pydict=lambda: {name: table[name] for name in columns}
        ),
    )
    return nullcontext(file)


def test_a_parquet_file_needs_pyarrow(writer, monkeypatch):
    name = f"{FIRST[16:]}_data_snapshot.parquet"
    path = writer.snapshot(FIRST, {"data_format": "parquet", "data_file": name}).with_name(name)
    path.write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(errors.UnsupportedFile, match=name):
        _only(writer.path).data_state()
    pyarrow: Any = types.ModuleType("pyarrow.parquet")
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, pyarrow)
    table = {"sample_id": [1, 2], "discarded": [True, False], "tag:x": [False, True]}
    table["loss"] = [0, 0]
    pyarrow.ParquetFile = lambda path: _parquet(table, 2)
    state = _only(writer.path).data_state()
    assert state == {"uids": [1, 2], "discarded": [1], "tags": {2: ["x"]}}
    for opened, error in (
        (lambda path: _parquet(table, 1 << 60), errors.LimitExceeded),
        (lambda path: _parquet({"loss": [1]}, 1), errors.BadField),
        (lambda path: 1 // 0, errors.BadField),
    ):
        pyarrow.ParquetFile = opened
        with pytest.raises(error):
            _only(writer.path).data_state()


def test_torn_files_give_a_value_or_an_error_of_ours(writer):
    config = writer.config(FIRST, {"lr": 0.1, "layers": [1, 2]})
    snapshot = writer.snapshot(FIRST, {"data": ROWS[:2]})
    whole, table = config.read_bytes(), snapshot.read_bytes()
    refused, ends = 0, range(0, max(len(whole), len(table)), 3)
    for at in ends:
        config.write_bytes(whole[:at])
        snapshot.write_bytes(table[:at])
        experiment = _only(writer.path)
        for read in (experiment.config, experiment.data_state):
            try:
                read()
            except errors.StandfastError:
                refused += 1
    assert refused > len(whole) // 3
