"""All that is fuzzed, by name."""

from __future__ import annotations

from pathlib import Path

from tests.fuzz.records import Records
from tests.fuzz.run import Format, Subject
from tests.fuzz.targets import TARGETS

NAMES = (*TARGETS, Records.name)


def subject_named(name: str, folder: Path) -> Subject:
    """What has this name; `folder` is for its files."""
    return Records(folder) if name == Records.name else Format(TARGETS[name], folder)
