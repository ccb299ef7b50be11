"""Ranks of torch.distributed: a program that torchrun started, whatever its groups go by.

What gloo does, and this file lives with (tests/parallel/programs/torch_checks.py shows it):

- Only a wait tells whether a transfer is done, and nothing ends a wait. So a header is looked for
  in the memory it will come to, and waited for once it is there; for one that does not come, a
  thread waits, which sees at once if its sender dies.
- A wait that times out closes all connections of the group. So none is let to, until this rank
  gives up and has told the others; then one is, on purpose.
- A message that is longer than the memory for it ends the process. So each has a length that the
  receiver knows.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeAlias
from weakref import WeakSet

from standfast.errors import OutOfMemory
from standfast.files.threads import Task, Thread
from standfast.parallel.calls import Call
from standfast.parallel.communicator import TIMEOUT, Communicator, timeout_refusal
from standfast.parallel.gloo import (
    BEFORE_START,
    Meeting,
    taken_group,
    torch_distributed,
    wait_of,
)
from standfast.parallel.last_message import FAREWELL_BYTES, Farewell
from standfast.parallel.wire import FAREWELLS, HEADERS, TradingRanks, pauses

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

TorchGroup: TypeAlias = "ProcessGroup"
"""For whoever names the type without importing torch."""

PIECE = 1 << 30
"""How many bytes one message carries at most."""

LONGEST_PAUSE: Final = 0.01

PATIENCE: Final = 0.1
"""After how many seconds a thread waits for each header that has not come."""

TELLING: Final = 1.0
"""How many seconds a last message may take."""

HANGING_UP: Final = 4
"""A tag that nobody sends by."""

NAMES: Final[Counter[str]] = Counter()
"""How many communicators this process has made of the group of each name.

It goes on when groups are destroyed and made again: torch gives them the same names then, and the
store by which they meet may be the same too.
"""

_CONNECTED: Final[WeakSet[TorchRanks]] = WeakSet()


class TorchRanks(TradingRanks):
    """The ranks of a process group of torch.distributed; see `Communicator`. Collective to make.

    None stands for all ranks of the program.
    """

    carrier = "gloo"

    is_thread_safe = True
    """Whether it may be used beside other threads that use other groups. Not collective."""

    def __init__(self, group: TorchGroup | None = None, timeout: float = TIMEOUT) -> None:
        super().__init__(timeout)
        taken = taken_group(group)
        NAMES[taken.group_name] += 1
        name = f"{taken.group_name}/{NAMES[taken.group_name]}"
        self._connect(name, taken.rank(), taken.size())

    def _connect(self, name: str, rank: int, size: int) -> None:
        self._name, self.rank, self.size = name, rank, size
        self._underway: list[tuple[int, Any, Any]] = []  # the rank, what it waits for, its memory
        self._headers: dict[int, tuple[bytearray, Any]] = {}
        self._watchers: dict[int, tuple[Task[Any], Thread]] = {}
        """What waits for the header of a rank, beside the thread that makes the call."""
        meeting = Meeting(name, rank, size, self.timeout)
        self._gloo = meeting.connected()
        _CONNECTED.add(self)
        self._farewells: dict[int, tuple[bytearray, Any]] = {}
        for other in self._others():
            message = bytearray(FAREWELL_BYTES)
            with self._talking_to(other):
                work = self._gloo.recv([_tensor(message)], other, FAREWELLS)
            self._farewells[other] = (message, work)
        meeting.end()

    def _another(self, timeout: float) -> Communicator:
        other = TorchRanks.__new__(TorchRanks)
        TradingRanks.__init__(other, timeout)
        other._connect(f"{self._name}.{self._calls}", self.rank, self.size)
        return other

    def _no_duplicate(self, timeout: float) -> str | None:
        return timeout_refusal(timeout) or (BEFORE_START if torch_distributed() is None else None)

    def _release(self) -> None:
        self._farewells = {rank: (message, None) for rank, (message, _) in self._farewells.items()}
        self._gloo = None
        self._farewells = {}  # only now: gloo might have written into them

    def _receive(self, rank: int, buffer: bytearray, tag: int) -> None:
        for piece in _pieces(buffer):
            with self._talking_to(rank):
                work = self._gloo.recv([piece], rank, tag)
            if tag == HEADERS:
                self._headers[rank] = (buffer, work)
            else:
                self._underway.append((rank, work, piece))

    def _send(self, rank: int, data: bytes, tag: int) -> None:
        for piece in _pieces(data):
            with self._talking_to(rank):
                work = self._gloo.send([piece], rank, tag)
            self._underway.append((rank, work, (data, piece)))

    def _complete(self, call: Call, deadline: float) -> None:
        self._await_headers(call, deadline)
        for rank, work, _ in self._underway:
            with self._talking_to(rank, call, deadline):
                work.wait(wait_of(deadline - time.monotonic()))
        self._underway.clear()

    def _await_headers(self, call: Call, deadline: float) -> None:
        """Wait until all ranks have come, or one is lost, or the deadline has come."""
        patience = time.monotonic() + PATIENCE
        for _ in pauses(deadline, LONGEST_PAUSE):
            self._take_headers()
            if not self._headers:
                return
            self._listen_for_farewells()
            if time.monotonic() > patience:
                self._watch(deadline)
        self._take_headers()
        if self._headers:
            raise self._missing(sorted(self._headers), call)

    def _take_headers(self) -> None:
        """Strike out the ranks whose headers have come; raises RankLost for those that died."""
        for rank, (buffer, work) in list(self._headers.items()):
            waiting, _ = self._watchers.get(rank, (None, None))
            if waiting is None and buffer[0]:  # the kind of the call, which is never 0
                self._underway.append((rank, work, buffer))
            elif waiting is None or not waiting.done():
                continue
            else:
                with self._talking_to(rank):
                    waiting.result()
            self._watchers.pop(rank, None)
            del self._headers[rank]

    def _watch(self, deadline: float) -> None:
        """Have a thread wait for each rank that has not come."""
        for rank, (_, work) in self._headers.items():
            if rank not in self._watchers:
                # Longer than we wait ourselves: its timeout would close the connections.
                seconds = deadline - time.monotonic() + 10 * TELLING
                waiting = Task(work.wait, wait_of(seconds))
                with suppress(OutOfMemory):  # then the deadline alone ends the wait
                    self._watchers[rank] = waiting, Thread(waiting.attempt)

    def _listen_for_farewells(self) -> None:
        """Raise what another rank said if it has given up."""
        for message, work in self._farewells.values():
            if message[0]:
                with suppress(RuntimeError):
                    work.wait(wait_of(TELLING))
                heard = bytes(message)
                self._bid_farewell(heard)  # whoever waits for this rank hears the reason too
                self._raise_heard(Farewell.read(heard))

    def _bid_farewell(self, farewell: bytes) -> None:
        works = []
        for rank in self._others():
            with suppress(RuntimeError):  # of a rank that is lost
                works.append(self._gloo.send([_tensor(farewell)], rank, FAREWELLS))
        for work in works:
            with suppress(RuntimeError):
                work.wait(wait_of(TELLING))
        self._hang_up()

    def _hang_up(self) -> None:
        """Close all connections, which ends the threads that wait for something by them."""
        memory = bytearray(1)
        for rank in self._others():
            with suppress(RuntimeError):  # the first that still stands times out, and that is it
                self._gloo.recv([_tensor(memory)], rank, HANGING_UP).wait(wait_of(0.0))
        for _, thread in list(self._watchers.values()):
            thread.join(TELLING)
        self._underway.clear()

    @contextmanager
    def _talking_to(
        self, rank: int, call: Call | None = None, deadline: float | None = None
    ) -> Iterator[None]:
        """Whatever gloo raises is of this rank: it died, or did not come in time."""
        try:
            yield
        except RuntimeError as error:
            if call is not None and deadline is not None and time.monotonic() >= deadline:
                raise self._missing([rank], call) from error
            self._raise_gone(rank, error)

    def _raise_gone(self, rank: int, error: BaseException) -> NoReturn:
        self._listen_for_farewells()
        what = f"rank {rank} of {self.size} has closed its connection: it has ended, or was ended"
        raise self._lost(what) from error


def _end_waits() -> None:
    """End the calls that other threads are in: Python aborts if a wait outlives it."""
    for ranks in list(_CONNECTED):
        if ranks._watchers and ranks._process == os.getpid():
            ranks._hang_up()


atexit.register(_end_waits)


def _tensor(memory: bytes | bytearray) -> Any:
    """A tensor of torch over this memory, which must stay for as long as the tensor is used."""
    torch: Any = sys.modules["torch"]
    if isinstance(memory, bytes):
        # torch warns of memory that cannot be written to, though it is only read.
        address = ctypes.cast(ctypes.c_char_p(memory), ctypes.c_void_p).value
        assert address is not None
        return torch.frombuffer(
            (ctypes.c_ubyte * len(memory)).from_address(address), dtype=torch.uint8
        )
    return torch.frombuffer(memory, dtype=torch.uint8)


def _pieces(memory: bytes | bytearray) -> tuple[Any, ...]:
    return tuple(_tensor(memory).split(PIECE)) if memory else ()
