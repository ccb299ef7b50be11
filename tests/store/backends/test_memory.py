"""The backend in memory."""

from __future__ import annotations

import pytest

from standfast.store.backends.backend import Backend
from standfast.store.backends.memory import MemoryBackend
from tests.store.backends.backend_suite import BackendSuite


class TestMemoryBackend(BackendSuite):
    @pytest.fixture
    def backend(self) -> Backend:
        return MemoryBackend()


def test_two_of_them_share_nothing() -> None:
    first, second = MemoryBackend(), MemoryBackend()
    first.create("a", b"x")
    lock = first.lock("a")
    assert lock is not None
    assert not second.exists("a")
    assert second.lock("a") is not None


def test_it_lies_nowhere_on_the_disk() -> None:
    backend = MemoryBackend()
    backend.create("a", b"x")
    assert backend.path("a") is None
    assert backend.cache is None
    assert backend.free() is None
