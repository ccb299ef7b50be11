"""The samples of weightslab's experiments, in each of the forms that its releases write."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import (
    BadField,
    DamagedFile,
    LimitExceeded,
    MissingFile,
    StandfastError,
    UnsupportedFile,
)
from standfast.tensorfile.importers import Experiment, read_root
from tests.tensorfile.importers.weightslab_roots import FIRST, LAYOUTS, Writer


def _only(root: Path) -> Experiment:
    (experiment,) = read_root(root).experiments.values()
    return experiment


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    """A root of one experiment."""
    writer = Writer(tmp_path, short=True)
    writer.experiment(FIRST, 100)
    return writer


@pytest.mark.parametrize(
    "content",
    [
        {"uids": "abc"},
        {"uids": [], "discarded": {"a": True}},
        {"uids": [], "tags": ["a"]},
        {"uids": [], "tags": {"a": "cat"}},
        {"uids": [], "tags": {"a": None}},
    ],
)
def test_a_data_state_of_the_wrong_types_is_refused(writer: Writer, content: Any) -> None:
    path = writer.data_state(FIRST, content)
    with pytest.raises(BadField, match=r"data_state\.yaml"):
        _only(writer.path).data_state()
    path.unlink()
    writer.snapshot(FIRST, content)
    with pytest.raises(BadField, match=r"data_snapshot\.json"):
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
def test_a_snapshot_of_rows_or_of_columns(tmp_path: Path, short: bool) -> None:
    writer = Writer(tmp_path, short)
    writer.experiment(FIRST, 100)
    columns = _columns(ROWS)
    lists = {name: list(column.values()) for name, column in columns.items()}
    for table in (ROWS, columns, lists):
        writer.snapshot(FIRST, {"exp_hash": FIRST, "rng_state": {"torch": [1]}, "data": table})
        samples = _only(tmp_path).data_state()
        assert samples is not None
        assert samples["uids"] == SAMPLES["uids"]
        assert samples["discarded"] == SAMPLES["discarded"]
        tags = {uid: sorted(names) for uid, names in samples["tags"].items()}
        assert tags == {uid: sorted(names) for uid, names in SAMPLES["tags"].items()}


def test_a_table_of_another_shape_stays_as_it_is(writer: Writer) -> None:
    tables = [{"some": ["thing"]}, [1, 2], "text", 7, [{"id": "a"}], [{"sample_id": [1]}]]
    tables += [{"sample_id": 7}, {"sample_id": ["a"], "tag": "x"}]
    for table in [*tables, [{"sample_id": "a", "tag": {"x": 1}}]]:
        writer.snapshot(FIRST, {"data": table})
        assert _only(writer.path).data_state() == {"data": table}
    writer.snapshot(FIRST, {"exp_hash": FIRST})
    assert _only(writer.path).data_state() == {"uids": [], "discarded": [], "tags": {}}


def test_a_table_beside_the_snapshot(writer: Writer) -> None:
    name = f"{FIRST[16:]}_data_snapshot.data.json"
    path = writer.snapshot(FIRST, {"data_format": "json", "data_file": name})
    with pytest.raises(MissingFile):
        _only(writer.path).data_state()
    path.with_name(name).write_text(json.dumps(_columns(ROWS)))
    samples = _only(writer.path).data_state()
    assert samples is not None
    assert samples["uids"] == SAMPLES["uids"]
    path.with_name(name).write_text("{torn")
    with pytest.raises(DamagedFile):
        _only(writer.path).data_state()


def test_no_name_in_a_snapshot_becomes_a_path(writer: Writer) -> None:
    for name in ("../secret.json", "/etc/passwd", "other.parquet", 7, ["a"]):
        writer.snapshot(FIRST, {"data_file": name})
        with pytest.raises(BadField):
            _only(writer.path).data_state()


def _write_parquet(writer: Writer) -> Path:
    name = f"{FIRST[16:]}_data_snapshot.parquet"
    path = writer.snapshot(FIRST, {"data_format": "parquet", "data_file": name}).with_name(name)
    path.write_bytes(b"PAR1")
    return path


def test_a_parquet_file_needs_pyarrow(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write_parquet(writer)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UnsupportedFile, match=path.name):
        _only(writer.path).data_state()


class _Parquet:
    """What of pyarrow is used, with a table in its place."""

    def __init__(self, table: dict[str, list[Any]], rows: int) -> None:
        self._table = table
        self.metadata = types.SimpleNamespace(num_rows=rows)
        self.schema_arrow = types.SimpleNamespace(names=list(table))

    def __enter__(self) -> _Parquet:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def read(self, columns: list[str]) -> Any:
        return types.SimpleNamespace(
            to_pydict=lambda: {name: self._table[name] for name in columns}
        )


def test_a_parquet_file(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    _write_parquet(writer)
    pyarrow: Any = types.ModuleType("pyarrow.parquet")
    for name in ("pyarrow", "pyarrow.parquet"):
        monkeypatch.setitem(sys.modules, name, pyarrow)
    table = {"sample_id": [1, 2], "discarded": [True, False], "tag:x": [False, True]}
    table["loss"] = [0, 0]
    pyarrow.ParquetFile = lambda path: _Parquet(table, 2)
    state = _only(writer.path).data_state()
    assert state == {"uids": [1, 2], "discarded": [1], "tags": {2: ["x"]}}
    for opened, error in (
        (lambda path: _Parquet(table, 1 << 60), LimitExceeded),
        (lambda path: _Parquet({"loss": [1]}, 1), BadField),
        (lambda path: 1 // 0, BadField),
    ):
        pyarrow.ParquetFile = opened
        with pytest.raises(error):
            _only(writer.path).data_state()


def test_torn_files_give_a_value_or_an_error_of_ours(writer: Writer) -> None:
    config = writer.config(FIRST, {"lr": 0.1, "layers": [1, 2]})
    snapshot = writer.snapshot(FIRST, {"data": ROWS[:2]})
    whole, table = config.read_bytes(), snapshot.read_bytes()
    errors, ends = 0, range(0, max(len(whole), len(table)), 3)
    for at in ends:
        config.write_bytes(whole[:at])
        snapshot.write_bytes(table[:at])
        experiment = _only(writer.path)
        for read in (experiment.config, experiment.data_state):
            try:
                read()
            except StandfastError:
                errors += 1
    assert errors > len(whole) // 3
