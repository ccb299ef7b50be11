"""The samples of a weightslab experiment, in each of the forms that its releases write."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from standfast.errors import BadField, LimitExceeded, MissingFile, UnsupportedFile, printable
from standfast.tensorfile.importers.contents import shown
from standfast.tensorfile.importers.json_files import read_json

MAX_ROWS: Final = 10_000_000
_UID: Final = "sample_id"
_DISCARDED: Final = "discarded"
_TAG: Final = "tag"
_STATE: Final[dict[str, type]] = {"uids": list, _DISCARDED: list, "tags": dict}

Rows = list[dict[str, Any]]


def as_data_state(content: dict[Any, Any], path: Path) -> dict[str, Any]:
    """A data state as it was written, with `uids`, `discarded` and `tags` of the right types."""
    state = {key: content.get(key) or kind() for key, kind in _STATE.items()}
    for key, kind in _STATE.items():
        _check(state[key], kind, f"{shown(path)}: {key}")
    for uid, names in state["tags"].items():
        _check(names, list, f"{shown(path)}: the tags of {shown(uid)}")
    return state


def read_snapshot(path: Path, inside: Callable[[Path], Path]) -> dict[str, Any]:
    """The samples of a `_data_snapshot.json`, whose table is in it or in a file beside it.

    `inside` raises UnreadableFile for a file that lies elsewhere.
    """
    content = read_json(path)
    if "uids" in content:
        return as_data_state(content, path)
    table = content.get("data") if "data" in content else _beside(content, path, inside)
    rows = _rows(table)
    return {"data": table} if rows is None else _samples(rows)


def _beside(content: dict[str, Any], path: Path, inside: Callable[[Path], Path]) -> Any:
    """The table in the file that a snapshot names; it can only be one of two."""
    named = content.get("data_file")
    if named is None:
        return []
    parquet, columns = path.with_suffix(".parquet"), path.with_suffix(".data.json")
    if named == parquet.name:
        return _read_parquet(inside(parquet))
    if named == columns.name:
        return read_json(inside(columns))
    raise BadField(
        f"{shown(path)}: its table should be in {parquet.name} or {columns.name}, and it names "
        f"{shown(named)}"
    )


def _read_parquet(path: Path) -> Any:
    try:
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise UnsupportedFile(
            f"{shown(path)}: the samples are in a Parquet file, which pyarrow reads: "
            "`pip install pyarrow`"
        ) from error
    try:
        with parquet.ParquetFile(path) as file:
            count = file.metadata.num_rows
            wanted = [name for name in file.schema_arrow.names if _is_ours(name)]
            table = file.read(columns=wanted).to_pydict() if count <= MAX_ROWS else None
    except FileNotFoundError as error:
        raise MissingFile(
            error.errno, f"there is no file {shown(path)}, the table of the samples"
        ) from error
    except Exception as error:  # whatever a library makes of bytes that are no table
        raise BadField(f"{shown(path)}: not the table it should be ({_reason(error)})") from error
    if table is None:
        raise LimitExceeded(f"{shown(path)}: {count:,} rows, over {MAX_ROWS:,}")
    if _rows(table) is None:
        raise BadField(f"{shown(path)}: it has no column {_UID} of texts or integers")
    return table


def _is_ours(column: str) -> bool:
    return column in (_UID, _DISCARDED) or column.partition(":")[0] == _TAG


def _reason(error: Exception) -> str:
    return shown(printable(f"{type(error).__name__}: {error}"))


def _rows(table: Any) -> Rows | None:
    """A table as a list of rows, each with a uid; None if it has another shape.

    It is a list of rows, or a dict of columns that are lists or are by the names of the rows.
    """
    if isinstance(table, dict) and _UID in table:
        columns = {name: _column(column) for name, column in table.items() if _is_ours(name)}
        if any(column is None for column in columns.values()):
            return None
        uids = columns[_UID] or {}
        others = [(name, column or {}) for name, column in columns.items()]
        table = [{name: column.get(row) for name, column in others} for row in uids]
    if not isinstance(table, list):
        return None
    has_uids = all(
        isinstance(row, dict) and type(row.get(_UID)) in (str, int) and _has_plain_tags(row)
        for row in table
    )
    return table if has_uids else None


def _column(column: Any) -> dict[Any, Any] | None:
    if isinstance(column, list):
        return dict(enumerate(column))
    return column if isinstance(column, dict) else None


def _has_plain_tags(row: dict[str, Any]) -> bool:
    return not any(isinstance(value, dict) for name, value in row.items() if _is_ours(name))


def _samples(rows: Rows) -> dict[str, Any]:
    """The samples of a table; one of several rows, as its annotations are, has the tags of all."""
    discarded: dict[Any, None] = {}
    tags: dict[Any, dict[Any, None]] = {}
    for row in rows:
        if row.get(_DISCARDED) in (True, "True", "true"):
            discarded[row[_UID]] = None
        for tag in _tags(row):
            tags.setdefault(row[_UID], {})[tag] = None
    return {
        "uids": list(dict.fromkeys(row[_UID] for row in rows)),
        "discarded": list(discarded),
        "tags": {uid: list(names) for uid, names in tags.items()},
    }


def _tags(row: dict[str, Any]) -> Iterator[str]:
    """The tags of a row: `tag` has a text or several, `tag:name` whether it has that one."""
    for column, value in row.items():
        kind, _, name = column.partition(":")
        if kind != _TAG:
            continue
        if not name:
            yield from (text for text in _members(value) if isinstance(text, str) and text)
        elif value is True or value == 1:
            yield name
        elif isinstance(value, str) and value:
            yield f"{name}:{value}"


def _members(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _check(value: Any, kind: type, what: str) -> None:
    if not isinstance(value, kind):
        raise BadField(f"{what}: expected a {kind.__name__}, found a {type(value).__name__}")
