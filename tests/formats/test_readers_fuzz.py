"""The fuzzer, in its short form: `python -m tests.fuzz --seconds N` runs it for longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.run import fuzz
from tests.fuzz.targets import TARGETS

INPUTS = 4000


@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_the_reader(name: str, tmp_path: Path) -> None:
    report = fuzz(TARGETS[name], seed=1, folder=tmp_path, inputs=INPUTS)
    assert not report.failures, str(report)
    # Fewer would say that the fuzzer no longer reaches behind the first check.
    assert report.accepted >= 50, str(report)
    assert report.opened >= 100, str(report)
    assert report.on_disk >= 10, str(report)
    assert len(report.refused) >= 8, str(report)
