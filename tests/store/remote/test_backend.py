"""The backend in an object store: a real server on loopback."""

from __future__ import annotations

import pytest

from standfast.store.backends.backend import Backend
from standfast.store.remote.backend import RemoteBackend
from tests.store.backends.backend_suite import BackendSuite


class TestRemoteBackend(BackendSuite):
    keeps_what_is_open = False

    @pytest.fixture
    def backend(self, bucket_url: str) -> Backend:
        return RemoteBackend(bucket_url)
