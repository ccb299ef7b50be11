"""Staging: copies that are whole, memory that is taken once, and threads that end in time."""

import errno
import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import errors
from standfast.files import mapping
from standfast.files.staging.free_memory import available
from standfast.files.staging.staging import SharedStaging, Staged
from standfast.tensors import Source, TensorSpec, source_of
from standfast.tensors.sources import ALIGNMENT, Bytes
from tests.files.states import refusing
from tests.kit.seams import Seams

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


def sources(*arrays: np.ndarray[Any, Any]) -> list[Source]:
    return [source_of(array) for array in arrays]


def content(copies: list[Source]) -> list[bytes]:
    return [memory.tobytes() for copy in copies if (memory := copy.contiguous()) is not None]


def little(*arrays: np.ndarray[Any, Any]) -> list[bytes]:
    return [array.astype(array.dtype.newbyteorder("<")).tobytes() for array in arrays]


def mappings(file: int) -> int:
    """How often this process has mapped the staging that is this file."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sum("standfast-staging" in line and line.split()[4] == str(file) for line in lines)


def touched(staging: SharedStaging) -> int:
    return os.fstat(staging.fileno()).st_blocks * 512


def processors(seams: Seams, count: int) -> None:
    seams.system(os, sched_getaffinity=lambda real, pid: set(range(count)))


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


@pytest.mark.parametrize("count", [1, 2, 4])
def test_copies_stay_when_the_tensors_change(staging, count, seams):
    processors(seams, count)
    arrays = tensors()
    expected = little(*arrays)
    copies = staging.stage(sources(*arrays))
    assert [copy.spec for copy in copies] == [source.spec for source in sources(*arrays)]
    for array in arrays:
        array[...] = 0
    assert content(copies) == expected
    for copy in copies:
        memory = copy.contiguous()
        assert memory.ctypes.data % ALIGNMENT == 0
        part = np.empty(memory.size // 2, np.uint8)
        copy.copy_to(part, memory.size // 4)
        assert part.tobytes() == memory[memory.size // 4 :][: part.size].tobytes()


def test_another_process_sees_the_same_after_growing_too(staging):
    arrays = tensors()
    staged = Staged(os.dup(staging.fileno()))
    for some in (arrays[:1], arrays):
        staging.stage(sources(*some))
        assert content([*staged.copies([s.spec for s in sources(*some)])]) == little(*some)


def test_memory_is_touched_by_reserve_and_kept(staging, seams):
    for kernel_helps in (True, False):
        if not kernel_helps:
            seams.system(mapping._libc, madvise=refusing(errno.EINVAL))
        start = staging.size
        for asked, has in ((start + 4 * MIB, 4), (start + 8 * MIB - 5, 8), (MIB, 8)):
            staging.reserve(asked)
            assert staging.size == touched(staging) == start + has * MIB


def test_without_more_memory_the_old_is_kept(staging, seams):
    staging.reserve(MIB)
    seams.system(mapping._libc, madvise=refusing(errno.ENOMEM))
    with pytest.raises(errors.WriteFailed, match="2,097,152") as caught:
        staging.reserve(2 * MIB)
    assert caught.value.errno == errno.ENOMEM
    assert staging.size == os.fstat(staging.fileno()).st_size == MIB
    assert content(staging.stage(sources(np.ones(100)))) == little(np.ones(100))


def test_close_ends_a_reserve_that_goes_on(staging, seams):
    began = threading.Event()

    def madvise(call: Any, *_: object) -> int:
        began.set()
        time.sleep(0.01)
        return 0

    seams.system(mapping._libc, madvise=madvise)
    # Most of a minute, at a piece in 10 ms.
    with ThreadPoolExecutor(1) as pool:
        reserving = pool.submit(staging.reserve, 1 << 36)
        began.wait()
        staging.close()
        with pytest.raises(errors.ClosedFile):
            reserving.result(60)
    with pytest.raises(errors.ClosedFile):
        staging.reserve(1)


def test_close_gives_the_memory_back(staging):
    staging.reserve(MIB)
    fd, file = staging.fileno(), os.fstat(staging.fileno()).st_ino
    assert mappings(file) == 1
    staging.close()
    staging.close()
    gc.collect()
    assert mappings(file) == 0
    with suppress(OSError):  # its number may be that of another file by now
        assert os.fstat(fd).st_ino != file


def test_a_helping_thread_finishes_what_it_took(staging, seams):
    processors(seams, 2)
    main = threading.get_ident()

    def slow_for_others() -> None:
        time.sleep(0.05 if threading.get_ident() != main else 0.01)

    # Batches of several tensors: the caller is done with the last while the other is within one.
    some: list[Source] = [Slow(3 * MIB, slow_for_others) for _ in range(15)]
    staging.reserve(46 * MIB)
    staging._memory[:] = 0
    assert all(set(copy) == {1} for copy in content(staging.stage(some)))


@pytest.mark.parametrize("where", ["caller", "other"])
def test_an_error_waits_for_all_threads(staging, where, seams):
    processors(seams, 4)
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
    assert content(staging.stage(sources(np.arange(9)))) == little(np.arange(9))


def test_ctrl_c_waits_for_a_thread_all_the_same(staging, seams):
    processors(seams, 2)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job of a shell has none
    main = threading.get_ident()
    finished: list[int] = []
    together = threading.Barrier(2)

    def during() -> None:
        together.wait(60)
        if threading.get_ident() != main:
            time.sleep(0.1)
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
            finished.append(1)

    try:
        with pytest.raises(KeyboardInterrupt):
            staging.stage([Slow(16 * MIB, during) for _ in range(2)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert finished == [1]


def test_a_forked_child_lets_go_of_it(staging):
    staging.stage(sources(np.ones(1000)))
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
    assert content(staging.stage(sources(np.ones(10)))) == little(np.ones(10))


def test_a_hundred_saves_take_no_more_memory_than_one(staging):
    some = sources(np.ones(1000), np.ones(50_000))
    file = os.fstat(staging.fileno()).st_ino
    staging.stage(some)
    before = staging.size, touched(staging), mappings(file)
    for _ in range(100):
        staging.stage(some)
    assert (staging.size, touched(staging), mappings(file)) == before
    assert mappings(file) == 1


@pytest.fixture
def system(tmp_path: Path, seams: Seams) -> Path:
    """A machine with 9,000 KiB, and a process in no group."""
    (tmp_path / "meminfo").write_text("MemTotal: 10000 kB\nMemAvailable: 9000 kB\n")
    seams.bound("file of free memory", tmp_path / "meminfo")
    seams.bound("cgroup of this process", tmp_path / "cgroup")
    seams.bound("folder of cgroups", tmp_path / "groups")
    return tmp_path


LIMITS = [
    ("0::/\n", {".": ("5000", 2000)}, 3000),
    (
        "0::/slurm/job_7/step_0\n",
        {"slurm": ("max", 90), "slurm/job_7": ("7000", 3000), "slurm/job_7/step_0": ("max", 10)},
        4000,
    ),
    (
        "5:cpu,cpuacct:/x\n9:memory:/docker/a\n0::/\n",
        {"memory/docker/a": ("6000", 1000), "memory": (str((1 << 63) - 4096), 10)},
        5000,
    ),
    ("nonsense\n0::\n:::\n", {".": ("many", 2)}, 9000 << 10),
]


@pytest.mark.parametrize(
    ("groups", "limits", "expected"),
    LIMITS,
    ids=["container", "job of a scheduler", "older kernel", "nonsense"],
)
def test_the_least_that_a_group_may_still_take_is_free(system, groups, limits, expected):
    (system / "cgroup").write_text(groups)
    of_old = "memory" in limits
    names = ("limit_in_bytes", "usage_in_bytes") if of_old else ("max", "current")
    for group, values in limits.items():
        folder = system / "groups" / group
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in zip(names, values, strict=True):
            (folder / f"memory.{name}").write_text(f"{value}\n")
    assert available() == expected


def test_without_groups_the_machine_counts(system):
    assert available() == 9000 << 10
    (system / "meminfo").unlink()
    assert available() is None
