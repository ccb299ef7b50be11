"""Interrupted and refused loads leave nothing behind that the next one would trip over."""

from __future__ import annotations

import _thread
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.files import blocks, device_reader
from standfast.files.device_reader import stream
from standfast.files.digests import CHUNK
from standfast.tensors.sources import Bytes
from tests.kit.devices import LateDevice


class _Interrupted(LateDevice):
    """A device whose user presses Ctrl-C while memory is being pinned."""

    interrupts = True

    def pin(self, memory: Bytes) -> None:
        super().pin(memory)
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt


def _load(device: LateDevice, path: Path) -> dict[str, Any]:
    with standfast.open(path) as file:
        targets = {name: device.empty(file.spec(name)) for name in file}
        stretches = [file.stretch(name, target) for name, target in targets.items()]
        stream(device, [stretch for stretch in stretches if stretch is not None])
    return targets


def test_memory_that_was_pinned_before_an_interrupt_is_unpinned_when_it_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocks, "_kept", {})
    small, large = tmp_path / "small.safetensors", tmp_path / "large.safetensors"
    standfast.save(small, {"a": np.arange(9)})
    standfast.save(large, {"a": np.arange(CHUNK // 8 * 3)})
    device = _Interrupted()
    with pytest.raises(KeyboardInterrupt):
        _load(device, small)
    assert len(device.pinned) == 1
    assert np.array_equal(_load(device, large)["a"].numpy(), np.arange(CHUNK // 8 * 3))
    assert list(device.pinned.values()) == [3 * blocks.BLOCK], "only what is kept is pinned"


def test_a_thread_that_an_interrupt_keeps_from_being_noted_down_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    standfast.save(path, {"a": np.arange(9)})
    start, read = _thread.start_new_thread, device_reader._read
    begun, under_way = threading.Event(), [0]

    def interrupted(*arguments: Any) -> int:
        start(*arguments)
        begun.wait()
        raise KeyboardInterrupt

    def slow(*arguments: Any) -> Any:
        under_way[0] += 1
        begun.set()
        time.sleep(0.2)
        found = read(*arguments)
        under_way[0] -= 1
        return found

    monkeypatch.setattr(_thread, "start_new_thread", interrupted)
    monkeypatch.setattr(device_reader, "_read", slow)
    device = LateDevice()
    with pytest.raises(KeyboardInterrupt):
        _load(device, path)
    assert begun.is_set()
    assert under_way == [0], "the file is closed, and the block is another's by now"
