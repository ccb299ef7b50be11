"""Files that were right once and are damaged, and files that try the interpreter's own limits."""

import io
import os
import struct
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.formats import FORMATS, format_named
from standfast.formats.reader import Options
from standfast.oxck import Checkpoint, TruncatedData
from tests.formats.builders import flipped, opened, saved
from tests.formats.oxck import builders as oxck
from tests.formats.safetensors import builders as safetensors
from tests.formats.sunc.builders import whole_files
from tests.formats.tenzor import builders as tenzor
from tests.fuzz.limits import processor_limit
from tests.fuzz.run import Format, fuzz, memory_folder
from tests.fuzz.targets import TARGETS

SUFFIX = {format.NAME: format.SUFFIXES[0] for format in FORMATS}
TENSORS = {
    "weight": np.arange(6, dtype=np.float32).reshape(2, 3),
    "bias": np.array([7, -0.0], np.float32),
    "empty": np.zeros((0, 4), np.float32),
    "mask": np.array([1, 0, 1], np.float32),
}
GENERAL = ["safetensors", "tenzor", "oxck", "torch", "npz"]
WHOLE = {
    **{format: saved(format, TENSORS, {"step": 3, "name": "run"}) for format in GENERAL},
    **{f"sunc {kind}": data for kind, data in whole_files().items()},
}
BARE = {format: saved(format, TENSORS, extras=False) for format in GENERAL}


def loads(data: bytes) -> None:
    with opened(data) as file:
        file.arrays()


def loads_as_checkpoint(data: bytes) -> None:
    Checkpoint.read_from(io.BytesIO(data))


READS: dict[str, Callable[[bytes], None]] = {
    **dict.fromkeys(WHOLE, loads),
    "oxck, as a checkpoint": loads_as_checkpoint,
}


def is_found(read: Callable[[bytes], None], data: bytes) -> bool:
    try:
        read(data)
    except errors.StandfastError:
        return True
    return False


def bits_of(data: bytes, every: bool) -> list[int]:
    """All bits; or one of each third byte, and few of those of long padding, which are alike."""
    if every:
        return list(range(8 * len(data)))
    alike = [data[at - 20 : at + 20] in (bytes(40), b" " * 40) for at in range(len(data))]
    return [8 * at + at % 8 for at in range(len(data)) if at % (61 if alike[at] else 3) == 0]


all_bits = pytest.mark.parametrize("every", [False, pytest.param(True, marks=pytest.mark.long)])


@pytest.mark.guarantee("G9")
@all_bits
@pytest.mark.parametrize("name", READS)
def test_every_flipped_bit_is_found(name, every):
    data = bytearray(WHOLE[name.split(",")[0]])
    missed = []
    for bit in bits_of(bytes(data), every):
        data[bit // 8] ^= 1 << bit % 8
        if not is_found(READS[name], bytes(data)):
            missed.append(bit)
        data[bit // 8] ^= 1 << bit % 8
    assert missed == []
    assert not is_found(READS[name], bytes(data))


@all_bits
@pytest.mark.parametrize("files", [WHOLE, BARE], ids=["whole", "bare"])
@pytest.mark.parametrize("format", GENERAL)
def test_a_file_cut_anywhere_is_refused(format, files, every, tmp_path):
    path, data = tmp_path / f"file{SUFFIX[format]}", files[format]
    path.write_bytes(data)
    for size in sorted({bit // 8 for bit in bits_of(data, every)}, reverse=True):
        os.truncate(path, size)
        with pytest.raises(errors.TruncatedFile) as refused:
            standfast.open(path, verify=bool(size % 2))
        assert str(refused.value).startswith(f"{path}: ")
        with pytest.raises(errors.DamagedFile):
            standfast.load(io.BytesIO(data[: max(size, 10)]))
        if format == "oxck":
            with pytest.raises(TruncatedData) as cut:
                Checkpoint.load(path)
            assert 0 <= cut.value.got < cut.value.expected
    path.write_bytes(data + b"\0")
    for verify in (True, False):
        with pytest.raises(errors.TrailingBytes):
            standfast.open(path, verify=verify)


@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
@pytest.mark.parametrize("format", GENERAL)
def test_a_damaged_tensor_is_named_and_the_others_can_be_read(format, mapped, tmp_path):
    path, data = tmp_path / f"file{SUFFIX[format]}", WHOLE[format]
    at = data.index(TENSORS["mask"].tobytes())
    path.write_bytes(flipped(data, at))
    uses: list[Callable[[], Any]] = [
        lambda: standfast.verify(path),
        lambda: standfast.load(path, mapped=mapped),
        *([lambda: Checkpoint.load(path)] if format == "oxck" else []),
    ]

    def check(*damaged: str) -> None:
        for use in uses:
            with pytest.raises(errors.DigestMismatch) as found:
                use()
            assert found.value.tensors == damaged
            assert str(path) in str(found.value)

    check("mask")
    with standfast.open(path, mapped=mapped) as file:
        for name in ("weight", "bias", "empty"):
            assert np.array_equal(file[name], TENSORS[name])
        # A second look at it must not find it checked.
        for read in (lambda: file["mask"], lambda: file.slice("mask")[:1], lambda: file["mask"]):
            with pytest.raises(errors.DigestMismatch):
                read()
    with standfast.open(path, mapped=mapped, verify=False) as file:
        assert len(dict(file)) == 4
    # All that are damaged are named, in the order of the file.
    for name in ("weight", "bias"):
        path.write_bytes(flipped(path.read_bytes(), data.index(TENSORS[name].tobytes())))
    check("weight", "bias", "mask")


@pytest.mark.parametrize("format", GENERAL)
def test_very_many_tensors_take_time_by_their_number(format):
    tensors = {f"layers.{i}.重み": np.zeros(i % 2, np.float32) for i in range(5000)}
    with processor_limit(4):
        with opened(saved(format, tensors)) as file:
            assert list(file) == list(tensors)
        if format == "oxck":
            data = saved(format, tensors)
            assert len(Checkpoint.read_from(io.BytesIO(data)).tensors) == len(tensors)


def test_a_foreign_suffix_and_no_brace_are_of_no_format(tmp_path):
    path = tmp_path / "file.bin"
    for start in (b"[]", b" {}", b"", b"\x80\x04}."):
        path.write_bytes(struct.pack("<Q", len(start)) + start)
        with pytest.raises(errors.UnknownFormat, match="file"):
            standfast.open(path)


def typed_oxck(value: str) -> bytes:
    quoted = value.replace('"', '\\"')
    return oxck.file_of(f'{{"a":"{quoted}","standfast.json":"[\\"a\\"]"}}')


def files(text: str) -> dict[str, tuple[bytes, type[errors.StandfastError]]]:
    """Files with this text as a value, wherever JSON can hold one."""
    return {
        "header.safetensors": (safetensors.one_tensor(shape=f"[{text}]"), errors.BadHeader),
        "typed.safetensors": (safetensors.typed_file(text), errors.BadField),
        "names.tenzor": (tenzor.file_of(tenzor.own_text(f"[{text}]")), errors.BadField),
        "metadata.tenzor": (tenzor.file_of(f'{{"a":{text}}}'), errors.BadField),
        "typed.oxck": (typed_oxck(text), errors.BadField),
    }


def test_deep_nesting_does_not_crash_a_process_without_a_recursion_limit(tmp_path):
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
def test_a_long_integer_is_refused_at_once_without_pythons_limit_of_digits(name):
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
    except errors.DamagedFile as error:
        return type(error).__name__
    return "opens"


@pytest.mark.parametrize("where", ["entry", "metadata", "typed value"])
def test_the_same_file_opens_at_any_depth_of_the_stack(where):
    for depth in (50, 200, 400, 600, 800, 930, 960):
        text = "[" * depth + "]" * depth
        data = {
            "entry": safetensors.holding(f'"a":{text}'),
            "metadata": safetensors.with_metadata(f'{{"key":{text}}}'),
            "typed value": safetensors.typed_file(text),
        }[where]
        most = sys.getrecursionlimit() - frames() - 250
        assert deeper(0, data) == deeper(most, data), depth


def test_a_header_beyond_the_limit_is_not_even_read():
    reads = []

    def read(start: int, length: int) -> bytes:
        reads.append(length)
        return (100_000_001).to_bytes(8, "little")[start : start + length]

    with pytest.raises(errors.LimitExceeded):
        format_named("safetensors").read_index(read, 1 << 40, Options())
    assert reads == [8]


@pytest.mark.parametrize("inputs", [500, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_the_reader(name, inputs):
    with memory_folder() as folder:
        report = fuzz(Format(TARGETS[name], folder), seed=1, inputs=inputs)
    assert not report.failures, str(report)
    # Fewer would say that the changes no longer reach behind the first check.
    assert report.accepted >= 40, str(report)
    assert len(report.refused) >= 8, str(report)
