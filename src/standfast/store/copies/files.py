"""A data file goes from one store to another block by block, and every byte is verified on its way.

What a file should be stands in the file itself: its seal covers the header, the header has the
digests of all chunks. The record has the seal, and so nothing that was damaged or exchanged is
handed on.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple, Protocol, runtime_checkable

from blake3 import blake3
from isal.isal_zlib import crc32

from standfast.errors import DigestMismatch, IndexMismatch, UnreadableFile
from standfast.files.digests import DIGEST, chunks_of
from standfast.files.disk import ALIGNMENT
from standfast.files.reader import Progress
from standfast.files.ring import BLOCK, borrowed_block
from standfast.files.threads import Task, Threads
from standfast.files.writer import AppendedFile
from standfast.formats.reader import Options
from standfast.formats.safetensors import file as safetensors
from standfast.formats.torch import file as torch
from standfast.formats.zip.archive import read_archive
from standfast.store.backends.backend import NewFile
from standfast.store.schema import extents
from standfast.store.schema.headers import seal_in, written_by_us
from standfast.store.schema.record import DataFile, Record
from standfast.store.v3.torch_names import SUFFIX
from standfast.tensors.sources import Bytes

_BLOCKS: Final = 6
"""As many are read ahead of the one that is written: 96 MiB, whatever is copied."""
_READERS: Final = 4
"""Threads that wait for a disk or a server."""


class UnreadableSource(UnreadableFile):
    """It is what is copied that cannot be read, and nothing of the place that it is copied to."""


@contextmanager
def reading_source() -> Iterator[None]:
    """Let what cannot be read in here be told from what else goes wrong with a copy."""
    try:
        yield
    except UnreadableFile as error:
        raise UnreadableSource(*error.args) from error


class Opened(Protocol):
    """A data file that is open for reading."""

    @property
    def path(self) -> str:
        """Where it is, for messages."""
        ...

    @property
    def size(self) -> int:
        """Its size in bytes."""
        ...

    def read(self, start: int, length: int) -> bytes:
        """Exactly these bytes."""
        ...

    def read_into(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`; from any thread."""
        ...

    def check_unchanged(self) -> None:
        """Raise ChangedFile if it was written to since it was opened."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


@runtime_checkable
class Lending(AppendedFile, Protocol):
    """A new file that has memory of its own, and takes it back full."""

    def block(self, size: int) -> Bytes:
        """Memory to fill and append, which nobody else uses before those bytes are on their way."""
        ...


class Expected(NamedTuple):
    """What a stretch of a file should be."""

    start: int
    stop: int
    digest: bytes
    """The BLAKE3 digest of the stretch, or its CRC-32 in four bytes."""
    tensor: str = ""
    """The name of the tensor that has it, if one has."""


def copy_data(
    source: Opened, new: NewFile, file: DataFile, record: Record, progress: Progress
) -> None:
    """Write a data file that a record names anew, front to back; it is durable, and has no name.

    Raises a DamagedFile, and DigestMismatch for bytes of tensors, if it is not what was saved.
    """
    with reading_source():
        checking = _Checking(expected_in(source, file, record))
    new.reserve(source.size)
    with ExitStack() as stack:
        readers = stack.enter_context(Threads(_READERS))
        hasher = stack.enter_context(Threads(1))
        starts = iter(range(0, source.size, BLOCK))
        reading: deque[tuple[int, Bytes, Bytes, Task[None]]] = deque()

        def read_next(block: Bytes) -> None:
            for start in starts:
                part = block[: min(BLOCK, source.size - start)]
                done = readers.submit(source.read_into, part, start)
                reading.append((start, part, block, done))
                return

        def free_block() -> Bytes:
            if isinstance(new, Lending):
                return new.block(BLOCK)
            return stack.enter_context(borrowed_block())

        for _ in range(min(_BLOCKS, -(-source.size // BLOCK))):
            read_next(free_block())
        while reading:
            start, part, block, done = reading.popleft()
            with reading_source():
                done.result()
            checked = hasher.submit(checking.see, part, start)
            if isinstance(new, Lending):
                new.append(part)
                block = free_block()
            else:  # a direct write: what is beyond the end of the file is cut off again
                new.write(block[: -(-part.size // ALIGNMENT) * ALIGNMENT], start)
            checked.result()
            if checking.damaged:
                raise _damaged(source, checking.damaged)
            progress(part.size)
            read_next(block)
    source.check_unchanged()
    new.finish(source.size)


def _damaged(source: Opened, damaged: list[str]) -> DigestMismatch:
    tensors = tuple(dict.fromkeys(filter(None, damaged)))
    what = f"tensor {tensors[0]!r}" if tensors else "a part of it"
    more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
    return DigestMismatch(
        f"{source.path}: {what}{more} is damaged: the bytes do not match the digest that was saved "
        "with them, and are not copied; `standfast doctor` looks for another copy",
        tensors,
    )


def expected_in(source: Opened, file: DataFile, record: Record) -> list[Expected]:
    """What all of a data file should be; raises a DamagedFile if it is not the one it should be."""
    with written_by_us(source.path):
        if file.name.endswith(SUFFIX):
            seal, expected = _in_torch(source, file, record)
        else:
            seal, expected = _in_safetensors(source)
        if seal != file.digest:
            raise IndexMismatch("it is another file than the record speaks of")
    return expected


def _in_safetensors(source: Opened) -> tuple[str, list[Expected]]:
    """The seal of the file, its header, and the chunks that follow it without a gap."""
    index = safetensors.read_index(source.read, source.size, Options())
    digests = index.digests
    if digests is None:
        raise IndexMismatch("it has no digests of Standfast's: another program wrote it")
    header = source.read(0, 8 + int.from_bytes(source.read(0, 8), "little"))
    expected = [Expected(0, len(header), blake3(header).digest())]
    at = 0
    for row, (name, start) in enumerate(zip(index.rows, index.starts.tolist(), strict=True)):
        for _, begin, stop in chunks_of(row, int(index.sizes[row])):
            digest = digests[at : at + DIGEST]
            expected.append(Expected(start + begin, start + stop, digest, name))
            at += DIGEST
    return seal_in(header), expected


def _in_torch(source: Opened, file: DataFile, record: Record) -> tuple[str, list[Expected]]:
    """The seal of the file, the chunks that the record refers to, and all entries.

    The seal covers what is around the tensors, the sums of the entries included. So bytes that
    this record does not refer to, and another one may, are verified too.
    """
    seal = torch.check(source.read, source.size)
    expected = [
        Expected(extent.start, extent.start + extent.size, digest, name)
        for tensor, name in enumerate(record.names)
        for digest, extent in extents.chunks_of(record, tensor)
        if extent.file == file.name
    ]
    for entry in read_archive(source.read, source.size).entries:
        stop = entry.data_at + entry.size
        expected.append(Expected(entry.data_at, stop, entry.crc.to_bytes(4)))
    return seal, expected


class _Crc:
    """A CRC-32 with the methods of a hasher."""

    def __init__(self) -> None:
        self._crc = 0

    def update(self, data: memoryview) -> None:
        self._crc = crc32(data, self._crc)

    def digest(self) -> bytes:
        return self._crc.to_bytes(4)


class _Checking:
    """Looks at the blocks of a file as they go by, in their order."""

    def __init__(self, expected: Iterable[Expected]) -> None:
        in_order = sorted(expected, key=lambda each: each.start)
        self._ahead = deque(each for each in in_order if each.start < each.stop)
        self._begun: list[tuple[Expected, _Crc | blake3]] = []
        self.damaged: list[str] = []

    def see(self, block: Bytes, start: int) -> None:
        """Take in the next block."""
        stop = start + block.size
        going_on = []
        for each, hasher in (*self._begun, *self._beginning(stop)):
            hasher.update(block[max(0, each.start - start) : each.stop - start].data)
            if each.stop > stop:
                going_on.append((each, hasher))
            elif hasher.digest() != each.digest:
                self.damaged.append(each.tensor)
        self._begun = going_on

    def _beginning(self, stop: int) -> Iterator[tuple[Expected, _Crc | blake3]]:
        while self._ahead and self._ahead[0].start < stop:
            each = self._ahead.popleft()
            yield each, blake3() if len(each.digest) == DIGEST else _Crc()
