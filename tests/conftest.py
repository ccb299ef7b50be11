"""Fixtures that tests in several folders need."""

from tests.object_store.fixtures import bucket_url, own_server, proxy, server

__all__ = ["bucket_url", "own_server", "proxy", "server"]
