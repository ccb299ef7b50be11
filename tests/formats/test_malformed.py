"""Every malformed file is refused by its own class, in bounded time and memory, and is closed."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast
from standfast import errors, oxck
from tests.formats.builders import Row, rows
from tests.formats.malformed import TABLES
from tests.formats.oxck import malformed as malformed_oxck
from tests.fuzz.limits import refusal_of
from tests.kit.process import open_files

LONGEST_MESSAGE = 4000
"""Room for a path, a shortened name and a shape of 64 dimensions."""

each_row = pytest.mark.parametrize(
    ("table", "row"),
    [
        pytest.param(table, row, id=f"{name}: {row.name}")
        for name, table in TABLES.items()
        for row in table.rows
    ],
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the files are, and where an attack would leave one."""
    folder, before = tmp_path_factory.mktemp("malformed"), Path.cwd()
    os.chdir(folder)
    yield folder
    os.chdir(before)


@pytest.mark.guarantee("G11")
@each_row
def test_it_is_refused_by_its_own_class(table, row, folder):
    data, large, error = row.content, callable(row.data), row.refusal.error
    path = folder / f"file{table.suffix}"
    reads: dict[str, Callable[[], Any]] = {"read": lambda: table.read(data)}
    if table.suffix:
        path.write_bytes(data)
        reads = {
            "open": lambda: standfast.open(path).close(),
            "verify": lambda: standfast.verify(path),
            "lenient": lambda: standfast.open(path, **table.lenient).close(),
            "stream": lambda: standfast.open(io.BytesIO(data)).close(),
        }
        for slow in ("verify", "stream") if large else ():
            del reads[slow]
    # All are kept, with their frames: nothing but the reader closes a file.
    refusals = {way: refusal_of(read, len(data), traced=not large) for way, read in reads.items()}
    assert open_files(path) == []
    for way, refused in refusals.items():
        message, found = str(refused), type(refused) if refused else None
        if way == "stream":
            # Without a suffix and an end, it may be taken for another format or for whole.
            cut = error in (errors.TruncatedFile, errors.TrailingBytes) or len(data) < 10
            vague = cut or found is errors.UnknownFormat
            assert vague or found is error, refused
        elif (way == "lenient" and row.refusal.opens) or error is None:
            assert found in (None, errors.NothingToVerify), refused
        else:
            assert found is error, refused
            assert message.startswith(f"{path}: ") or not table.suffix
            assert row.refusal.tensor in message
        assert len(message) < LONGEST_MESSAGE
        assert message.isprintable()
    assert os.listdir(folder) == ([path.name] if table.suffix else [])
    path.unlink(missing_ok=True)


OF_CHECKPOINT = {
    errors.BadField: oxck.MetadataParse,
    errors.BadHeader: oxck.MetadataParse,
    errors.TruncatedFile: oxck.TruncatedData,
    errors.UnsupportedFile: oxck.UnsupportedVersion,
}
"""The classes of `Checkpoint` for ours; those for digests and sizes are the same."""
OURS = rows(malformed_oxck.OURS)
KEPT = [row for row in OURS if not row.refusal.opens]
"""It keeps repeated names, and does not look at types."""
WITHOUT_MAGIC = rows(malformed_oxck.WITHOUT_MAGIC)


def refusal_by_checkpoint(row: Row) -> type[errors.StandfastError] | None:
    error = row.refusal.error
    if row in KEPT or error is None:
        return None
    if row in WITHOUT_MAGIC:
        return oxck.InvalidMagic if row.content else oxck.TruncatedData
    return error if row in OURS else OF_CHECKPOINT.get(error, error)


@pytest.mark.parametrize("row", TABLES["oxck"].rows, ids=lambda row: row.name)
def test_checkpoint_refuses_it_by_its_own_errors(row, folder):
    path, data, error = folder / "file.oxck", row.content, refusal_by_checkpoint(row)
    path.write_bytes(data)
    reads = {
        "path": lambda: oxck.Checkpoint.load(path),
        "stream": lambda: oxck.Checkpoint.read_from(io.BytesIO(data)),
    }
    for way, read in reads.items():
        refused = refusal_of(read, len(data), traced=not callable(row.data))
        if error is errors.TrailingBytes and way == "stream":
            assert refused is None
        else:
            assert (type(refused) if refused else None) is error
        if refused:
            assert str(refused).count(str(path)) == (way == "path")
            assert len(str(refused)) < 1000
    path.unlink()


def test_each_row_has_a_name_of_its_own():
    for table in TABLES.values():
        names = [row.name for row in table.rows]
        assert len(set(names)) == len(names)
