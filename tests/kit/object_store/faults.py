"""What can go wrong between a client and an object store."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from tests.kit.object_store.messages import Request


@dataclass(frozen=True)
class HoldAnswer:
    """The request is served, and its answer comes so many seconds late."""

    seconds: float


@dataclass(frozen=True)
class DropRequest:
    """The connection breaks before the request reaches the server."""


@dataclass(frozen=True)
class DropAnswer:
    """The request is served, and the connection breaks before the answer."""


@dataclass(frozen=True)
class CutAnswer:
    """The connection breaks after so many bytes of the answer's body."""

    after: int


@dataclass(frozen=True)
class ReplaceInAnswer:
    """Bytes of the answer's body are others than the server's."""

    at: int
    data: bytes


@dataclass(frozen=True)
class Answer:
    """The proxy answers, and the server never hears of the request."""

    status: int
    body: bytes = b""
    headers: tuple[str, ...] = ()


@dataclass(frozen=True)
class Instead:
    """A function serves the request, of which it gets the body; the server never hears of it."""

    function: Callable[[Request, bytes], Answer]


@dataclass(frozen=True)
class Slow:
    """Bodies go so many bytes a second."""

    rate: int


@dataclass(frozen=True)
class Call:
    """A function is called before the request is passed on, or `late`: before the answer is."""

    function: Callable[[Request], object]
    late: bool = False


Fault = (
    HoldAnswer
    | DropRequest
    | DropAnswer
    | CutAnswer
    | ReplaceInAnswer
    | Answer
    | Instead
    | Slow
    | Call
)


class Rule:
    """Which requests a fault happens to; `fired` is set from the first of them on."""

    def __init__(
        self, fault: Fault, match: Callable[[Request], bool], times: int | None, skip: int
    ) -> None:
        self.fault = fault
        self.hits = 0
        self.fired = threading.Event()
        self._match = match
        self._times = times
        self._skip = skip
        self._lock = threading.Lock()

    def takes(self, request: Request) -> bool:
        """Whether the fault happens to this request, which counts."""
        if not self._match(request):
            return False
        with self._lock:
            if self._skip:
                self._skip -= 1
                return False
            if self._times is not None and self.hits >= self._times:
                return False
            self.hits += 1
        self.fired.set()
        return True
