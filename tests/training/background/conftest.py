"""A run, and what saves into it in the background."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from standfast import Run, Store
from standfast.training.background.background import Background


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Run]:
    with Store(tmp_path).run("gpt") as run:
        yield run


@pytest.fixture
def background(run: Run) -> Iterator[Background]:
    background = Background(run)
    yield background
    background.close()
