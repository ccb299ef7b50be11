"""The fuzzer, in its short form: `python -m tests.fuzz --seconds N` runs it for longer."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.run import fuzz


def test_no_input_breaks_the_reader(tmp_path: Path) -> None:
    report = fuzz(seconds=60, seed=1, folder=tmp_path)
    assert not report.failures, str(report)
    # Fewer would say that the fuzzer is stuck, or no longer reaches behind the first check.
    assert report.tried >= 5000, str(report)
    assert report.accepted >= 500, str(report)
    assert report.on_disk >= 100, str(report)
    assert len(report.refused) >= 8, str(report)
