"""What all tests of remote stores share: other processes, which take a while to start."""

from collections.abc import Callable, Iterator

import pytest
from obstore.store import S3Store

from standfast.store.index import manifest
from standfast.store.save import writers
from tests.kit.object_store.server import Server
from tests.kit.seams import Seams
from tests.store.remote import places
from tests.store.remote.workers import Worker


@pytest.fixture(scope="session")
def workers() -> Iterator[list[Worker]]:
    """Two processes; a child that one of them has begun must have ended before the next test."""
    started = [Worker(), Worker()]
    yield started
    for worker in started:
        worker.close()


@pytest.fixture
def worker(workers: list[Worker]) -> Worker:
    """The first of them."""
    return workers[0]


@pytest.fixture
def client(server: Server, bucket_url: str) -> S3Store:
    """The objects of the store at `bucket_url`, past the proxy and the product."""
    return places.straight(server, bucket_url)


@pytest.fixture
def unfinished(server: Server, bucket_url: str) -> Callable[[], list[str]]:
    """The keys of the multipart uploads at `bucket_url` that nobody has completed or aborted."""
    return lambda: places.unfinished(server, bucket_url)


@pytest.fixture
def small_parts(seams: Seams) -> None:
    """Let a few MiB be uploaded in parts, as much larger files are."""
    seams.bound("blocks of the ring", places.MIB)
    seams.bound("part of an upload", places.PART)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch, seams: Seams) -> Iterator[None]:
    """No test waits as long for a server as a user would, and none for that of another test.

    What a test has not closed stays as it is: its server, or the proxy before it, is gone by then.
    """
    monkeypatch.setenv("STANDFAST_TIMEOUT", "8")
    seams.bound("slow answer", 1)
    yield
    for writer in list(writers._writers.values()):
        writer._lock = None
    for each in list(manifest._manifests):
        each.forget_parent()
