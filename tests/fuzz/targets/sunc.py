"""The sunc format as a target, beside a plain reader of its header, and the trees in it."""

import io
import struct
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from standfast import amr
from standfast.amr import AMRTree, GaugeTree
from standfast.errors import BadOption, DamagedFile, IncompatibleCheckpoint, StandfastError
from standfast.files.layout import Index
from standfast.formats.reader import Options
from tests.amr.tree_states import saved
from tests.formats.builders import with_digest
from tests.fuzz.mutations import WHOLE, Found, Part, fields, text_part
from tests.fuzz.target import Outcome, Target, require

TAG = b"HFDG"
START = b'{"standfast.digest":"'


def section_sizes(file: bytes) -> list[int] | None:
    """The sizes of the four sections; None if there is no header."""
    if len(file) < 92:
        return None
    _, _, volume, block, field, _, blocks, slots, arena = struct.unpack_from("<BIQIIIQQQ", file, 9)
    return [blocks * block, slots * 8, arena * volume * field, arena * 8]


def payload_end(file: bytes) -> int:
    """Where the payload ends; the end of the file if it has no room for it."""
    return min(len(file), 92 + sum(section_sizes(file) or [0]))


def own_start(file: bytes) -> int | None:
    """Where our extension starts, if the file ends in one."""
    if not file.endswith(TAG):
        return None
    at = len(file) - 24 - int.from_bytes(file[-12:-4], "little")
    return at if at >= payload_end(file) and file.startswith(TAG, at) else None


def _header(random: Random, file: bytes) -> Found | None:
    """The header from the field `version`, at a random place, so that all numbers are met."""
    at = random.randrange(4, 84)
    return file[at:92], lambda data: (file[:at] + data).ljust(92, b"\0")[:92] + file[92:]


def _own_text(random: Random, file: bytes) -> tuple[bytes, Callable[[bytes], bytes]] | None:
    at = own_start(file)
    if at is None:
        return None

    def put(text: bytes) -> bytes:
        length = len(text).to_bytes(8, "little")
        return file[:at] + TAG + length + text + length + TAG

    return file[at + 12 : -12], put


def reseal(file: bytes) -> bytes:
    """The file with a digest that matches its header again, if it has one."""
    own = own_start(file)
    if own is None or not file.startswith(START, own + 12):
        return file
    end = payload_end(file)
    link = file[end : end + 20] if file.startswith(b"LINK", end) else b""
    at = own + 12 + len(START)
    return with_digest(file, at, file[:92] + link + file[own:at], file[at + 64 :])


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
        topology = amr.OpenTopology(nd, (8.0,) * nd)
        gauge = amr.GaugeFrontend(group, field_bytes // (16 * group), nd, block_size, topology)
    except BadOption:
        gauge = None
    try:
        dtype = np.dtype(DTYPES.get(field_bytes, "uint8" if field_bytes % 8 else "float64"))
        many = field_bytes // dtype.itemsize
        scalar = amr.ScalarFrontend(nd, block_size, topology, dtype, many)
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
            state = amr.TreeCheckpoint(frontend).read(stream)
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


def check(data: bytes, outcome: Outcome, options: Options) -> None:
    """The sections lie where the lengths in the header put them, one after the other."""
    check_trees(data, outcome)
    if not isinstance(outcome, Index):
        return
    sizes = section_sizes(data)
    require(sizes is not None and outcome.sizes[:4].tolist() == sizes, "sections of other sizes")
    end = 92
    for start, size in zip(outcome.starts[:4].tolist(), outcome.sizes[:4].tolist(), strict=True):
        require(start == end, "a section lies elsewhere")
        end += size
    links = data.startswith(b"LINK", end)
    require(links == ("links" in outcome.rows), "links are there, or are not")
    end += 20 if links else 0
    if len(outcome.rows) > 4:
        require(int(outcome.starts[4]) == end, "what follows the payload lies elsewhere")
        end += int(outcome.sizes[4])
    require(end == len(data) or own_start(data) == end, "bytes that belong to nothing")


TARGET = Target(
    name="sunc",
    suffix=".sunc",
    parts=(Part(_header, fields, WHOLE.tokens), WHOLE, text_part(_own_text)),
    reseal=reseal,
    check=check,
)
