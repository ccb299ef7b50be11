"""The data files of a checkpoint: what the store does not hold is written, the rest referred to.

Threads hash all tensors in the order of the files. As soon as a chunk's digest is known it is
looked up; if it is new, it goes into the ring of the file that is being written.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

from standfast.files.digests import (
    DIGEST,
    Chunk,
    Digesting,
    digests_in_order,
    worker_count,
)
from standfast.files.threads import Threads
from standfast.files.writer import write_growing
from standfast.formats.safetensors.growing_file import Growing
from standfast.store.backends.backend import Backend, NewFile
from standfast.store.save.known import SMALL, Known
from standfast.store.save.planning import Plan, PlannedFile, PlannedTensor
from standfast.store.schema import names
from standfast.store.schema.extents import Extent, append
from standfast.store.schema.headers import seal_in
from standfast.store.schema.record import DataFile
from standfast.tensors import Source

_FEW: Final = 4 << 20
"""Less than this is hashed by the caller alone."""


def new_token() -> str:
    """What tells the data files of one save from those of all others."""
    return os.urandom(4).hex()


class Piece(NamedTuple):
    """A chunk and its digest."""

    start: int
    stop: int
    digest: bytes


class Written:
    """What a checkpoint consists of, once its data files are durable; they have no names yet."""

    def __init__(self) -> None:
        self.extents: dict[int, list[Extent]] = {}
        """Of each tensor that is no view."""
        self.digests: dict[int, bytes] = {}
        self.new: list[tuple[DataFile, NewFile]] = []


def write_data(
    backend: Backend,
    run: str,
    step: int,
    token: str,
    plan: Plan,
    known: Known,
    stack: ExitStack,
) -> Written:
    """Write what is new; the new files are discarded with the stack, unless they are placed."""
    return _Writer(backend, run, step, token, plan, known, stack).write()


def bytes_needed(plan: Plan, known: Known) -> int:
    """How many bytes the data files of a save would take; hashes everything to find out."""
    writer = _Writer(None, "", 0, "", plan, known, ExitStack())
    needed = 0
    with Threads(worker_count(spare=1)) as pool:
        chunks = writer.digested(pool)
        for file in plan.files:
            growing = writer.growing(file)
            fresh = sum(stop - start for _, start, stop in writer.pieces(file, "", growing, chunks))
            needed += growing.room + fresh if fresh else 0
    return needed


class _Writer:
    def __init__(
        self,
        backend: Backend | None,
        run: str,
        step: int,
        token: str,
        plan: Plan,
        known: Known,
        stack: ExitStack,
    ) -> None:
        self._backend = backend
        self._run = run
        self._step = step
        self._plan = plan
        self._known = known
        self._stack = stack
        self._token = token
        self._written = Written()

    def write(self) -> Written:
        if self._plan.most < _FEW:  # to start threads would take longer
            self._write_all(self._pieces_of(digests_in_order(self._sources())))
            return self._written
        with Threads(worker_count()) as pool:
            try:
                self._write_all(self.digested(pool))
            except BaseException:
                pool.shutdown(cancel=True)
                raise
        return self._written

    def _write_all(self, chunks: Iterator[Piece]) -> None:
        for file in self._plan.files:
            self._write_file(file, chunks)

    def _sources(self) -> list[Source]:
        tensors = self._plan.tensors
        numbers = (number for file in self._plan.files for number in file.tensors)
        return [source for number in numbers if (source := tensors[number].source)]

    def digested(self, pool: Threads) -> Iterator[Piece]:
        """All chunks of all tensors, in the order of the files."""
        return self._pieces_of(Digesting(self._sources(), pool).in_order())

    @staticmethod
    def _pieces_of(batches: Iterator[tuple[list[Chunk], bytes]]) -> Iterator[Piece]:
        for batch, digests in batches:
            for i, chunk in enumerate(batch):
                yield Piece(chunk.start, chunk.stop, digests[i * DIGEST : (i + 1) * DIGEST])

    def growing(self, file: PlannedFile) -> Growing:
        """The header of a file, before anything is known to be in it."""
        tensors = [self._plan.tensors[number] for number in file.tensors]
        longest = self._metadata(file, left_out=len(tensors), longest=True)
        return Growing([(t.entry, t.spec, t.nbytes) for t in tensors], longest)

    def _metadata(self, file: PlannedFile, left_out: int, longest: bool = False) -> dict[str, Any]:
        checkpoint = f"{self._run}@{self._step}"
        metadata: dict[str, Any] = {"checkpoint": checkpoint, "part": file.label}
        if file.shared:
            metadata["shared"] = dict(file.shared)
        if left_out or longest:
            metadata["left_out"] = (
                f"{left_out} of {len(file.tensors)} tensors are not in this file, or not whole, "
                f"because the store holds them already: `standfast export {checkpoint}` gives all"
            )
        return metadata

    def _write_file(self, file: PlannedFile, chunks: Iterator[Piece]) -> None:
        growing = self.growing(file)
        name = names.data_file(self._run, self._step, self._token, file.label)
        head = b""

        def make_head() -> bytes:
            nonlocal head
            left_out = sum(
                any(extent.file != name for extent in self._written.extents[number])
                for number in file.tensors
            )
            head = growing.head(self._metadata(file, left_out))
            return head

        def begin() -> NewFile:
            assert self._backend is not None
            path = f"{names.run_folder(self._run)}/{name}"
            return self._stack.enter_context(self._backend.new(path))

        most = growing.room + sum(self._plan.tensors[n].nbytes for n in file.tensors)
        pieces = self.pieces(file, name, growing, chunks)
        in_order = self._backend is not None and self._backend.in_order
        new = write_growing(begin, growing.room, pieces, make_head, most, in_order)
        if new is not None:
            held = growing.size - growing.room
            file_of = DataFile(name, growing.size, seal_in(head), held, held)
            self._written.new.append((file_of, new))

    def pieces(
        self, file: PlannedFile, name: str, growing: Growing, chunks: Iterator[Piece]
    ) -> Iterator[tuple[Source, int, int]]:
        """The chunks of a file that must be written; of all chunks it is noted where they lie."""
        end = growing.room
        for number in file.tensors:
            tensor = self._plan.tensors[number]
            assert tensor.source is not None
            if tensor.nbytes < SMALL:
                start, stop, digest = next(chunks)
                self._written.extents[number] = [Extent(name, end, stop)] if stop else []
                self._written.digests[number] = digest
                growing.add(tensor.entry, tensor.spec, stop, digest)
                end += stop
                yield tensor.source, start, stop
                continue
            extents = self._written.extents[number] = []
            digests: list[bytes] = []
            stretches: list[list[Piece]] = []
            goes_on = False
            for start, stop, digest in _of_tensor(chunks, tensor.nbytes):
                digests.append(digest)
                extent = self._known.find(digest, stop - start)
                if extent is None:
                    extent = Extent(name, end, stop - start)
                    end += stop - start
                    self._known.add(digest, extent)
                    if not goes_on:
                        stretches.append([])
                    stretches[-1].append(Piece(start, stop, digest))
                    yield tensor.source, start, stop
                    goes_on = True
                else:
                    goes_on = False
                append(extents, extent)
            self._written.digests[number] = b"".join(digests)
            _enter(growing, tensor, stretches, len(digests))


def _of_tensor(chunks: Iterator[Piece], size: int) -> Iterator[Piece]:
    """The chunks of the next tensor."""
    for piece in chunks:
        yield piece
        if piece.stop == size:
            return


def _enter(
    growing: Growing, tensor: PlannedTensor, stretches: list[list[Piece]], chunks: int
) -> None:
    """Let the header have what was written of a tensor."""
    for stretch in stretches:
        digests = b"".join(piece.digest for piece in stretch)
        if len(stretch) == chunks:
            growing.add(tensor.entry, tensor.spec, tensor.nbytes, digests)
        else:
            growing.add_stretch(tensor.entry, stretch[0].start, stretch[-1].stop, digests)
