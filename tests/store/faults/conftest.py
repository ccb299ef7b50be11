from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.store.index.manifest import Manifest
from tests.kit.fault_states import make_small

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is such a thing: the loops here would wear out a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)


@pytest.fixture(autouse=True)
def _manifest_at_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread of the manifest's: its operations would come at another moment each time."""
    monkeypatch.setattr(Manifest, "refresh", Manifest.mark)
