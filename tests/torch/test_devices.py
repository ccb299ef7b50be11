"""What devices are asked for, as far as it can be seen without one."""

from __future__ import annotations

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


@pytest.mark.parametrize("number", range(5))
def test_sums_of_a_tensor_are_those_of_its_bytes(number: int) -> None:
    tensor = tensors()[number]
    parts = torch.cat([*_sums_of(source_of(tensor))])
    expected = sums_of(np.frombuffer(tensor.contiguous().numpy().tobytes(), np.uint8))
    assert np.array_equal(parts.numpy(), expected)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_sums_keep_nothing_alive_that_was_gathered_for_them(number: int) -> None:
    tensor = tensors()[number]
    own = tensor.untyped_storage().data_ptr()
    for part in _sums_of(source_of(tensor)):
        storage = part.untyped_storage()
        assert storage.data_ptr() != own
        assert storage.nbytes() == part.numel() * 8


@pytest.mark.parametrize("number", range(5))
def test_pieces_of_a_tensor_are_its_bytes_in_c_order(number: int) -> None:
    tensor = tensors()[number]
    whole, source = tensor.contiguous().numpy().tobytes(), source_of(tensor)
    for start in range(0, len(whole), 70_000):
        stop = min(start + 70_000, len(whole))
        assert source.on_device(start, stop).numpy().tobytes() == whole[start:stop]
