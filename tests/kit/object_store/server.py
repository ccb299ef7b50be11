"""The server of `examples/object_store.py`, for tests."""

from object_store import BUCKET, HOST, Server, ServerFailed

__all__ = ["BUCKET", "HOST", "Server", "ServerFailed"]
