"""All malformed files, by their formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.formats import test_dcp_metadata as dcp
from tests.formats.builders import Row
from tests.formats.npz import malformed as npz
from tests.formats.npz import test_npy_header as npy
from tests.formats.oxck import malformed as oxck
from tests.formats.safetensors import (
    malformed_header,
    malformed_large,
    malformed_metadata,
    malformed_tensors,
)
from tests.formats.sunc import malformed as sunc
from tests.formats.tenzor import malformed as tenzor
from tests.formats.torch import malformed as torch
from tests.formats.zip import malformed as zip
from tests.formats.zip.builders import archive_of


@dataclass(frozen=True)
class Table:
    """The malformed files of a format, and how they are read."""

    rows: tuple[Row, ...]
    suffix: str = ""
    """Of files; without one, `read` takes the bytes of a part of a file."""
    read: Callable[[bytes], object] = bytes
    lenient: Mapping[str, bool] = field(default_factory=lambda: {"verify": False})
    """How those rows open that say so."""


SAFETENSORS = (malformed_header, malformed_tensors, malformed_metadata, malformed_large)
TABLES = {
    "safetensors": Table(
        tuple(row for each in SAFETENSORS for row in each.ROWS), suffix=".safetensors"
    ),
    "tenzor": Table((*tenzor.ROWS, *tenzor.WITHOUT_MAGIC), suffix=".tenzor"),
    "oxck": Table((*oxck.ROWS, *oxck.WITHOUT_MAGIC), suffix=".oxck"),
    "sunc": Table(sunc.ROWS, suffix=".sunc"),
    "npz": Table(npz.ROWS, suffix=".npz"),
    "torch": Table(torch.ROWS, suffix=".pt"),
    "pickle": Table(torch.PICKLES, suffix=".pt", lenient={"tensors_only": True}),
    "zip": Table(zip.ROWS, read=archive_of),
    "npy": Table(npy.ROWS, read=npy.read_header),
    "dcp": Table(dcp.ROWS, read=dcp.read_metadata),
}
