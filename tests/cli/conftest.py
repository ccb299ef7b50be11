"""What all tests of the command line use."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standfast import Store
from tests.kit.cli import Done, Terminal, at, call, make_store, open_terminal

Cli = Callable[..., Done]
"""Runs a command in the store of a test."""


@pytest.fixture(scope="session")
def terminal() -> Iterator[Terminal]:
    """A terminal for all tests."""
    with open_terminal() as terminal:
        yield terminal


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Run `gpt` with steps 100 to 300, of which 200 is the best; run `bert` with one."""
    return make_store(tmp_path / "store")


@pytest.fixture
def cli(store: Store) -> Cli:
    """The command line in that store."""
    return lambda *arguments: call(*arguments, *at(store))
