"""What is made on a device while a test looks on."""

from __future__ import annotations

import weakref

import pytest
import torch

from standfast.tensors import TensorSpec
from tests.kit.devices import LateDevice


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
