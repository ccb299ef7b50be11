"""Fixtures that tests in several folders use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast import Run, Store
from tests.kit.fuse.fixtures import mount, pytest_terminal_summary
from tests.kit.object_store.fixtures import bucket_url, own_server, proxy, server
from tests.kit.process import threads_end
from tests.kit.seams import Seams

__all__ = ["bucket_url", "mount", "own_server", "proxy", "pytest_terminal_summary", "server"]


@pytest.fixture(autouse=True)
def _no_thread_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    with threads_end() as check:
        yield
        # Leases and announcements of a store in a bucket reach the objects of their test alone.
        check.waits = not {"server", "own_server"} & {*request.fixturenames}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty store."""
    return Store(tmp_path)


@pytest.fixture
def run(store: Store) -> Run:
    """A run of that store, without checkpoints."""
    return store.run("a")


@pytest.fixture
def seams(monkeypatch: pytest.MonkeyPatch) -> Seams:
    """Where a test puts a disk, a backend, a clock or a limit of its own."""
    return Seams(monkeypatch)
