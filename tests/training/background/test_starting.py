"""How a process beside the training process is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from standfast.training.background.starting import start_module

MODULE = """
import json, subprocess, sys
from pathlib import Path
import standfast
import beside
child = subprocess.run([sys.executable, "-c", beside.CHILD], capture_output=True, check=True)
found = {"arguments": sys.argv[3:], "standfast": standfast.__file__}
Path(beside.OUT).write_text(json.dumps({**found, "child": json.loads(child.stdout)}))
"""
CHILD = """
import json, os
print(json.dumps({name: value for name, value in os.environ.items() if "PYTHONPATH" in name}))
"""


@pytest.mark.parametrize("own", [None, "/of/another/python"])
def test_it_finds_the_same_modules_and_what_it_starts_has_the_users_own_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str | None
) -> None:
    """A `credential_process` may be written for another Python."""
    if own is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", own)
    (tmp_path / "program_beside.py").write_text(MODULE)
    (tmp_path / "beside.py").write_text(f"OUT, CHILD = {str(tmp_path / 'out')!r}, {CHILD!r}")
    monkeypatch.syspath_prepend(tmp_path)
    process, line = start_module("program_beside", ("one", 2))
    with line:
        assert process.wait(60) == 0
    assert json.loads((tmp_path / "out").read_text()) == {
        "arguments": ["one", "2"],
        "standfast": sys.modules["standfast"].__file__,
        "child": {} if own is None else {"PYTHONPATH": own},
    }
