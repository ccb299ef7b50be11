"""A terminal for all tests of the command line."""

from collections.abc import Iterator

import pytest

from tests.kit.cli import Terminal, open_terminal


@pytest.fixture(scope="session")
def terminal() -> Iterator[Terminal]:
    with open_terminal() as terminal:
        yield terminal
