"""A fixture that mounts file systems, and the list of tests that had none to run on."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.kit.fuse import CannotMount, mounted

NOT_RUN = "not run: "
"""How the reason of a skip begins that the summary lists."""


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Mount a file system as `tests.kit.fuse.mounted` does, until the end of the test."""
    with ExitStack() as mounts:

        def mount(kind: str = "fuse", **switches: Any) -> Path:
            try:
                return mounts.enter_context(mounted(tmp_path / kind, kind, **switches))
            except CannotMount as error:
                pytest.skip(f"{NOT_RUN}{error}")

        yield mount


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    skips = [
        (report.nodeid, str(report.longrepr[2]).removeprefix("Skipped: "))
        for report in terminalreporter.getreports("skipped")
        if isinstance(report.longrepr, tuple)
    ]
    missed = [(test, reason) for test, reason in skips if reason.startswith(NOT_RUN)]
    if missed:
        terminalreporter.section("tests that this machine cannot run")
    for test, reason in missed:
        terminalreporter.line(f"{test}: {reason.removeprefix(NOT_RUN)}")
