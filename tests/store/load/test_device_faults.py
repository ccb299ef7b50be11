"""What goes wrong on the way to a device is told as it is, and nothing damaged gets there."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch

import standfast
from standfast import Run
from standfast.errors import StateMismatch, UnreadableFile
from standfast.files.input.file import SourceFile
from standfast.tensors import TensorSpec
from standfast.torch import devices, dtypes
from tests.kit.devices import LateDevice, put_tensors_on
from tests.kit.stores import chunks, data_path, flip


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    device = LateDevice()
    put_tensors_on(device, monkeypatch)
    return device


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return standfast.Store(tmp_path).run("experiment")


def _chunks(*seeds: int) -> torch.Tensor:
    return torch.from_numpy(chunks(*seeds)).view(torch.int32)


def test_a_fallback_that_does_not_fit_tells_of_what_was_filled_before(
    run: Run, device: LateDevice
) -> None:
    run.save(1, {"other": _chunks(9)})
    run.save(2, {"x": {"w": _chunks(1)}, "y": {"w": _chunks(2)}})
    flip(data_path(run, 2, "y"))
    tree = {"x": {"w": torch.zeros_like(_chunks(1))}, "y": {"w": torch.zeros_like(_chunks(2))}}
    with pytest.raises(StateMismatch) as caught:
        run.load(into=tree)
    assert torch.equal(tree["x"]["w"], _chunks(1)), "it came before the damage was found"
    assert "nothing was filled" not in str(caught.value)
    assert "late:0 may hold bytes of it already" in str(caught.value)


def test_given_tensors_are_told_of_when_the_disk_fails_midway(
    run: Run, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    run.save(1, {"x": {"w": _chunks(1)}, "y": {"w": _chunks(2)}})
    read_block, path = SourceFile.read_block, str(data_path(run, 1, "y"))

    def failing(self: SourceFile, block: Any, start: int, size: int) -> Any:
        if self.path == path:
            raise UnreadableFile(errno.EIO, f"{path}: cannot read at offset 0")
        return read_block(self, block, start, size)

    monkeypatch.setattr(SourceFile, "read_block", failing)
    tree = {"x": {"w": torch.zeros_like(_chunks(1))}, "y": {"w": torch.zeros_like(_chunks(2))}}
    with pytest.raises(UnreadableFile, match="late:0 may hold bytes of it already"):
        run.load(1, into=tree)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (0,)])
def test_a_tensor_of_one_element_or_none_may_have_any_stride(shape: tuple[int, ...]) -> None:
    tensor = torch.full((12,), 5.0).as_strided(shape, [7] * len(shape), 3)
    spec = TensorSpec("float32", shape)
    data = torch.full(shape, 2.5).reshape(-1).view(torch.uint8)
    devices._put(data, tensor, 0, torch.float32)
    assert tensor.tolist() == torch.full(shape, 2.5).tolist()
    source = devices.DeviceSource(tensor, spec, None)
    assert torch.equal(source.on_device(0, spec.nbytes), data)
    seen = dtypes.view(tensor, spec, 0, [4] * len(shape))
    assert seen.data_ptr() == tensor.data_ptr()
    assert torch.equal(seen, tensor)
