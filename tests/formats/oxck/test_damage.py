"""`Checkpoint` against every malformed file: its own errors, on a disk and as a stream."""

from __future__ import annotations

import io
import tracemalloc
from pathlib import Path

import pytest

from standfast.errors import (
    BadField,
    BadHeader,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.oxck import (
    Checkpoint,
    InvalidMagic,
    MetadataParse,
    TruncatedData,
    UnsupportedVersion,
)
from tests.formats.builders import Row
from tests.formats.oxck import malformed
from tests.fuzz.limits import memory_limit, processor_limit

OWN = {
    BadField: MetadataParse,
    BadHeader: MetadataParse,
    TruncatedFile: TruncatedData,
    UnsupportedFile: UnsupportedVersion,
}
"""Its classes for ours; those for digests and sizes are the same."""
KEPT = {row.name for row in malformed.OURS[:3]}
"""It keeps repeated names, and does not look at types."""


def expected(row: Row) -> type[StandfastError] | None:
    if row.name in KEPT or row.error is None:
        return None
    if row in malformed.WITHOUT_MAGIC:
        return InvalidMagic if row.content else TruncatedData
    return row.error if row in malformed.OURS else OWN.get(row.error, row.error)


@pytest.mark.parametrize(
    "row", [*malformed.ROWS, *malformed.WITHOUT_MAGIC], ids=lambda row: row.name
)
def test_checkpoint_refuses_it_by_its_own_errors(row: Row, tmp_path: Path) -> None:
    path, data, error = tmp_path / "file.oxck", row.content, expected(row)
    path.write_bytes(data)
    tracemalloc.start()
    with memory_limit((64 << 20) + 250 * len(data)), processor_limit(5):
        for source in (path, io.BytesIO(data)):
            of_file = isinstance(source, Path)
            read = Checkpoint.load if of_file else Checkpoint.read_from
            if error is None or (error is TrailingBytes and not of_file):
                assert read(source).version == 1  # type: ignore[arg-type, operator]
                continue
            with pytest.raises(error) as refused:
                read(source)  # type: ignore[arg-type, operator]
            assert type(refused.value) is error
            assert str(refused.value).count(str(path)) == of_file
            assert len(str(refused.value)) < 1000
    assert tracemalloc.get_traced_memory()[1] < (1 << 20) + 128 * len(data)
    tracemalloc.stop()
