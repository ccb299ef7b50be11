"""How the helper process is started, and how long turns at the interpreter are."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

from standfast.training.background.starting import start_module
from standfast.training.background.turns import short_turns

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
    tmp_path, monkeypatch, own
):
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


@pytest.fixture
def interval() -> Iterator[float]:
    """How long a turn at the interpreter is, as the program has chosen."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.004)
    yield 0.004
    sys.setswitchinterval(before)


def test_turns_are_short_until_the_last_user_is_done(interval):
    with short_turns():
        with suppress(ValueError), short_turns():
            assert sys.getswitchinterval() < 0.001
            raise ValueError
        assert sys.getswitchinterval() < 0.001
        child = os.fork()
        if not child:
            os._exit(0 if sys.getswitchinterval() == interval else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sys.getswitchinterval() == interval


def test_turns_that_the_program_chooses_stay(interval):
    with short_turns():
        sys.setswitchinterval(0.002)
    assert sys.getswitchinterval() == 0.002
    sys.setswitchinterval(0.0001)
    chosen = sys.getswitchinterval()
    with short_turns():
        assert sys.getswitchinterval() == chosen
    assert sys.getswitchinterval() == chosen
