"""docs/compare.md shows what the commands print."""

import re
import subprocess
import sys

import pytest

from tests import ROOT
from tests.kit.cli import call


def _story() -> dict[str, list[str]]:
    """What the page shows, by command."""
    block = (ROOT / "docs" / "compare.md").read_text().split("```")[1]
    shown: dict[str, list[str]] = {}
    for line in block.strip().splitlines():
        if line.startswith("$ "):
            shown[line[2:]] = []
        elif line != "…":
            shown[[*shown][-1]].append(line)
    return shown


def _same_on_every_machine(lines: list[str]) -> list[str]:
    """Without times, and without figures that depend on the processor."""
    return [re.sub(r"  20\d\d-[-0-9: ]{14}|0\.\d{4,}", "…", line) for line in lines]


@pytest.mark.long
def test_it_is_what_the_commands_print(tmp_path):
    example = [sys.executable, ROOT / "examples" / "compare.py", tmp_path / "runs"]
    subprocess.run(example, check=True)
    story = _story()
    assert list(story) == ["standfast log --store runs", "standfast diff blobs wide --store runs"]
    for command, shown in story.items():
        arguments = [*command.split()[1:-1], str(tmp_path / "runs")]
        printed = call(*arguments).lines[: len(shown)]
        assert _same_on_every_machine(printed) == _same_on_every_machine(shown)
