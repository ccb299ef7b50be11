"""The sunc format as a target, beside a plain reader of its header, and the trees in it."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from random import Random

from standfast.files.layout import Index
from standfast.formats.reader import Options
from tests.formats.sunc import malformed as malformed_sunc
from tests.formats.sunc.builders import file_of, link_section, tree, whole_files, written
from tests.fuzz.mutations.bytes import ANYWHERE, flip_bit, set_numbers
from tests.fuzz.mutations.json_text import json_mutations
from tests.fuzz.seeds import golden, random_metadata, small, with_digest
from tests.fuzz.target import Outcome, Target, require
from tests.fuzz.targets.sunc_trees import check_trees, tree_seeds

TAG = b"HFDG"
START = b'{"standfast.digest":"'
FIELDS = (
    *((4, 4), (8, 1), (9, 1), (10, 4), (14, 8), (22, 4), (26, 4), (30, 4), (34, 8), (42, 8)),
    *((50, 8), (58, 8), (66, 8), (74, 1), (75, 1), (76, 8), (84, 8)),
)
"""The offsets and widths of the numbers of the header."""


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


# Seeds and mutations


def seeds() -> list[bytes]:
    """Trees with each kind of extension, and all that are malformed."""
    files = [file_of(), file_of(link_section()), file_of(link_section(3)), file_of(b"foreign")]
    malformed = [case.data for case in malformed_sunc.CASES]
    sound = small(tree_seeds())
    return [*golden(".sunc"), *whole_files().values(), *files, *sound, *small(malformed)]


def random_file(random: Random) -> bytes:
    """A tree of one or two dimensions."""
    field = random.choice(("<f8", "<f4", "u1", "3<f8", "3u1"))
    rest = random.choice(("", "", "extension", "links(1)", "links(3)"))
    sections, metadata = tree(
        random.randrange(1 << 30),
        nd=random.choice((1, 2)),
        blocks=random.randrange(4),
        slots=random.randrange(4),
        field=field,
        rest=rest,
    )
    extras = random.random() < 0.6
    metadata["field_bytes"] = sections["storage"].nbytes and int(sections["storage"][0, 0].nbytes)
    if not metadata["field_bytes"]:
        del metadata["field_bytes"]
    return written(sections, metadata | (random_metadata(random) if extras else {}), extras)


def _own_text(random: Random, file: bytes) -> tuple[bytes, Callable[[bytes], bytes]] | None:
    at = own_start(file)
    if at is None:
        return None

    def put(text: bytes) -> bytes:
        length = len(text).to_bytes(8, "little")
        return file[:at] + TAG + length + text + length + TAG

    return file[at + 12 : -12], put


def _numbers(file: bytes) -> list[tuple[int, int]]:
    places = [*FIELDS]
    if file.startswith(b"LINK", end := payload_end(file)):
        places += [(end + 4, 8), (end + 12, 8)]
    if (own := own_start(file)) is not None:
        places += [(own + 4, 8), (len(file) - 12, 8)]
    return places


def _resize(random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
    """Other counts of blocks and slots, with a payload of their size."""
    sizes = section_sizes(file)
    if sizes is None or sum(sizes) > 1 << 16:
        return flip_bit(random, file, others)
    rest = file[payload_end(file) :]
    blocks, arena = random.randrange(4), random.randrange(4)
    counts = struct.pack("<4Q", blocks, blocks, arena, random.randrange(arena + 1))
    file = file[:34] + counts + file[66:]
    size = sum(section_sizes(file) or [])
    return file[:92] + random.randbytes(min(size, 1 << 15)) + rest


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
    seeds=seeds,
    random_file=random_file,
    mutations=(
        *ANYWHERE,
        *(set_numbers(_numbers), set_numbers(_numbers), set_numbers(_numbers), _resize, _resize),
        *json_mutations(_own_text),
    ),
    reseal=reseal,
    check=check,
)
