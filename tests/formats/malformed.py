"""All malformed files, by their formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from standfast.formats.dcp_metadata import read_metadata
from standfast.formats.npz.npy_header import read_header
from tests.formats import test_dcp_metadata as dcp
from tests.formats.builders import Row, rows
from tests.formats.npz import malformed as npz
from tests.formats.oxck import malformed as oxck
from tests.formats.safetensors import malformed as safetensors
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


TABLES = {
    "safetensors": Table(rows(*safetensors.TABLES), ".safetensors"),
    "tenzor": Table(rows(tenzor.ROWS, tenzor.WITHOUT_MAGIC), ".tenzor"),
    "oxck": Table(rows(*oxck.TABLES, oxck.WITHOUT_MAGIC), ".oxck"),
    "sunc": Table(rows(sunc.ROWS), ".sunc"),
    "npz": Table(rows(npz.ROWS), ".npz"),
    "torch": Table(rows(torch.ROWS), ".pt"),
    "pickle": Table(torch.PICKLES, ".pt", lenient={"tensors_only": True}),
    "zip": Table(rows(zip.ROWS), read=archive_of),
    "npy": Table(rows(npz.HEADERS), read=read_header),
    "dcp": Table(rows(dcp.ROWS), read=read_metadata),
}
