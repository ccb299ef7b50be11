"""The reader of safetensors against files made to take its time, its memory, or its stack."""

from __future__ import annotations

import re
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import pytest

import standfast
from standfast.errors import DamagedFile, LimitExceeded
from standfast.formats.reader import Options
from standfast.formats.safetensors.file import read_index
from tests.formats.safetensors.builders import (
    entry,
    file_of,
    index_of,
    member,
    objects,
    one_tensor,
    typed_file,
)
from tests.formats.safetensors.hostile import HOSTILE, Hostile
from tests.fuzz.limits import memory_limit, processor_limit

LONGEST_MESSAGE = 4000
"""Room for a path, a shortened name and a shape of 64 dimensions."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "file.safetensors"


SMALL_BUT_GREEDY = {
    "2^60 bytes of one tensor": (objects(member("a", entry(shape=f"[{2**60}]"))), None),
    "2^58 bytes of one tensor": (
        objects(member("a", entry(shape=f"[{2**58}]", data_offsets=f"[0,{2**58}]"))),
        None,
    ),
    "no byte of 2^58 rows": (
        objects(member("a", entry(shape=f"[{2**58},0,{2**58}]", data_offsets="[0,0]"))),
        None,
    ),
    "header of 99 MB": ("{}", 99_000_000),
    "header of 100 MB and a byte": ("{}", 100_000_001),
    "header of 2^60 bytes": ("{}", 2**60),
}


@pytest.mark.parametrize("name", SMALL_BUT_GREEDY)
def test_a_small_file_that_claims_much_is_refused_at_once(name: str, path: Path) -> None:
    header, length = SMALL_BUT_GREEDY[name]
    path.write_bytes(file_of(header, bytes(30), length))
    tracemalloc.start()
    try:
        begun = time.process_time()
        with memory_limit(64 << 20), pytest.raises(DamagedFile, match=re.escape(str(path))):
            standfast.open(path)
        assert time.process_time() - begun < 0.5
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_header_beyond_the_limit_is_not_even_read() -> None:
    reads = []

    def read(start: int, length: int) -> bytes:
        reads.append(length)
        return (100_000_001).to_bytes(8, "little")[start : start + length]

    with pytest.raises(LimitExceeded):
        read_index(read, 1 << 40, Options())
    assert reads == [8]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.name)
def test_a_large_header_takes_seconds_at_most(hostile: Hostile, path: Path) -> None:
    path.write_bytes(hostile.build())
    # Gigabytes for megabytes would be wrong, but Python's objects take some for each byte.
    with memory_limit(1 << 30), processor_limit(5):
        if hostile.error is None:
            standfast.open(path).close()
        else:
            with pytest.raises(DamagedFile) as refused:
                standfast.open(path)
            assert type(refused.value) is hostile.error
            assert len(str(refused.value)) < LONGEST_MESSAGE


# Settings of the whole process, which a reader cannot rely on


NESTED = {"header": file_of('{"a":' + "[" * 200_000), "typed value": typed_file("[" * 200_000)}


@pytest.mark.parametrize("where", NESTED)
def test_deep_nesting_does_not_crash_a_process_without_a_recursion_limit(
    where: str, path: Path
) -> None:
    path.write_bytes(NESTED[where])
    program = "import sys, standfast; sys.setrecursionlimit(10**6); standfast.open(sys.argv[1])"
    result = subprocess.run(
        [sys.executable, "-c", program, path], capture_output=True, text=True, check=False
    )
    expected = "BadHeader" if where == "header" else "BadField"
    assert (result.returncode, expected in result.stderr) == (1, True)


DIGITS = {
    "header": one_tensor(shape=f"[{'9' * 400_000}]"),
    "typed value": typed_file("9" * 400_000),
}


@pytest.mark.parametrize("where", DIGITS)
def test_a_long_integer_is_refused_at_once_without_pythons_limit_of_digits(where: str) -> None:
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with processor_limit(0.5), pytest.raises(DamagedFile):
            index_of(DIGITS[where])
    finally:
        sys.set_int_max_str_digits(limit)


def frames() -> int:
    """How many calls deep the caller is."""
    count, frame = 0, sys._getframe()
    while frame.f_back is not None:
        count, frame = count + 1, frame.f_back
    return count


def deeper(calls: int, data: bytes) -> str:
    """What becomes of a file that is opened so many calls further down."""
    if calls:
        return deeper(calls - 1, data)
    try:
        index_of(data)
    except DamagedFile as error:
        return type(error).__name__
    return "opens"


def nested(where: str, depth: int) -> bytes:
    """A file with so many arrays in each other."""
    text = "[" * depth + "]" * depth
    if where == "typed value":
        return typed_file(text)
    if where == "metadata":
        return file_of(f'{{"__metadata__":{{"key":{text}}}}}')
    return file_of(f'{{"a":{text}}}')


@pytest.mark.parametrize("depth", [50, 200, 400, 600, 800, 930, 960])
@pytest.mark.parametrize("where", ["entry", "metadata", "typed value"])
def test_the_same_file_opens_at_any_depth_of_the_stack(where: str, depth: int) -> None:
    data = nested(where, depth)
    most = sys.getrecursionlimit() - frames() - 200
    assert deeper(0, data) == deeper(most, data)
