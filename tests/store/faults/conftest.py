import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.fault_states import make_small
from tests.kit.seams import Seams
from tests.store.faults.damage import Damaged

MEMORY = Path("/dev/shm")


def _memory() -> Iterator[Path]:
    """A folder in memory where there is such a thing: the loops here would wear out a disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as name:
        yield Path(name)


folder = pytest.fixture(_memory, name="folder")
folder_of_module = pytest.fixture(_memory, scope="module", name="folder_of_module")


@pytest.fixture(autouse=True)
def _quick(seams: Seams, monkeypatch: pytest.MonkeyPatch) -> None:
    make_small(monkeypatch)
    seams.no_manifest()
    seams.disk(sync=lambda sync, fd: None, sync_folder=lambda sync, folder: os.stat(folder))


@pytest.fixture
def store(folder: Path) -> Damaged:
    return Damaged(folder / "store")
