"""Copies that devices make into staging: what lies where, and who waits for what."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch

from standfast import errors
from standfast.files.staging.layout import SMALL, changed, laid_out, staged_size
from standfast.files.staging.staging import SharedStaging
from standfast.tensors import Source, TensorSpec, source_of
from standfast.tensors.sources import ALIGNMENT
from standfast.torch.devices import DeviceSource
from tests.kit.devices import LateDevice

LARGE = SMALL // 4
"""How many float32 are no small tensor."""


@pytest.fixture
def memory() -> Iterator[SharedStaging]:
    memory = SharedStaging()
    yield memory
    memory.close()


def on(device: LateDevice, count: int, seed: int = 0) -> DeviceSource:
    """A tensor of so many numbers that lies on a device."""
    tensor = torch.from_numpy(np.random.default_rng(seed).random(count, np.float32))
    return DeviceSource(tensor, TensorSpec("float32", (count,)), device)


def bytes_of(sources: list[Source]) -> list[bytes]:
    found = [np.empty(each.spec.nbytes, np.uint8) for each in sources]
    for each, data in zip(sources, found, strict=True):
        each.copy_to(data, 0)
    return [data.tobytes() for data in found]


def released_later(device: LateDevice, seconds: float = 0.2) -> threading.Timer:
    """No copy is made from now on, for a while."""
    device._open.clear()
    timer = threading.Timer(seconds, device._open.set)
    timer.start()
    return timer


def test_small_tensors_lie_behind_the_others_and_tiny_ones_last():
    sizes = [4, SMALL, 100, SMALL + 4, 0, 3 * ALIGNMENT]
    specs = [TensorSpec("uint8", (size,)) for size in sizes]
    copies = laid_out(np.zeros(staged_size(specs), np.uint8), specs)
    order = sorted(range(len(sizes)), key=lambda n: (copies[n].start, n))
    assert order == [1, 3, 2, 5, 0, 4]
    assert all(copy.start % ALIGNMENT == 0 for copy in copies)
    assert [copy.memory.size for copy in copies] == sizes
    ends = [copies[n].start + copies[n].memory.size for n in order]
    assert all(end <= copies[n].start for end, n in zip(ends, order[1:], strict=False))


def test_small_neighbours_are_copied_at_once(memory):
    device = LateDevice()
    between = source_of(np.arange(500.0))
    sources = [on(device, 100), on(device, 999, 1), between, on(device, 50, 2)]
    copies = memory.stage(sources)
    assert bytes_of(copies) == bytes_of(sources)
    assert len(device.out) == 2


@pytest.mark.parametrize("overlapped", [(), (0, 1, 2, 3)])
def test_no_piece_reaches_over_the_end_of_what_is_pinned_at_once(memory, seams, overlapped):
    seams.bound("pinned at once", 1 << 16)
    device = LateDevice()
    sources: list[Source] = [on(device, LARGE + 7), on(device, 3 * LARGE, 1), on(device, 9000, 2)]
    columns = torch.rand(600, 300).t()
    sources.append(DeviceSource(columns, TensorSpec("float32", (300, 600)), device))
    memory.reserve(8 << 20)
    memory.pin(device)
    copies, under = memory.begin(sources, overlapped)
    under.wait()
    assert bytes_of(copies) == [*bytes_of(sources[:3]), columns.contiguous().numpy().tobytes()]
    assert len(device.out) > 30
    assert all(device.is_pinned(piece.target) for piece in device.out)
    assert changed(under.copies, under.summed) == []


def test_copies_are_compared_with_the_sums_of_their_device(memory):
    first, second = LateDevice("late:0"), LateDevice("late:1")
    devices = [first, second, first, second, first]
    sources = [on(device, LARGE + 3 * n, n) for n, device in enumerate(devices)]
    sources.append(on(second, 10, 9))
    copies, under = memory.begin(sources, {0, 1, 3})
    under.wait()
    assert bytes_of(copies) == bytes_of([*sources])
    assert [sorted(numbers) for numbers in under.summed] == [[0, 2, 4], [1, 3]]
    for number in range(5):
        under.copies[number].memory[77] ^= 1
        assert changed(under.copies, under.summed) == [number]
        under.copies[number].memory[77] ^= 1
    assert changed(under.copies, under.summed) == []


def test_a_device_of_which_nothing_is_overlapped_comes_first(memory):
    first, second = LateDevice("late:0"), LateDevice("late:1")
    owned, buffer = on(first, LARGE), on(second, LARGE, 1)
    before = bytes_of([owned, buffer])
    timer = released_later(second)
    copies, under = memory.begin([owned, buffer], {0})
    buffer.tensor.zero_()
    timer.join()
    under.wait()
    assert bytes_of(copies) == before
    assert not under._begun  # nothing of the state is kept
    assert not under._sources


def test_without_an_overlap_all_is_copied_before_it_goes_on(memory):
    first, second = LateDevice("late:0", 0.05), LateDevice("late:1", 0.1)
    sources = [on(first, LARGE), on(second, LARGE, 1), on(second, 5, 2)]
    before = bytes_of([*sources])
    copies, under = memory.begin(sources)
    assert under.is_done()
    for each in sources:
        each.tensor.zero_()
    assert bytes_of(copies) == before


def test_a_copy_that_fails_is_told_of_when_no_other_is_under_way(memory):
    broken, slow = LateDevice("late:0"), LateDevice("late:1")
    broken.fails_after = 0
    sources = [on(broken, LARGE), on(slow, LARGE, 1)]
    timer = released_later(slow)
    _, under = memory.begin(sources, {0, 1})
    with pytest.raises(errors.CopyFailed, match="late:0"):
        under.wait()
    assert len(slow.out) > 0
    timer.join()


def test_staging_that_is_closed_waits_for_copies_into_it(memory):
    device = LateDevice()
    memory.reserve(1 << 20)
    memory.pin(device)
    timer = released_later(device)
    _, under = memory.begin([on(device, LARGE)], {0})
    assert not under.is_done()
    memory.close()
    assert under.is_done()
    assert device.pinned == {}
    timer.join()


def test_staging_is_used_again_after_the_copies_into_it(memory):
    slow, other = LateDevice("late:0"), LateDevice("late:1")
    timer = released_later(slow)
    memory.begin([on(slow, LARGE)], {0})  # and nobody waits for it
    second = on(other, LARGE, 1)
    copies, _ = memory.begin([second])
    timer.join()
    time.sleep(0.05)
    assert bytes_of(copies) == bytes_of([second])


def test_what_was_pinned_is_let_go_if_closed_meanwhile(memory, seams):
    seams.bound("pinned at once", 1 << 16)
    began, parts = threading.Event(), []
    device = LateDevice()

    def pin(plain: Any, memory: Any) -> None:
        parts.append(memory.nbytes)
        began.set()
        time.sleep(0.02)
        plain(memory)

    seams.system(device, pin=pin)
    memory.reserve(16 << 20)  # 256 parts, five seconds
    with ThreadPoolExecutor(1) as pool:
        pinning = pool.submit(memory.pin, device)
        began.wait()
        memory.close()
        assert pinning.exception() is not None
    assert len(parts) < 256
    assert device.pinned == {}
