"""Bounds of time and memory, for code that reads what an enemy wrote."""

import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from standfast.errors import StandfastError


class TookTooLong(BaseException):
    """The time was up. No Exception, so that no handler of the code under test swallows it."""


@contextmanager
def alarm_clock(
    number: signal.Signals = signal.SIGALRM, timer: int = signal.ITIMER_REAL
) -> Iterator[Callable[[float], object]]:
    """Gives a function that starts the clock: so many seconds later, TookTooLong is raised.

    Zero stops it. It works on the main thread alone.
    """

    def stop(number: int, frame: FrameType | None) -> None:
        raise TookTooLong("the time was up")

    before = signal.signal(number, stop)
    try:
        yield lambda seconds: signal.setitimer(timer, seconds)
    finally:
        signal.setitimer(timer, 0)
        signal.signal(number, before)


@contextmanager
def processor_limit(seconds: float) -> Iterator[None]:
    """Raise TookTooLong after so much processor time, however busy the machine is."""
    with alarm_clock(signal.SIGPROF, signal.ITIMER_PROF) as start:
        start(seconds)
        yield


@contextmanager
def memory_limit(more: int) -> Iterator[None]:
    """Let allocations fail with a MemoryError beyond `more` bytes above what is mapped now.

    It bounds the addresses, so it finds an array that was allocated and never touched too.
    Where the system does not tell what is mapped, there is no bound.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
    except FileNotFoundError:
        yield
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def refusal_of(
    read: Callable[[], object], size: int, traced: bool = True, tries: int = 2
) -> StandfastError | None:
    """How a file of this size is refused, with bounds for the time and memory that may take."""
    refused = None
    if traced:
        tracemalloc.start()
    try:
        with memory_limit((64 << 20) + 250 * size), processor_limit(2 + size / 500_000):
            read()
    except StandfastError as error:
        refused = error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    if peak < (1 << 20) + 128 * size:
        return refused
    assert tries > 1, f"it takes {peak:,} bytes"
    # A table of the interpreter grew meanwhile, such as that of interned strings.
    return refusal_of(read, size, traced, tries - 1)


def peak_memory() -> int:
    """The most memory, in bytes, that this process ever held at once."""
    # Linux counts in KiB, macOS in bytes; a bound that is 1024 times too wide still bounds.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
