"""Processes that all tests of remote stores share: to start one takes a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from standfast.store.index import manifest
from standfast.store.remote import client
from standfast.store.save import writers
from tests.store.remote.faults.workers import Worker


@pytest.fixture(scope="session")
def workers() -> Iterator[list[Worker]]:
    """Two of them; a child that one of them has begun must have ended."""
    started = [Worker(), Worker()]
    yield started
    for worker in started:
        worker.close()


@pytest.fixture
def worker(workers: list[Worker]) -> Worker:
    """The first of them."""
    return workers[0]


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No test waits as long for a server as a user would, and none for that of another test.

    What a test has not closed stays as it is: its server, or the proxy before it, is gone by then.
    """
    monkeypatch.setenv("STANDFAST_TIMEOUT", "8")
    monkeypatch.setattr(client, "_SLOWLY", 1)
    yield
    for writer in list(writers._writers.values()):
        writer._lock = None
    for each in list(manifest._manifests):
        each.forget_parent()
