"""A device for tests: memory of the host, in which copies are made by a thread, and late.

What is changed before its copy was made is saved changed: just as on a real device, and that is
what the tests are about.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from standfast.errors import BadOption, CopyFailed
from standfast.files.threads import Threads
from standfast.tensors import Source, TensorSpec
from standfast.tensors.devices import Copies, Device, Incoming, Outgoing, sums_of
from standfast.tensors.sources import ALIGNMENT, Bytes
from standfast.torch import devices, optimizers
from standfast.torch import framework as adapter
from standfast.torch.devices import DeviceSource
from standfast.torch.dtypes import dtype_of, empty


class LateDevice:
    """Makes copies one after the other, each after a delay, or once `held` is over."""

    def __init__(self, name: str = "late:0", delay: float = 0.0) -> None:
        self.name = name
        self.delay = delay
        """Seconds before each batch of copies is made."""
        self.pinned: dict[int, int] = {}
        """The bytes that are pinned, by the address at which they begin."""
        self.most_pinned = 0
        self.pins_at_most: int | None = None
        """More than so many bytes are not pinned."""
        self.fails_after: int | None = None
        """So many batches of copies are made before they fail."""
        self.out: list[Outgoing] = []
        """All that was copied out, in its order."""
        self.incoming: list[Incoming] = []
        """All that was copied in, in its order."""
        self.came_first = 0
        """How often something had to wait for copies."""
        self._batches = 0
        self._open = threading.Event()
        self._open.set()
        self._thread = Threads(1)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Meanwhile no copy is made, until something on the device has to wait for one."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def pin(self, memory: Bytes) -> None:
        now = sum(self.pinned.values()) + memory.size
        if self.pins_at_most is not None and now > self.pins_at_most:
            raise OSError(12, "no more memory can be pinned")
        assert memory.ctypes.data % 4096 == 0
        self.pinned[memory.ctypes.data] = memory.size
        self.most_pinned = max(self.most_pinned, now)

    def unpin(self, memory: Bytes) -> None:
        assert self.pinned.pop(memory.ctypes.data) == memory.size

    def is_pinned(self, memory: Bytes) -> bool:
        """Whether all of it was pinned at once."""
        at = memory.ctypes.data
        return any(a <= at and at + memory.size <= a + size for a, size in self.pinned.items())

    def copy_out(self, pieces: Sequence[Outgoing]) -> Copies:
        def copy() -> None:
            for piece in pieces:
                piece.source.copy_to(piece.target, piece.start)
                self.out.append(piece)

        return self._later(copy)

    def copy_in(self, pieces: Sequence[Incoming]) -> Copies:
        def copy() -> None:
            for data, target, start, dtype in pieces:
                elements = torch.from_numpy(data.copy()).view(dtype_of(dtype))
                flat = target.detach().reshape(-1)
                assert flat.data_ptr() == target.data_ptr(), "the target is not in C order"
                if target.dtype == elements.dtype or dtype_of(dtype) == torch.uint8:
                    flat.view(torch.uint8)[start : start + data.size] = elements.view(torch.uint8)
                else:
                    first = start // elements.element_size()
                    flat[first : first + elements.numel()] = elements
            self.incoming.extend(pieces)

        return self._later(copy)

    def gather(self, sources: Sequence[Source]) -> Source:
        parts = [_read(source) for source in sources]
        sizes = [-(-part.size // ALIGNMENT) * ALIGNMENT for part in parts]
        together = np.zeros(sum(sizes), np.uint8)
        for start, part in zip(np.cumsum([0, *sizes]), parts, strict=False):
            together[start : start + part.size] = part
        return self._made(together)

    def sums(self, sources: Sequence[Source]) -> Source:
        found = [sums_of(_read(source)).view(np.uint8) for source in sources]
        return self._made(np.concatenate(found))

    def _made(self, data: Bytes) -> DeviceSource:
        return DeviceSource(torch.from_numpy(data), TensorSpec("uint8", (data.size,)), self)

    def empty(self, spec: TensorSpec) -> torch.Tensor:
        return empty(spec, torch.device("cpu"))

    def _later(self, copy: Callable[[], None]) -> _LateCopies:
        copies = _LateCopies(self)
        self._thread.submit(self._make, copy, copies)
        return copies

    def _make(self, copy: Callable[[], None], copies: _LateCopies) -> None:
        self._open.wait()
        time.sleep(self.delay)
        if self.fails_after is not None and self._batches >= self.fails_after:
            copies.failure = CopyFailed(f"{self.name}: an illegal memory access")
        else:
            try:
                copy()
            except BaseException as error:
                copies.failure = CopyFailed(f"{self.name}: {error!r}")
        self._batches += 1
        copies.done.set()


def _read(source: Source) -> Bytes:
    data = np.empty(source.spec.nbytes, np.uint8)
    source.copy_to(data, 0)
    return data


class _LateCopies:
    def __init__(self, device: LateDevice) -> None:
        self.device = device
        self.done = threading.Event()
        self.failure: CopyFailed | None = None

    def is_done(self) -> bool:
        return self.done.is_set()

    def wait(self) -> None:
        self.done.wait()
        if self.failure is not None:
            raise self.failure

    def come_first(self) -> None:
        self.device.came_first += 1
        self.device._open.set()
        self.done.wait()


def put_tensors_on(
    device: LateDevice,
    monkeypatch: pytest.MonkeyPatch,
    others: Mapping[int, LateDevice] | None = None,
) -> None:
    """Let all torch tensors of several numbers be on the device, but for those of bytes.

    (States of generators are bytes, and are on the host everywhere.) Some tensors, named by the
    address of their data, may be saved from other devices.
    """
    plain = adapter.source

    def on_device(value: Any) -> bool:
        if not isinstance(value, torch.Tensor) or value.dtype == torch.uint8:
            return False
        return value.numel() > 1

    def source(value: Any) -> Source:
        found = plain(value)
        if not on_device(value):
            return found
        owner = (others or {}).get(value.data_ptr(), device)
        return DeviceSource(value.detach(), found.spec, owner)

    def device_of(value: Any) -> Device | None:
        return device if on_device(value) else None

    def named(name: str) -> Device | None:
        if name in ("late", device.name):
            return device
        if name == "cpu":
            return None
        raise BadOption(f"device={name!r}: there is {device.name} here")

    monkeypatch.setattr(adapter, "source", source)
    for module in (adapter, devices, optimizers):
        monkeypatch.setattr(module, "device_of", device_of)
    for module in (adapter, devices):
        monkeypatch.setattr(module, "device", named)


class Made:
    """The tensors that are made on a device from now on."""

    def __init__(self, device: LateDevice, monkeypatch: pytest.MonkeyPatch) -> None:
        self.specs: list[TensorSpec] = []
        self.before_each: list[int] = []
        """How many of them there were each time before one more was made.

        The device forgets then what came in, which would keep them; its thread keeps the last.
        """
        self._device = device
        self._alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()
        self._empty = device.empty
        monkeypatch.setattr(device, "empty", self._make)

    def _make(self, spec: TensorSpec) -> torch.Tensor:
        self.specs.append(spec)
        self._device.incoming.clear()
        self.before_each.append(len(self._alive))
        tensor = self._empty(spec)
        self._alive.add(tensor)
        return tensor
