"""Fixtures that tests in several folders need."""

from tests.fuse.fixtures import mount, pytest_terminal_summary
from tests.object_store.fixtures import bucket_url, own_server, proxy, server

__all__ = ["bucket_url", "mount", "own_server", "proxy", "pytest_terminal_summary", "server"]
