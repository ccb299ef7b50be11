from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast.files import disk
from standfast.store.index.manifest import Manifest
from tests.kit.fault_states import UnsyncedDisk, make_small

MEMORY = Path("/dev/shm")


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder in memory where there is such a thing: the loops here would wear out a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the killed programs do too; the power stays on."""
    make_small(monkeypatch)
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    monkeypatch.setattr(Manifest, "refresh", Manifest.mark)
