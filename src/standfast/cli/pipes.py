"""Output that nobody reads any more ends this process, as it ends any program.

`head`, for one, leaves when it has seen enough. The signal for that, SIGPIPE, cannot be used: it
would also end us when a browser, a server or a process of ours leaves.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


def end_with_readers() -> None:
    """Have this process end when it prints and nobody reads."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper) and not stream.isatty():
            setattr(sys, name, _ending(stream))


def _ending(stream: io.TextIOWrapper) -> io.TextIOWrapper:
    raw = _Output(stream.fileno(), "w", closefd=False)
    return io.TextIOWrapper(
        # As Python does it: with PYTHONUNBUFFERED there is nothing in between.
        raw if stream.write_through else io.BufferedWriter(raw),
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class _Output(io.FileIO):
    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data)
        except BrokenPipeError:
            os._exit(128 + signal.SIGPIPE)
