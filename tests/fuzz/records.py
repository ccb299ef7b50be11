"""Records with boxes, changed in every way: each is refused, or gives the bytes it speaks of."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final, cast

import numpy as np
from blake3 import blake3

from standfast.errors import StandfastError
from standfast.files.digests import CHUNK, tensor_digest
from standfast.store.backends.local import LocalBackend
from standfast.store.checkpoint import Checkpoint
from standfast.store.load.box_reading import parts_of
from standfast.store.load.reading import Data
from standfast.store.maintenance.logical import logical
from standfast.store.schema.boxes import box_nbytes, slices
from standfast.store.schema.decoder import decode
from standfast.store.schema.record import Record, encode
from standfast.store.tree import tree
from standfast.tensors.shards import Box
from tests.formats.builders import with_digest
from tests.fuzz import mutations
from tests.fuzz.mutations import WHOLE, text_part
from tests.fuzz.properties import check_message
from tests.fuzz.run import Format, Report, Subject, corpus, fuzz
from tests.fuzz.target import LARGEST, require
from tests.fuzz.targets import TARGETS

RUN: Final = "0123456789abcdef01234567"
STEP: Final = 100
LARGEST_VIEW: Final = 1 << 20
"""A view may be of any size; a larger one is not compared."""
LINES: Final = (0, 1, 1, 1, 2, 3, 4, 4, 5, 5, 5, 6, 7, 7, 8, 8, 8, 8, 8, 8)
"""Which lines are changed, those with boxes the most often."""
FILES: Final = {
    f"{RUN}_step_000100.0123abcd.{label}.safetensors": Random(label).randbytes(size)
    for label, size in (("model-rank0", 4096), ("model-rank1", 1000))
}


def with_right_digests(record: Record) -> Record:
    """The record with the digests of the bytes that it refers to."""
    return replace(record, digests=b"".join(_chunk_digests(record)))


def _chunk_digests(record: Record) -> Iterator[bytes]:
    for n, spec in enumerate(record.specs):
        if n not in record.views:
            stored, at = _stored(record, n), 0
            for size in box_nbytes(spec, record.boxes[n]) if n in record.boxes else [len(stored)]:
                require(size <= CHUNK, "the files are smaller than a chunk")
                yield blake3(stored[at : at + size]).digest()
                at += size


def _line(random: Random, text: bytes) -> tuple[bytes, Callable[[bytes], bytes]] | None:
    """One of the lines."""
    lines = text.split(b"\n")
    number = random.choice(LINES)
    if number >= len(lines):
        return None
    return lines[number], lambda new: b"\n".join([*lines[:number], new, *lines[number + 1 :]])


PARTS: Final = (text_part(_line), text_part(_line), WHOLE)


def mutate(random: Random, text: bytes, others: Sequence[bytes]) -> bytes:
    """The record with a few changes; most often all digests fit it again."""
    text = mutations.mutate(random, text, PARTS, others)[:LARGEST]
    if random.random() < 0.1:
        return text
    text = reseal(text)
    return _with_digests(text) if random.random() < 0.5 else text


def reseal(text: bytes) -> bytes:
    """The record with a right seal of its head and a right last line."""
    lines = text.split(b"\n")[:-2]
    if lines:
        at = lines[0].find(b'"seal":"') + 8
        lines[0] = with_digest(lines[0], at, lines[0][:at], lines[0][at + 64 :])
    body = b"".join(line + b"\n" for line in lines)
    return body + b'{"digest":"%b"}\n' % blake3(body).hexdigest().encode()


def _with_digests(text: bytes) -> bytes:
    """Also with the digests of the bytes, if it is a record; so that more of it is looked at."""
    try:
        return encode(with_right_digests(decode(text, RUN, STEP)))
    except StandfastError:
        return text


def prepare(folder: Path) -> LocalBackend:
    """The data files that records speak of."""
    for name, data in FILES.items():
        path = folder / "models" / RUN / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return LocalBackend(folder)


def check(text: bytes, backend: LocalBackend, random: Random) -> str:
    """Read a record and all that it refers to: the name of the error, or nothing if it is right."""
    try:
        record = decode(text, RUN, STEP)
        require(_is_same(decode(encode(record), RUN, STEP), record), "it does not come back")
        tree.decode(record.tree, len(record.names))
        with Data(backend, record, mapped=random.choice((None, False))) as data:
            arrays = data.arrays()
            _check_arrays(data, arrays, random)
        _check_logical(backend, record)
    except StandfastError as error:
        check_message(str(error))
        return type(error).__name__
    return ""


def _is_same(one: Record, other: Record) -> bool:
    names = ("head", "tree", "names", "specs", "digests", "views", "boxes")
    return all(getattr(one, name) == getattr(other, name) for name in names)


def _check_arrays(data: Data, arrays: dict[int, Any], random: Random) -> None:
    record = data.record
    digests = [*_chunk_digests(record)]
    require(b"".join(digests) == record.digests, "wrong digests pass")
    for n, array in arrays.items():
        if record.specs[n].nbytes > LARGEST_VIEW:
            continue
        expected = _array(record, n)
        require(array.tobytes() == expected.tobytes(), "other bytes")
        require(data.array(n).tobytes() == expected.tobytes(), "one tensor has other bytes")
        if record.specs[n].size and record.specs[n].kind.bits >= 8:
            _check_box(data, n, expected, random)


def _check_box(data: Data, number: int, expected: Any, random: Random) -> None:
    shape = expected.shape
    offsets = tuple(random.randrange(length) for length in shape)
    lengths = tuple(random.randint(1, n - at) for n, at in zip(shape, offsets, strict=True))
    box, size = Box(offsets, lengths), 0
    for part, array in parts_of(data, number, box):
        mine = expected[slices(part)]
        require(array.tobytes() == mine.tobytes(), "a box has other bytes")
        size += math.prod(part.shape)
    require(size == math.prod(lengths), "the parts of a box do not make it up")


def _check_logical(backend: LocalBackend, record: Record) -> None:
    if any(spec.nbytes > LARGEST_VIEW for spec in record.specs):
        return
    found = logical(cast(Checkpoint, _Opened(backend, record)))
    for n, name in enumerate(record.names):
        if name in found.tensors:
            whole = blake3(_array(record, n).tobytes()).digest()
            require(found.tensors[name].digest == tensor_digest(whole).hex(), "another digest")


@dataclass(frozen=True)
class _Opened:
    """As much of a checkpoint as its logical digest needs."""

    backend: LocalBackend
    record: Record

    @contextmanager
    def data(self) -> Iterator[Data]:
        with Data(self.backend, self.record) as data:
            yield data


def _stored(record: Record, number: int) -> bytes:
    """The bytes of all extents of a tensor."""
    names, pieces = [file.name for file in record.head.files], []
    for extent in range(record.first_extents[number], record.first_extents[number + 1]):
        start, size = int(record.starts[extent]), int(record.sizes[extent])
        data = FILES.get(names[record.files[extent]], b"")
        pieces.append(data[start : start + size])
    return b"".join(pieces)


def _array(record: Record, number: int) -> Any:
    """A tensor, put together by hand."""
    spec, view = record.specs[number], record.views.get(number)
    if view is not None:
        base = np.frombuffer(_array(record, view.base).tobytes(), np.uint8)
        return np.ndarray(spec.array_shape, spec.kind.numpy, base, view.offset, view.strides)
    data, at = _stored(record, number), 0
    if number not in record.boxes:
        return np.frombuffer(data, spec.kind.numpy).reshape(spec.array_shape)
    array = np.empty(spec.shape, spec.kind.numpy)
    for box in record.boxes[number]:
        end = at + math.prod(box.shape) * array.itemsize
        array[slices(box)] = np.frombuffer(data[at:end], array.dtype).reshape(box.shape)
        at = end
    return array


class Records:
    """Records as what is fuzzed; the data files are in a folder."""

    name: Final = "record"
    suffix: Final = ".record"

    def __init__(self, folder: Path) -> None:
        self._backend = prepare(folder)

    def seeds(self) -> list[bytes]:
        return corpus(self.name)

    def mutate(self, random: Random, file: bytes, others: Sequence[bytes]) -> bytes:
        return mutate(random, file, others)

    def attempt(self, data: bytes, random: Random, tried: int) -> str:
        return check(data, self._backend, random)


def fuzz_records(seed: int, folder: Path, inputs: int) -> Report:
    """Try some changes of records; `folder` is for the data files."""
    return fuzz(Records(folder), seed, inputs)


NAMES: Final = (*TARGETS, Records.name)
"""All that is fuzzed."""


def subject_named(name: str, folder: Path) -> Subject:
    """What has this name; `folder` is for its files."""
    return Records(folder) if name == Records.name else Format(TARGETS[name], folder)
