"""The header and the sections of a `.sunc` checkpoint, out of a file or off a stream.

Both give a section as bytes in memory of its own, which begins where arrays may begin.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, BinaryIO, Final, Literal, Protocol

import numpy as np

from standfast.amr.mesh.frontends import GaugeFrontend
from standfast.errors import (
    BadHeader,
    BadOption,
    DamagedFile,
    IncompatibleCheckpoint,
    NothingToVerify,
    TruncatedFile,
    UnsupportedFile,
)
from standfast.files.input.stream import read_some
from standfast.formats.sunc import file as sunc
from standfast.formats.sunc.header import (
    LINK,
    LINK_SIZE,
    PLACES,
    SIZE,
    Header,
    check_link_header,
    links_spec,
    payload_specs,
)
from standfast.tensorfile.open import TensorFile
from standfast.tensors.sources import Bytes

_PIECE: Final = 16 << 20
"""Memory grows by what has arrived, never by what a header claims will."""


class Sections(Protocol):
    """A checkpoint that is being read: its sections are asked for in the order of the file."""

    @property
    def where(self) -> str:
        """What it is read from, for messages."""
        ...

    @property
    def header(self) -> Header:
        """What it says of itself."""
        ...

    def section(self, name: str) -> Bytes:
        """All bytes of a section of the payload."""
        ...

    def links(self, frontend: GaugeFrontend) -> Bytes:
        """All bytes of the links; raises IncompatibleCheckpoint if there are none of its group."""
        ...


class FileSections(AbstractContextManager["FileSections"]):
    """A file, open until the `with` ends.

    What it holds is verified against its digests. `verify="require"` raises NothingToVerify if
    there are none, `verify=False` does not look.
    """

    def __init__(
        self, path: str | os.PathLike[str], verify: bool | Literal["require"] = True
    ) -> None:
        if not isinstance(verify, bool) and verify != "require":
            raise BadOption(f'verify={verify!r}: expected True, False or "require"')
        # Not mapped: the header has 92 bytes, so that no number would be aligned in a mapping.
        self._file = TensorFile(path_of(path), mapped=False, writable=True, verify=bool(verify))
        self.where = self._file.path
        try:
            if self._file.format != sunc.NAME:
                raise BadHeader(
                    f"{self.where}: expected a {sunc.NAME} file, found a {self._file.format} file"
                )
            if verify == "require" and not self._file.has_digests:
                raise NothingToVerify(
                    f"{self.where} holds no digests: write it with extras=True, or read it with "
                    "verify=True, which checks what there is"
                )
        except BaseException:
            self._file.close()
            raise
        metadata = self._file.metadata
        self.header = Header(**{name: metadata[name] for name in PLACES})

    def __exit__(self, *error: object) -> None:
        self._file.close()

    @property
    def rest(self) -> str | None:
        """What follows the payload: `links`, an `extension` of another program, or nothing."""
        return next((name for name in ("links", "extension") if name in self._file), None)

    def section(self, name: str) -> Bytes:
        """All bytes of a section of the payload."""
        return self._file.data(name)

    def links(self, frontend: GaugeFrontend) -> Bytes:
        """All bytes of the links, of which the file tells the group."""
        if self.rest != "links":
            raise _no_links("something else" if self.rest else "nothing")
        group = self._file.spec("links").shape[-1]
        if group != frontend.n_gauge and self.header.blocks_len:
            raise IncompatibleCheckpoint(
                f"links: expected matrices of {frontend.n_gauge} × {frontend.n_gauge} by the "
                f"frontend's n_gauge, found {group} × {group}"
            )
        return self._file.data("links")


class StreamSections:
    """A stream, which is read exactly as far as is asked for."""

    where = "the stream"

    def __init__(self, stream: BinaryIO) -> None:
        check_stream(stream, "read")
        self._stream = stream
        self._offset = 0
        with naming(self.where):
            self.header = Header.parse(bytes(self._take(SIZE, "header")))
        self._specs = payload_specs(self.header)

    def section(self, name: str) -> Bytes:
        """All bytes of a section of the payload."""
        return np.frombuffer(self._take(self._specs[name].nbytes, f"section {name!r}"), np.uint8)

    def links(self, frontend: GaugeFrontend) -> Bytes:
        """All bytes of the links, of which only the caller knows the group."""
        begin = self._offset
        tag = self._up_to(len(LINK))
        if tag != LINK:
            if tag and LINK.startswith(tag):
                raise self._ended(LINK_SIZE, len(tag), "LINK header")
            raise _no_links(repr(bytes(tag)) if tag else "nothing")
        rest = self._take(LINK_SIZE - len(LINK), "LINK header")
        check_link_header(bytes(tag + rest), self.header, begin)
        size = links_spec(self.header, frontend.n_gauge).nbytes
        return np.frombuffer(self._take(size, "section 'links'"), np.uint8)

    def _take(self, length: int, what: str) -> bytearray:
        """The next bytes; raises TruncatedFile if the stream ends before."""
        data = self._up_to(length)
        if len(data) < length:
            raise self._ended(length, len(data), what)
        return data

    def _up_to(self, length: int) -> bytearray:
        """The next bytes, as many as come."""
        data = bytearray()
        while len(data) < length:
            piece = read_some(self._stream, min(_PIECE, length - len(data)))
            if not piece:
                break
            data += piece
        self._offset += len(data)
        return data

    def _ended(self, length: int, found: int, what: str) -> TruncatedFile:
        return TruncatedFile(
            f"{what} (offset {self._offset - found:,}): {length:,} bytes expected, but the stream "
            f"ended after {found:,}"
        )


def check_stream(stream: Any, method: Literal["read", "write"]) -> None:
    """Raise BadOption for what is not a stream, a path above all."""
    if not hasattr(stream, method):
        files = {
            "read": "read_from_file or read_checkpoint_from_file",
            "write": "write_to_file or write_checkpoint_to_file",
        }
        raise BadOption(
            f"a {type(stream).__name__} is not a stream: open the file, or call the function for "
            f"paths, {files[method]}"
        )


def path_of(path: Any) -> str:
    """A path as text; raises BadOption for a stream, and all else that is not a path."""
    if not isinstance(path, str | os.PathLike):
        raise BadOption(
            f"a {type(path).__name__} is not a path: a stream is for read and write, or "
            "read_checkpoint and write_checkpoint"
        )
    return os.fspath(path)


def _no_links(found: str) -> IncompatibleCheckpoint:
    return IncompatibleCheckpoint(
        f"links: expected a LINK section behind the payload, found {found}; a TreeCheckpoint reads "
        "trees without links"
    )


@contextmanager
def naming(where: str) -> Iterator[None]:
    """Whatever is wrong with a checkpoint in here, the message says which one it is."""
    try:
        yield
    except (DamagedFile, UnsupportedFile, IncompatibleCheckpoint) as error:
        if not str(error).startswith(f"{where}: "):
            error.args = (f"{where}: {error}", *error.args[1:])
        raise
