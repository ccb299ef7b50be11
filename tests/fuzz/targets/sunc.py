"""The sunc format as a target, beside a plain reader of its header, and the trees in it."""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random

from standfast.files.layout import Index
from standfast.formats.reader import Options
from tests.fuzz.mutations import WHOLE, Found, Part, fields, text_part, with_digest
from tests.fuzz.target import Outcome, Target, require
from tests.fuzz.targets.sunc_trees import check_trees

TAG = b"HFDG"
START = b'{"standfast.digest":"'


# Where things are, by the lengths in the header


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


# Mutations


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
    if len(outcome.rows) > 4:
        start, size = int(outcome.starts[4]), int(outcome.sizes[4])
        require(start == end + (20 if links else 0), "what follows the payload lies elsewhere")
        end = start + size
    else:
        end += 20 if links else 0
    require(end == len(data) or own_start(data) == end, "bytes that belong to nothing")


TARGET = Target(
    name="sunc",
    suffix=".sunc",
    parts=(Part(_header, fields, WHOLE.tokens), WHOLE, text_part(_own_text)),
    reseal=reseal,
    check=check,
)
