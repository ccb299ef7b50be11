"""What is printed when nobody reads it, and when somebody waits for it."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys
from standfast.cli.pipes import end_with_readers

end_with_readers()
{then}
"""


def started(then: str, **environment: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(then=then)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, **environment},
    )


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_who_prints_and_is_not_read_ends(name):
    with started(f"input(); print('x', file=sys.{name}, flush=True); print('on')") as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        getattr(process, name).close()
        other = process.stderr if name == "stdout" else process.stdout
        process.stdin.write(b"\n")
        process.stdin.close()
        assert other.read() == b""
        assert process.wait(60) == 141


def test_another_pipe_that_nobody_reads_ends_nobody_and_the_encoding_stays():
    program = """
reading, writing = os.pipe()
os.close(reading)
try:
    os.write(writing, b"x")
except BrokenPipeError:
    print('\\u00e9\\ud800')
"""
    with started(program, PYTHONIOENCODING="latin-1:backslashreplace") as process:
        assert process.communicate(timeout=60) == (b"\xe9\\ud800\n", b"")
        assert process.returncode == 0


@pytest.mark.parametrize(("unbuffered", "seen"), [("1", b"x\n"), ("", b"")])
def test_output_is_buffered_unless_python_is_told_not_to(unbuffered, seen):
    program = "print('x'); sys.stdin.readline(); os._exit(0)"
    with started(program, PYTHONUNBUFFERED=unbuffered) as process:
        assert process.communicate(b"\n", timeout=60)[0] == seen
