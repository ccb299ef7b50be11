"""What devices are asked for, as far as it can be seen without one."""

import numpy as np
import pytest
import torch

from standfast.tensors import TensorSpec
from standfast.tensors.devices import COLUMNS, sums_of
from standfast.torch.devices import DeviceSource, _sums_of


def source_of(tensor: torch.Tensor) -> DeviceSource:
    return DeviceSource(tensor, TensorSpec("float32", tuple(tensor.shape)), None)


def tensors() -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [
        torch.rand(3 * 2 * COLUMNS + 11),
        torch.rand(500, 401).t(),
        torch.rand(8, 64, 64, 3).permute(0, 3, 1, 2),
        torch.rand(40_001)[1:],
        torch.rand(7),
    ]


@pytest.mark.parametrize("tensor", tensors(), ids=lambda each: str(tuple(each.shape)))
def test_pieces_and_sums_of_a_tensor_are_those_of_its_bytes_in_c_order(tensor):
    whole, source = tensor.contiguous().numpy().tobytes(), source_of(tensor)
    for start in range(0, len(whole), 70_000):
        stop = min(start + 70_000, len(whole))
        assert source.on_device(start, stop).numpy().tobytes() == whole[start:stop]
    parts = [*_sums_of(source)]
    assert np.array_equal(torch.cat(parts).numpy(), sums_of(np.frombuffer(whole, np.uint8)))
    if tensor.is_contiguous() and tensor.storage_offset() == 0:
        return
    for part in parts:  # which keep nothing alive that was gathered for them
        storage = part.untyped_storage()
        assert storage.data_ptr() != tensor.untyped_storage().data_ptr()
        assert storage.nbytes() == part.numel() * 8
