"""Fixtures that tests in several folders use."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

# The processes of a test run share the cores: a pool of threads in each would only spin.
os.environ |= dict.fromkeys(("GOMAXPROCS", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

import pytest

from standfast import Run, Store
from tests.kit.fuse.fixtures import mount, pytest_terminal_summary
from tests.kit.object_store.fixtures import bucket_url, own_server, proxy, server
from tests.kit.process import threads_end
from tests.kit.seams import Seams

__all__ = ["bucket_url", "mount", "own_server", "proxy", "pytest_terminal_summary", "server"]

gc.disable()  # until the tests are collected: that makes a million objects, and all of them stay


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


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
