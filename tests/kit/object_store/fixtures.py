"""A server for all tests of a process, and places in it for each of them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.kit.object_store.proxy import Proxy

if TYPE_CHECKING:
    from tests.kit.object_store.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The server that the tests of this process share; it must be left running."""
    with running(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def own_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """A server for one test, which may kill it; clients find it by the environment."""
    with running(tmp_path / "server") as started:
        use(monkeypatch, started.environment, tmp_path)
        yield started


@pytest.fixture
def bucket_url(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An empty place in the shared server, which clients find by the environment."""
    use(monkeypatch, server.environment, tmp_path)
    return f"{server.bucket('tests')}/{secrets.token_hex(6)}/store"


@pytest.fixture
def proxy(server: Server, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """A proxy before the shared server; clients go through it."""
    with Proxy(server.port) as started:
        monkeypatch.setenv("AWS_ENDPOINT_URL", started.endpoint)
        yield started


@contextmanager
def running(folder: Path) -> Iterator[Server]:
    """A server, until the end of the block."""
    from tests.kit.object_store.server import Server  # only tests that use it need obstore

    started = Server(folder)
    started.start()
    try:
        yield started
    finally:
        started.stop()


def use(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], folder: Path) -> None:
    """Let clients find a server, and nothing of what this machine knows about others."""
    for name in os.environ:
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(folder / "aws_config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(folder / "aws_credentials"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
