"""A rank's share of a checkpoint: its data files, durable and named, and a record of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import msgspec

from standfast.files.digests import digest_all
from standfast.store.save.saving import Assembler, Task
from standfast.store.schema.record import encode
from standfast.tensors import Source


class Share(msgspec.Struct, frozen=True):
    """What a rank hands over to the one that commits, with all that it has placed."""

    record: bytes
    new: list[str]
    """The data files that were made for it."""
    placed: list[str]
    """All that is taken back if the checkpoint does not come to be."""
    compared: bytes = b""
    """The digests of all chunks of what another rank writes, which must have the same."""


def write_share(
    assembler: Assembler,
    task: Task,
    compared: Sequence[Source] = (),
    check: Callable[[], None] = lambda: None,
) -> Share:
    """Write what the store does not hold of a rank's part; what fails leaves nothing behind.

    `check` is called when all of it is written, before it is given its names.
    """
    placed: list[str] = []
    with ExitStack() as stack:
        try:
            draft = assembler.draft(task, stack)
            written = assembler.write(draft, stack)
            record = assembler.record(draft, written)
            digests = digest_all(compared) if compared else b""
            check()
            assembler.place(draft, written, placed)
        except BaseException:
            assembler.take_back(placed)
            raise
    new = [file.name for file, _ in written.new]
    return Share(encode(record), new, placed, digests)
