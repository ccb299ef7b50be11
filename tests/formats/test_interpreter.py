"""Settings of the whole interpreter, which a reader cannot rely on: its stack and its limits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from standfast.errors import BadField, BadHeader, DamagedFile, LimitExceeded, StandfastError
from standfast.formats import format_named
from standfast.formats.reader import Options
from tests.formats.builders import opened
from tests.formats.oxck import builders as oxck
from tests.formats.safetensors import builders as safetensors
from tests.formats.tenzor import builders as tenzor
from tests.fuzz.limits import processor_limit


def typed_oxck(value: str) -> bytes:
    quoted = value.replace('"', '\\"')
    return oxck.file_of(f'{{"a":"{quoted}","standfast.json":"[\\"a\\"]"}}')


def files(text: str) -> dict[str, tuple[bytes, type[StandfastError]]]:
    """Files with this text as a value, wherever JSON can hold one."""
    return {
        "header.safetensors": (safetensors.one_tensor(shape=f"[{text}]"), BadHeader),
        "typed.safetensors": (safetensors.typed_file(text), BadField),
        "names.tenzor": (tenzor.file_of(tenzor.own_text(f"[{text}]")), BadField),
        "metadata.tenzor": (tenzor.file_of(f'{{"a":{text}}}'), BadField),
        "typed.oxck": (typed_oxck(text), BadField),
    }


def test_deep_nesting_does_not_crash_a_process_without_a_recursion_limit(tmp_path: Path) -> None:
    nested = files("[" * 200_000)
    for name, (data, _) in nested.items():
        (tmp_path / name).write_bytes(data)
    program = (
        "import sys, standfast\n"
        "sys.setrecursionlimit(10**6)\n"
        "for path in sys.argv[1:]:\n"
        "    try: standfast.open(path)\n"
        "    except standfast.StandfastError as error: print(type(error).__name__)\n"
    )
    command = [sys.executable, "-c", program, *(tmp_path / name for name in nested)]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.split() == [error.__name__ for _, error in nested.values()]


@pytest.mark.parametrize("name", files(""))
def test_a_long_integer_is_refused_at_once_without_pythons_limit_of_digits(name: str) -> None:
    data, error = files("9" * 400_000)[name]
    limit = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(0)
    try:
        with processor_limit(1), pytest.raises(error):
            opened(data)
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
        opened(data)
    except DamagedFile as error:
        return type(error).__name__
    return "opens"


@pytest.mark.parametrize("where", ["entry", "metadata", "typed value"])
def test_the_same_file_opens_at_any_depth_of_the_stack(where: str) -> None:
    for depth in (50, 200, 400, 600, 800, 930, 960):
        text = "[" * depth + "]" * depth
        data = {
            "entry": safetensors.holding(f'"a":{text}'),
            "metadata": safetensors.with_metadata(f'{{"key":{text}}}'),
            "typed value": safetensors.typed_file(text),
        }[where]
        most = sys.getrecursionlimit() - frames() - 250
        assert deeper(0, data) == deeper(most, data), depth


def test_a_header_beyond_the_limit_is_not_even_read() -> None:
    reads = []

    def read(start: int, length: int) -> bytes:
        reads.append(length)
        return (100_000_001).to_bytes(8, "little")[start : start + length]

    with pytest.raises(LimitExceeded):
        format_named("safetensors").read_index(read, 1 << 40, Options())
    assert reads == [8]
