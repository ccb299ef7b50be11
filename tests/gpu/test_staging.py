"""Copies out of a real GPU: the right bytes, at the right time, through pinned memory."""

import mmap
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from standfast.tensors import TensorSpec, source_of
from standfast.tensors.devices import Device, Incoming, Outgoing, sums_of
from standfast.tensors.sources import Bytes
from standfast.torch.devices import DeviceSource, device
from tests.gpu import gpu as kit
from tests.gpu.gpu import DEVICE, ON_GPU, checkpointer, differing, of_all_kinds

pytestmark = ON_GPU
GIGABYTE = 1 << 30


@pytest.fixture
def gpu() -> Device:
    found = device(DEVICE)
    assert found is not None
    return found


@pytest.fixture
def memory(gpu: Device) -> Iterator[Bytes]:
    """A gigabyte of the host, touched and pinned."""
    memory = np.frombuffer(mmap.mmap(-1, GIGABYTE), np.uint8)
    memory[::4096] = 1
    gpu.pin(memory)
    yield memory
    gpu.unpin(memory)


def test_every_dtype_and_layout_is_saved_as_it_is(tmp_path):
    tensors = of_all_kinds()
    with checkpointer(tmp_path, tensors=tensors) as ckpt:
        ckpt.step()
        ckpt.wait()
        assert [*differing(tensors, ckpt.run.load()["tensors"])] == []
        on_device = ckpt.run.load(device=DEVICE)["tensors"]
    assert {each.device.type for each in on_device.values()} == {DEVICE}
    assert [*differing(tensors, on_device)] == []


def test_what_is_still_being_computed_is_saved_as_it_will_be(tmp_path):
    weights = torch.zeros(1 << 22, device=DEVICE)
    weights.add_(0)  # to load a kernel waits for the whole GPU
    with checkpointer(tmp_path, weights=weights) as ckpt:
        for stream in (torch.cuda.current_stream(), torch.cuda.Stream()):
            with torch.cuda.stream(stream):
                done = kit.busy()
                weights.add_(1)
                assert not done.query()
                ckpt.step()
                weights.add_(1)
        ckpt.wait()
        found = [each.state()["weights"] for each in ckpt.run.checkpoints()]
    assert [each.unique().tolist() for each in found] == [[1.0], [3.0]]


def test_staging_is_pinned_and_let_go_at_the_end(tmp_path):
    with checkpointer(tmp_path, weights=torch.ones(1 << 22, device=DEVICE)) as ckpt:
        kit.wait_until_warm(ckpt)
        ckpt.step()
        ckpt.wait()
        background = ckpt._open()._background
        assert background is not None
        memory = torch.from_numpy(background._stagings.all[0]._memory)
        assert memory.numel() >= 4 << 22
        assert memory.is_pinned()
        assert memory[-4096:].is_pinned()
    assert not memory.is_pinned()


def test_copies_return_at_once_and_say_when_they_are_done(gpu, memory):
    tensor = torch.zeros(GIGABYTE, dtype=torch.uint8, device=DEVICE)
    kit.busy()
    tensor.fill_(7)
    copies = gpu.copy_out([Outgoing(source_of(tensor), 0, memory)])
    assert not copies.is_done()
    copies.come_first()
    tensor.fill_(9)
    copies.wait()
    assert copies.is_done()
    assert memory.min() == memory.max() == 7


def test_what_comes_in_is_there_for_whoever_comes_after_it(gpu, memory):
    memory[:] = 5
    tensor = gpu.empty(TensorSpec("uint8", (GIGABYTE,)))
    copies = gpu.copy_in([Incoming(memory, tensor, 0, "uint8")])
    copies.come_first()
    assert int(tensor.min()) == int(tensor.max()) == 5


def test_pinning_that_is_refused_does_no_harm(gpu, memory):
    with pytest.raises(OSError):
        gpu.pin(memory)  # which it is already
    assert int(torch.ones(3, device=DEVICE).sum()) == 3
    tensor = torch.full((4096,), 3, dtype=torch.uint8, device=DEVICE)
    gpu.copy_out([Outgoing(source_of(tensor), 0, memory[:4096])]).wait()
    assert memory[:4096].max() == 3


def test_sums_are_those_of_the_host(gpu):
    sizes = [0, 5, 8, 4093 * 8, 4093 * 16 - 3, 4093 * 16, 5_000_011]
    tensors = [kit.of_bytes(torch.uint8, size) for size in sizes]
    tensors += [kit.of_bytes(torch.uint8, size + 3)[3:] for size in sizes]
    tensors += [each for each in of_all_kinds().values() if each.numel()]
    sources = [source_of(tensor) for tensor in tensors]
    assert all(isinstance(source, DeviceSource) for source in sources)
    found = gpu.sums(sources)
    data = np.empty(found.spec.nbytes, np.uint8)
    found.copy_to(data, 0)
    expected = [sums_of(np.frombuffer(kit.raw(each), np.uint8)) for each in tensors]
    assert np.array_equal(data.view(np.int64), np.concatenate(expected))
