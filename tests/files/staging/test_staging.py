"""Staging: copies that are whole, memory that is taken once, and threads that end in time."""

from __future__ import annotations

import errno
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import errors
from standfast.files.staging import host_copies
from standfast.files.staging import staging as staging_module
from standfast.files.staging.staging import SharedStaging, Staged
from standfast.tensors import Source, TensorSpec, source_of
from standfast.tensors.sources import ALIGNMENT, Bytes

MIB = 1 << 20


@pytest.fixture
def staging() -> Iterator[SharedStaging]:
    staging = SharedStaging()
    yield staging
    staging.close()


def tensors() -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return [
        random.random((40, 1000)),
        np.empty((0, 3), np.float32),
        np.array(7, ">i4"),
        random.integers(0, 255, 40 * MIB + 3, np.uint8),  # of several chunks
        random.random((1200, 900))[::2, ::-3],
        random.random(1000).astype(np.float16),
    ]


def sources(arrays: list[np.ndarray[Any, Any]]) -> list[Source]:
    return [source_of(array) for array in arrays]


def content(copies: list[Source]) -> list[bytes]:
    return [memory.tobytes() for copy in copies if (memory := copy.contiguous()) is not None]


def little(arrays: list[np.ndarray[Any, Any]]) -> list[bytes]:
    return [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays]


def mappings(file: int) -> int:
    """How often this process has mapped the staging that is this file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("standfast-staging" in line and line.split()[4] == str(file) for line in lines)


def touched(staging: SharedStaging) -> int:
    return os.fstat(staging.fileno()).st_blocks * 512


class Slow:
    """A source that says when it is read, and takes its time."""

    sequential = False

    def __init__(self, size: int, during: Callable[[], None]) -> None:
        self.spec = TensorSpec("uint8", (size,))
        self._during = during

    def contiguous(self) -> None:
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        self._during()
        out[:] = 1


@pytest.mark.parametrize("processors", [1, 2, 4])
def test_copies_are_the_tensors_in_their_order(
    staging: SharedStaging, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "worker_count", lambda: processors)
    arrays = tensors()
    copies = staging.stage(sources(arrays))
    assert content(copies) == little(arrays)
    assert [copy.spec for copy in copies] == [source.spec for source in sources(arrays)]


def test_copies_are_aligned_and_stay_when_the_tensors_change(staging: SharedStaging) -> None:
    arrays = tensors()
    expected = little(arrays)
    copies = staging.stage(sources(arrays))
    for array in arrays:
        array[...] = 0
    assert content(copies) == expected
    for copy in copies:
        memory = copy.contiguous()
        assert memory is not None
        assert memory.ctypes.data % ALIGNMENT == 0
        part = np.empty(memory.size // 2, np.uint8)
        copy.copy_to(part, memory.size // 4)
        assert part.tobytes() == memory[memory.size // 4 :][: part.size].tobytes()


def test_another_process_sees_the_same_after_growing_too(staging: SharedStaging) -> None:
    arrays = tensors()
    staged = Staged(os.dup(staging.fileno()))
    for some in (arrays[:1], arrays):
        staging.stage(sources(some))
        assert content([*staged.copies([s.spec for s in sources(some)])]) == little(some)


def test_memory_is_touched_by_reserve_and_kept_when_it_grows(staging: SharedStaging) -> None:
    staging.reserve(4 * MIB)
    assert staging.size == touched(staging) == 4 * MIB
    staging.reserve(8 * MIB - 5)
    assert staging.size == touched(staging) == 8 * MIB
    staging.reserve(MIB)
    assert staging.size == touched(staging) == 8 * MIB


def test_memory_is_touched_where_the_kernel_does_not_help(
    staging: SharedStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staging_module, "populate", lambda part, advice: errno.EINVAL)
    staging.reserve(3 * MIB)
    assert touched(staging) == 3 * MIB


def test_a_thousand_saves_take_no_more_memory_than_one(staging: SharedStaging) -> None:
    some = sources([np.ones(1000), np.ones(50_000)])
    file = os.fstat(staging.fileno()).st_ino
    staging.stage(some)
    before = staging.size, touched(staging), mappings(file)
    for _ in range(1000):
        staging.stage(some)
    assert (staging.size, touched(staging), mappings(file)) == before
    assert mappings(file) == 1


def test_memory_that_cannot_be_had_is_refused_and_the_old_kept(
    staging: SharedStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging.reserve(MIB)
    monkeypatch.setattr(staging_module, "populate", lambda part, advice: errno.ENOMEM)
    with pytest.raises(errors.WriteFailed, match="no 2,097,152 bytes of memory") as caught:
        staging.reserve(2 * MIB)
    assert caught.value.errno == errno.ENOMEM
    assert staging.size == os.fstat(staging.fileno()).st_size == MIB
    assert content(staging.stage(sources([np.ones(100)]))) == little([np.ones(100)])


def test_close_ends_a_reserve_that_goes_on(
    staging: SharedStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    began = threading.Event()

    def populate(part: Bytes, advice: int) -> int:
        began.set()
        time.sleep(0.01)
        return 0

    monkeypatch.setattr(staging_module, "populate", populate)
    raised: list[Exception] = []

    def reserve() -> None:
        try:
            staging.reserve(1 << 36)  # most of a minute, at a piece in 10 ms
        except errors.ClosedFile as error:
            raised.append(error)

    thread = threading.Thread(target=reserve)
    thread.start()
    began.wait()
    staging.close()
    thread.join(60)
    assert len(raised) == 1
    with pytest.raises(errors.ClosedFile):
        staging.reserve(1)


def test_close_gives_the_memory_back(staging: SharedStaging) -> None:
    staging.reserve(MIB)
    fd, file = staging.fileno(), os.fstat(staging.fileno()).st_ino
    assert mappings(file) == 1
    staging.close()
    staging.close()
    gc.collect()
    assert mappings(file) == 0
    with suppress(OSError):  # its number may be that of another file by now
        assert os.fstat(fd).st_ino != file


def test_a_helping_thread_finishes_what_it_took(
    staging: SharedStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "worker_count", lambda: 2)
    main = threading.get_ident()

    def slow_for_others() -> None:
        time.sleep(0.05 if threading.get_ident() != main else 0.01)

    # Batches of several tensors: the caller is done with the last while the other is within one.
    some: list[Source] = [Slow(3 * MIB, slow_for_others) for _ in range(15)]
    staging.reserve(46 * MIB)
    staging._memory[:] = 0
    assert all(set(copy) == {1} for copy in content(staging.stage(some)))


@pytest.mark.parametrize("where", ["caller", "other"])
def test_an_error_is_raised_when_all_threads_are_done(
    staging: SharedStaging, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "worker_count", lambda: 4)
    main = threading.get_ident()
    reading: set[int] = set()
    together = threading.Barrier(4)

    def during() -> None:
        reading.add(threading.get_ident())
        together.wait(60)
        if (threading.get_ident() == main) == (where == "caller"):
            reading.discard(threading.get_ident())
            raise KeyboardInterrupt
        time.sleep(0.2)
        reading.discard(threading.get_ident())

    with pytest.raises(KeyboardInterrupt):
        staging.stage([Slow(16 * MIB, during) for _ in range(8)])
    assert not reading
    assert content(staging.stage(sources([np.arange(9)]))) == little([np.arange(9)])


def test_ctrl_c_while_waiting_for_a_thread_waits_for_it_all_the_same(
    staging: SharedStaging, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_copies, "worker_count", lambda: 2)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job of a shell has none
    main = threading.get_ident()
    finished: list[float] = []
    together = threading.Barrier(2)

    def during() -> None:
        together.wait(60)
        if threading.get_ident() != main:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            finished.append(time.monotonic())

    try:
        with pytest.raises(KeyboardInterrupt):
            staging.stage([Slow(16 * MIB, during) for _ in range(2)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(finished) == 1


def test_a_forked_child_lets_go_of_it(staging: SharedStaging) -> None:
    staging.stage(sources([np.ones(1000)]))
    fd = staging.fileno()
    child = os.fork()
    if not child:
        try:
            os.fstat(fd)
        except OSError:
            staging.close()
            os._exit(0 if staging.size == 0 else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert content(staging.stage(sources([np.ones(10)]))) == little([np.ones(10)])
