"""Every malformed file is refused by its own class, in bounded time and memory, and is closed."""

from __future__ import annotations

import io
import os
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import standfast
from standfast.errors import (
    NothingToVerify,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnknownFormat,
)
from tests.formats.builders import Row
from tests.formats.malformed import TABLES, Table
from tests.fuzz.limits import memory_limit, processor_limit
from tests.kit.descriptors import open_files

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


def refusal(read: Callable[[], Any], size: int, large: bool) -> StandfastError | None:
    """How something of this size is refused, with bounds for what that may take."""
    if not large:
        tracemalloc.start()
    try:
        with memory_limit((64 << 20) + 250 * size), processor_limit(2 + size / 500_000):
            read()
        return None
    except StandfastError as error:
        return error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < (1 << 20) + 128 * size


@pytest.mark.guarantee("G11")
@each_row
def test_it_is_refused_by_its_own_class(table: Table, row: Row, folder: Path) -> None:
    data, large = row.content, callable(row.data)
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
    refusals = {way: refusal(read, len(data), large) for way, read in reads.items()}
    assert open_files(path) == []
    for way, refused in refusals.items():
        message, found = str(refused), type(refused) if refused else None
        if way == "stream":
            # Without a suffix and an end, it may be taken for another format or for whole.
            cut = row.error in (TruncatedFile, TrailingBytes) or len(data) < 10
            vague = cut or found is UnknownFormat
            assert vague or found is row.error, refused
        elif (way == "lenient" and row.opens) or row.error is None:
            assert found in (None, NothingToVerify), refused
        else:
            assert found is row.error, refused
            assert message.startswith(f"{path}: ") or not table.suffix
            assert row.tensor in message
        assert len(message) < LONGEST_MESSAGE
        assert message.isprintable()
    assert os.listdir(folder) == ([path.name] if table.suffix else [])
    path.unlink(missing_ok=True)


def test_each_row_has_a_name_of_its_own() -> None:
    for table in TABLES.values():
        names = [row.name for row in table.rows]
        assert len(set(names)) == len(names)
