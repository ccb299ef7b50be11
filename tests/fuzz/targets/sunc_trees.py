"""The trees in `.sunc` files: whatever a file holds, it is a sound state or an error."""

from __future__ import annotations

import io
import struct
from typing import Any

import numpy as np

from standfast.amr import (
    AMRTree,
    GaugeFrontend,
    GaugeTree,
    OpenTopology,
    ScalarFrontend,
    TreeCheckpoint,
)
from standfast.errors import BadOption, DamagedFile, IncompatibleCheckpoint, StandfastError
from standfast.files.layout import Index
from tests.amr.tree_states import saved
from tests.fuzz.target import Outcome, require

DTYPES = {1: "uint8", 2: "float16", 4: "float32", 8: "float64", 16: "complex128"}


def check_trees(data: bytes, outcome: Outcome) -> None:
    """A state that is opened is saved as the same bytes; all else is refused by an error of ours.

    Any other exception is the fuzzer's catch.
    """
    if len(data) < 92:
        return
    nd, block_size = struct.unpack_from("<BI", data, 9)
    (field_bytes,) = struct.unpack_from("<I", data, 26)
    group = 2 if field_bytes % 32 == 0 else 1
    try:
        topology = OpenTopology(nd, (8.0,) * nd)
        gauge = GaugeFrontend(group, field_bytes // (16 * group), nd, block_size, topology)
    except BadOption:
        gauge = None
    try:
        dtype = np.dtype(DTYPES.get(field_bytes, "uint8" if field_bytes % 8 else "float64"))
        many = field_bytes // dtype.itemsize
        scalar = ScalarFrontend(nd, block_size, topology, dtype, many)
    except (BadOption, NameError):
        scalar = None
    for frontend in (scalar, gauge):
        if frontend is not None:
            _check_read(data, outcome, AMRTree, frontend)
    if gauge is not None:
        _check_read(data, outcome, GaugeTree, gauge)


def _check_read(data: bytes, outcome: Outcome, kind: type[AMRTree], frontend: Any) -> None:
    stream = io.BytesIO(data)
    try:
        if kind is GaugeTree:
            state: Any = GaugeTree.read_checkpoint(stream, frontend=frontend)
        else:
            state = TreeCheckpoint(frontend).read(stream)
    except StandfastError as error:
        refused = isinstance(error, DamagedFile | IncompatibleCheckpoint)
        require(refused or not isinstance(outcome, Index), f"a sound file is refused: {error}")
        return
    again = bytearray(saved(state.tree, state.arena))
    require(stream.tell() == len(again), "the stream was not left behind the state")
    size = 8 * (frontend.nd + 3)
    for block in range(len(state.tree)):  # the padding means nothing, and becomes zeros
        end = 92 + size * (block + 1)
        again[end - 7 : end] = data[end - 7 : end]
    require(again == data[: len(again)], "a state that was opened is saved as other bytes")
