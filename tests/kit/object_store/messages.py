"""HTTP/1.1 as it comes out of a socket: heads are kept byte for byte, bodies are streamed."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import parse_qsl, unquote, urlsplit

PIECE = 1 << 20
"""How many bytes of a body are held at once."""


class Disconnected(Exception):
    """The other side hung up in the middle of a message, or before one."""


@dataclass(frozen=True)
class Request:
    """What a client asked for; the path is decoded, the names of headers are in lower case."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str] = field(repr=False, compare=False)


@dataclass(frozen=True)
class Head:
    """The first line and the headers of a message."""

    raw: bytes
    first: list[str]
    headers: dict[str, str]

    @property
    def request(self) -> Request:
        method, target, _ = self.first
        url = urlsplit(target)
        query = dict(parse_qsl(url.query, keep_blank_values=True))
        return Request(method, unquote(url.path), query, self.headers)

    @property
    def status(self) -> int:
        return int(self.first[1])

    @property
    def chunked(self) -> bool:
        return self.headers.get("transfer-encoding", "").lower() == "chunked"

    @property
    def length(self) -> int | None:
        given = self.headers.get("content-length")
        return None if given is None else int(given)

    @property
    def last(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


class Reader:
    """Takes messages out of a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._ahead = bytearray()
        self._piece = memoryview(bytearray(PIECE))

    def head(self) -> Head:
        while (end := self._ahead.find(b"\r\n\r\n")) < 0:
            self._more()
        raw = self._take(end + 4)
        first, *lines = raw.decode("latin-1").rstrip("\r\n").split("\r\n")
        pairs = (line.partition(":") for line in lines)
        return Head(raw, first.split(" ", 2), {k.strip().lower(): v.strip() for k, _, v in pairs})

    def body(self, head: Head) -> Iterator[memoryview]:
        """Pieces of the body, each good until the next one is taken."""
        if not head.chunked:
            yield from self._exactly(head.length or 0)
            return
        while size := int(self._line().split(b";")[0], 16):
            yield from self._exactly(size)
            self._line()
        while self._line():
            pass

    def _exactly(self, size: int) -> Iterator[memoryview]:
        if self._ahead and size:
            ahead = self._take(min(size, len(self._ahead)))
            size -= len(ahead)
            yield memoryview(ahead)
        while size:
            count = self._connection.recv_into(self._piece, min(size, PIECE))
            if not count:
                raise Disconnected
            size -= count
            yield self._piece[:count]

    def _line(self) -> bytes:
        while (end := self._ahead.find(b"\r\n")) < 0:
            self._more()
        return self._take(end + 2)[:-2]

    def _more(self) -> None:
        received = self._connection.recv(1 << 16)
        if not received:
            raise Disconnected
        self._ahead += received

    def _take(self, count: int) -> bytes:
        taken = bytes(self._ahead[:count])
        del self._ahead[:count]
        return taken
