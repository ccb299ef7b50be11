from typing import Any

import pytest

from standfast import Store
from standfast.store.backends.memory import MemoryBackend


@pytest.fixture
def run() -> Any:
    """A run in memory, without checkpoints."""
    return Store(MemoryBackend()).run("heat")
