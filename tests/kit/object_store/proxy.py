"""A proxy before an object store, which counts what goes through and does harm on request."""

from __future__ import annotations

import select
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from http import HTTPStatus
from typing import Self

from tests.kit.object_store.faults import (
    Answer,
    Call,
    CutAnswer,
    DropAnswer,
    DropRequest,
    Fault,
    HoldAnswer,
    Instead,
    ReplaceInAnswer,
    Rule,
    Slow,
)
from tests.kit.object_store.messages import Disconnected, Head, Reader, Request

HOST = "127.0.0.1"
TICK = 0.05
"""Seconds between two pieces of a slow body."""


class Proxy:
    """Passes requests on to a port of this machine; each client has a thread.

    Heads go through unchanged, since the client has signed them. Bodies are counted without
    their framing, and before the client can know that they have arrived.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        self.log: list[Request] = []
        self.up = 0
        self.down = 0
        self._rules: list[Rule] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server((HOST, 0), backlog=256)

    @property
    def endpoint(self) -> str:
        """The value for AWS_ENDPOINT_URL."""
        return f"http://{HOST}:{self._listener.getsockname()[1]}"

    @property
    def requests(self) -> Counter[str]:
        """How many there were, by their methods."""
        with self._lock:
            return Counter(request.method for request in self.log)

    def reset(self) -> None:
        """Count from nothing again; the rules stay."""
        with self._lock:
            self.log.clear()
            self.up = self.down = 0

    def rule(
        self,
        fault: Fault,
        match: Callable[[Request], bool] = lambda request: True,
        times: int | None = 1,
        skip: int = 0,
    ) -> Rule:
        """Do harm to the requests that match: to so many (None: all), after so many others.

        Of two rules for one request, the earlier one counts.
        """
        made = Rule(fault, match, times, skip)
        with self._lock:
            self._rules.append(made)
        return made

    def heal(self) -> None:
        """Forget the rules."""
        with self._lock:
            self._rules.clear()

    def __enter__(self) -> Self:
        self._spawn(self._accept)
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        with self._lock:
            sockets = [self._listener, *self._sockets]
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()

    def _spawn(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with suppress(OSError):
            while not self._closed.is_set():
                self._spawn(self._serve, self._listener.accept()[0])

    def _serve(self, accepted: socket.socket) -> None:
        """All requests of a client, until it or a fault hangs up."""
        with ExitStack() as stack, suppress(Disconnected, OSError):
            client = stack.enter_context(Side(self, accepted))
            server: Side | None = None
            while True:
                head = client.reader.head()
                fault = self._fault(head.request)
                self._harm_request(fault, head.request)
                if isinstance(fault, Answer | Instead):
                    body = b"".join(map(bytes, self._up(client, head, fault)))
                    if isinstance(fault, Instead):
                        fault = fault.function(head.request, body)
                    client.answer(fault)
                    continue
                if server is None or server.gone():
                    connection = socket.create_connection((HOST, self.target))
                    server = stack.enter_context(Side(self, connection))
                server.send_request(head, self._up(client, head, fault))
                answer = server.reader.head()
                self._harm_answer(fault, head.request)
                client.send_answer(answer, self._down(server, head.request, answer, fault))
                if head.last or answer.last:
                    return

    def _harm_request(self, fault: Fault | None, request: Request) -> None:
        if isinstance(fault, DropRequest):
            raise Disconnected
        if isinstance(fault, Call) and not fault.late:
            fault.function(request)

    def _harm_answer(self, fault: Fault | None, request: Request) -> None:
        if isinstance(fault, DropAnswer):
            raise Disconnected
        if isinstance(fault, HoldAnswer):
            self.wait(fault.seconds)
        if isinstance(fault, Call) and fault.late:
            fault.function(request)

    def _fault(self, request: Request) -> Fault | None:
        with self._lock:
            self.log.append(request)
            rules = list(self._rules)
        return next((rule.fault for rule in rules if rule.takes(request)), None)

    def _up(self, client: Side, head: Head, fault: Fault | None) -> Iterator[memoryview]:
        for piece in self._paced(client.reader.body(head), fault):
            self.count(up=len(piece))
            yield piece

    def _down(
        self, server: Side, request: Request, head: Head, fault: Fault | None
    ) -> Iterator[memoryview]:
        if request.method == "HEAD" or head.status in (204, 304):
            return
        at = 0
        for piece in self._paced(server.reader.body(head), fault):
            if isinstance(fault, CutAnswer):
                piece = piece[: fault.after - at]
            if isinstance(fault, ReplaceInAnswer):
                piece = _replaced(piece, fault.at - at, fault.data)
            at += len(piece)
            self.count(down=len(piece))
            yield piece
            if isinstance(fault, CutAnswer) and at == fault.after:
                raise Disconnected

    def _paced(self, pieces: Iterable[memoryview], fault: Fault | None) -> Iterator[memoryview]:
        if not isinstance(fault, Slow):
            yield from pieces
            return
        step = max(1, int(fault.rate * TICK))
        for piece in pieces:
            for start in range(0, len(piece), step):
                yield piece[start : start + step]
                self.wait(TICK)

    def count(self, up: int = 0, down: int = 0) -> None:
        """Add to what was carried."""
        with self._lock:
            self.up += up
            self.down += down

    def wait(self, seconds: float) -> None:
        """Sleep, but no longer than the proxy lives."""
        if self._closed.wait(seconds):
            raise Disconnected

    def opened(self, connection: socket.socket) -> None:
        """Have a socket shut down when the proxy ends."""
        with self._lock:
            self._sockets.add(connection)
        if self._closed.is_set():
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def closed(self, connection: socket.socket) -> None:
        """Forget a socket."""
        with self._lock:
            self._sockets.discard(connection)


class Side:
    """One of the two connections that the proxy stands between."""

    def __init__(self, proxy: Proxy, connection: socket.socket) -> None:
        self._proxy = proxy
        self._connection = connection
        self.reader = Reader(connection)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        proxy.opened(connection)

    def gone(self) -> bool:
        """Whether the other side hung up; between two messages nothing else can come."""
        return bool(select.select([self._connection], [], [], 0)[0])

    def send_request(self, head: Head, pieces: Iterable[memoryview]) -> None:
        """Pass on a request; a server that answers early need not take all of it."""
        listens = True
        try:
            self._connection.sendall(head.raw)
        except OSError:
            listens = False
        for piece in _framed(head, pieces):
            if listens:
                try:
                    self._connection.sendall(piece)
                except OSError:
                    listens = False

    def send_answer(self, head: Head, pieces: Iterable[memoryview]) -> None:
        """Pass on an answer."""
        self._connection.sendall(head.raw)
        for piece in _framed(head, pieces):
            self._connection.sendall(piece)

    def answer(self, fault: Answer) -> None:
        """Answer in the server's place."""
        first = f"HTTP/1.1 {fault.status} {HTTPStatus(fault.status).phrase}"
        lines = [first, f"Content-Length: {len(fault.body)}", *fault.headers]
        head = "\r\n".join(lines) + "\r\n\r\n"
        self._proxy.count(down=len(fault.body))
        self._connection.sendall(head.encode() + fault.body)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._proxy.closed(self._connection)
        self._connection.close()


def _framed(head: Head, pieces: Iterable[memoryview]) -> Iterator[memoryview | bytes]:
    if not head.chunked:
        yield from pieces
        return
    for piece in pieces:
        if piece:  # an empty one would be the end
            yield b"%x\r\n" % len(piece)
            yield piece
            yield b"\r\n"
    yield b"0\r\n\r\n"


def _replaced(piece: memoryview, at: int, data: bytes) -> memoryview:
    """The piece with data at an offset from its beginning, so far as it covers that."""
    first, last = max(0, at), min(len(piece), at + len(data))
    if first >= last:
        return piece
    changed = bytearray(piece)
    changed[first:last] = data[first - at : last - at]
    return memoryview(changed)
