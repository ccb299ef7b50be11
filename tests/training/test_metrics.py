"""The metrics log: cheap to add to, exact to read, cut back on resume."""

import enum
import errno
import json
import math
import os
import struct
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import BadField, MissingFile, RefusedState, UnreadableFile, WriteFailed
from standfast.files.lines import LONGEST
from standfast.training.metrics import Line, MetricsLog, read_metrics
from tests.kit.disk_faults import FaultyDisk, raising
from tests.kit.seams import Seams

TIME = "2026-01-02T03:04:05.678901Z"


def _lines(*steps: int) -> list[Line]:
    return [Line(step, 1, TIME, {"loss": step / 3}) for step in steps]


def _written(path: Path, *steps: int) -> bytes:
    MetricsLog(path).append(_lines(*steps))
    return path.read_bytes()


def _steps(path: Path) -> list[int]:
    return [line.step for line in read_metrics(path)]


def test_a_line_is_an_object_of_json_in_which_what_is_not_finite_is_text(tmp_path):
    path = tmp_path / "a" / "log.jsonl"
    metrics = {"loss": 0.25, "seen": 3, "best": True, "n": math.nan, "i": math.inf, "j": -math.inf}
    MetricsLog(path).append([Line(100, 2, TIME, metrics)])
    assert path.read_text() == (
        f'{{"step":100,"epoch":2,"time":"{TIME}","metrics":{{"loss":0.25,"seen":3,"best":true,'
        '"n":"NaN","i":"Infinity","j":"-Infinity"}}\n'
    )


def test_what_is_added_is_settled_once_and_comes_back_from_the_file(tmp_path):
    log, loss = MetricsLog(tmp_path / "log.jsonl"), torch.tensor(0.5)
    log.add(1, None, {"loss": loss, "seen": np.array([64])})
    loss += 5  # it is logged as it was
    log.add(2, None, {})
    log.add(3, 5, {"loss": 0.2})
    lines = log.settle()
    assert log.settle() == []
    log.append(lines)
    log.append([])
    found = list(read_metrics(tmp_path / "log.jsonl"))
    assert [(line.step, line.epoch, line.metrics) for line in found] == [
        (1, None, {"loss": 0.5, "seen": 64}),
        (3, 5, {"loss": 0.2}),
    ]
    assert found == lines
    assert all(line.time.endswith("Z") for line in found)
    nowhere = MetricsLog(None)  # which keeps no file
    nowhere.append(lines)
    nowhere.cut(0)


class _Level(enum.IntEnum):
    HIGH = 3


VALUES: list[tuple[Any, Any]] = [
    *((np.float64(0.1), 0.1), (np.float32(0.1), float(np.float32(0.1))), (np.float16(0.5), 0.5)),
    *((np.longdouble(0.5), 0.5), (ml_dtypes.bfloat16(0.5), 0.5), (np.int8(-3), -3)),
    *((np.uint64(2**64 - 1), 2**64 - 1), (np.bool_(True), True), (np.array([[7]]), 7)),
    *((_Level.HIGH, 3), (torch.tensor(True), True), (torch.tensor(-(2**63)), -(2**63))),
    (torch.tensor([2.5], dtype=torch.bfloat16), 2.5),
    (torch.nn.Parameter(torch.tensor(1.5)), 1.5),
    (torch.tensor(3.0, requires_grad=True) * 2, 6.0),
]


@pytest.mark.parametrize(("value", "number"), VALUES)
def test_numbers_of_any_kind_become_plain_ones(value, number):
    log = MetricsLog(None)
    log.add(1, None, {"loss": value})
    [line] = log.settle()
    assert line.metrics == {"loss": number}
    assert type(line.metrics["loss"]) is type(number)


REFUSED: list[Any] = [
    *("0.5", None, 1j, [0.5], {"a": 1}, object, 2**64, -(2**63) - 1, b"1"),
    *(np.zeros(2), np.zeros(0), np.array("x"), np.datetime64(1, "ns"), np.complex64(1)),
    *(np.void(b"12345678"), np.array(None), np.ma.masked, np.zeros(1, [("a", "f4")])),
    *(torch.zeros(2), torch.zeros(0), torch.zeros(1, dtype=torch.complex64)),
    *(torch.zeros(1, device="meta"), torch.nn.Linear(1, 1), torch.float32),
]


@pytest.mark.parametrize("value", REFUSED, ids=lambda value: ascii(value)[:30].split(" at ")[0])
def test_what_is_no_number_is_refused_at_once_by_its_name(value):
    log = MetricsLog(None)
    with pytest.raises(RefusedState, match="val_loss"):
        log.add(1, None, {"loss": 0.5, "val_loss": value})
    assert log.settle() == []


@pytest.mark.parametrize("name", [5, "", "\ud800", "x" * 201, None], ids=ascii)
def test_a_name_that_cannot_be_is_refused(name):
    with pytest.raises(RefusedState) as caught:
        MetricsLog(None).add(1, None, {name: 0.5})
    assert str(caught.value).isprintable()


def test_the_longest_line_that_is_taken_can_be_read(tmp_path):
    log = MetricsLog(tmp_path / "log.jsonl")
    metrics = {f"{number:04}" + "\x01" * 196: -1.2345678901234567e-300 for number in range(852)}
    log.add(1, None, metrics)
    log.append(log.settle())
    [line] = read_metrics(tmp_path / "log.jsonl")
    assert line.metrics == metrics
    with pytest.raises(RefusedState):
        log.add(1, None, metrics | {"x" * 200: 1.0, "y" * 200: 1.0})


def _bits(value: Any) -> Any:
    if type(value) is not float:
        return type(value), value
    return "NaN" if math.isnan(value) else struct.pack(">d", value)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
        st.floats() | st.integers(-(2**63), 2**64 - 1) | st.booleans(),
        min_size=1,
    )
)
def test_every_number_comes_back_with_its_type_and_bits(tmp_path_factory, metrics):
    path = tmp_path_factory.mktemp("log") / "log.jsonl"
    log = MetricsLog(path)
    log.add(1, 0, metrics)
    log.append(log.settle())
    assert json.loads(path.read_bytes())["step"] == 1  # for any reader of JSON
    [line] = read_metrics(path)
    assert {name: _bits(value) for name, value in line.metrics.items()} == {
        name: _bits(value) for name, value in metrics.items()
    }


def test_lines_that_are_added_while_a_thread_settles_are_settled_once():
    log = MetricsLog(None)
    done = threading.Event()
    found: list[int] = []

    def settle() -> None:
        while not done.is_set():
            found.extend(line.step for line in log.settle())

    thread = threading.Thread(target=settle)
    thread.start()
    for step in range(5000):
        log.add(step, None, {"loss": 0.5})
    done.set()
    thread.join()
    found.extend(line.step for line in log.settle())
    assert found == list(range(5000))


def test_a_cut_drops_the_lines_of_later_steps(tmp_path):
    path = tmp_path / "log.jsonl"
    wanted = _written(path, 1, 2, 3).replace(b"}\n", b',"added":"by a later version"}\n')
    path.write_bytes(wanted)
    MetricsLog(path).append([Line(step, 1, TIME, {"x" * 150: 0.5}) for step in range(4, 8000)])
    MetricsLog(path).append(_lines(2))  # one that came late
    late = path.read_bytes()[-len(_written(tmp_path / "other.jsonl", 2)) :]
    assert path.stat().st_size > 1 << 20
    MetricsLog(path).cut(3)
    assert path.read_bytes() == wanted + late
    MetricsLog(path).cut(0)
    assert path.read_bytes() == b""


def test_a_cut_of_nothing_leaves_the_file_alone(tmp_path):
    path = tmp_path / "log.jsonl"
    _written(path, 1, 2)
    before = path.stat()
    MetricsLog(path).cut(2)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    MetricsLog(tmp_path / "none.jsonl").cut(2)
    assert os.listdir(tmp_path) == ["log.jsonl"]


@pytest.mark.parametrize("torn", [b'{"step":3,"ep', b"\0" * 5000, b"x" * (3 << 20)], ids=len)
def test_a_torn_last_line_is_left_out_and_cut_off(torn, tmp_path):
    path = tmp_path / "log.jsonl"
    whole = _written(path, 1, 2)
    path.write_bytes(whole + torn)
    assert _steps(path) == [1, 2]
    MetricsLog(path).cut(7)
    assert path.read_bytes() == whole
    path.write_bytes(whole + torn)
    assert _written(path, 3).startswith(whole + b'{"step":3,')
    assert _steps(path) == [1, 2, 3]
    path.write_bytes(torn)
    _written(path, 3)
    assert _steps(path) == [3]


def test_damage_after_the_last_line_that_stays_is_cut_off(tmp_path):
    path = tmp_path / "log.jsonl"
    whole = _written(path, 1, 2)
    path.write_bytes(whole + b"\0" * 100 + b"\n" + b"x" * (2 << 20) + b"\n")
    _written(path, 5)
    MetricsLog(path).cut(2)
    assert path.read_bytes() == whole


def test_damage_before_a_line_that_stays_is_named_and_the_log_left_alone(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(_written(path, 1) + b"\0\n")
    _written(path, 2)
    before = path.read_bytes()
    with pytest.raises(BadField, match="2"):
        MetricsLog(path).cut(2)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["log.jsonl"]


GOOD = {"step": 1, "epoch": 2, "time": TIME, "metrics": {"loss": 0.5}}


def _with(**fields: Any) -> bytes:
    return json.dumps(GOOD | fields).encode()


DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"loss: 0.5",
    "no object": b"[]",
    "no UTF-8": b'{"step":1,"epoch":2,"time":"\xff","metrics":{}}',
    "deep": b"[" * 100_000,
    "too long": b" " * (LONGEST + 1),
    "two objects": _with() + _with(),
    "step missing": json.dumps({k: v for k, v in GOOD.items() if k != "step"}).encode(),
    **{f"step {value}": _with(step=value) for value in (-1, 1.5, True, 1 << 62)},
    "epoch text": _with(epoch="1"),
    **{f"time {value}": _with(time=value) for value in (5, "yesterday")},
    "metrics a list": _with(metrics=[]),
    **{f"metric {v!r}": _with(metrics={"loss": v}) for v in (None, "\x1b[31mnan", [1], math.nan)},
    "metric without a name": _with(metrics={"": 1}),
    "metric beyond a float": _with().replace(b"0.5", b"1e999"),
    "metric of 10,000 digits": _with().replace(b"0.5", b"9" * 10_000),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_line_is_refused_by_its_number(case, tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(_with() + b"\n" + DAMAGED[case] + b"\n" + _with() + b"\n")
    lines = read_metrics(path)
    assert next(lines).step == 1
    with pytest.raises(BadField, match="2") as caught:
        next(lines)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


def test_a_line_without_end_takes_no_more_memory_than_a_long_one(tmp_path):
    path = tmp_path / "log.jsonl"
    path.touch()
    os.truncate(path, 64 << 20)
    tracemalloc.start()
    try:
        assert _steps(path) == []
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_a_log_that_is_not_there_or_no_file_is_refused(tmp_path):
    with pytest.raises(MissingFile):
        next(read_metrics(tmp_path / "none.jsonl"))
    with pytest.raises(UnreadableFile):
        next(read_metrics(tmp_path))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WriteFailed):
        _written(tmp_path / "pipe", 1)
    (tmp_path / "file").touch()
    with pytest.raises(WriteFailed):
        _written(tmp_path / "file" / "log.jsonl", 1)


def test_a_log_that_is_a_link_is_neither_extended_nor_cut(tmp_path):
    real, link = tmp_path / "real.jsonl", tmp_path / "link.jsonl"
    _written(real, 1, 2)
    link.symlink_to(real)
    for change in (lambda: _written(link, 3), lambda: MetricsLog(link).cut(1)):
        with pytest.raises(WriteFailed) as raised:
            change()
        assert raised.value.errno == errno.ELOOP
    assert _steps(real) == [1, 2]


def _each_fault(tmp_path: Path, act: Callable[[Path], object]) -> list[tuple[str, bytes]]:
    """Fail each operation in turn; what was struck, and the file after it."""
    struck: list[tuple[str, bytes]] = []
    for at in range(1, 100):
        path = tmp_path / str(at) / "log.jsonl"
        path.parent.mkdir()
        path.write_bytes(_written(path, 1, 2) + b'{"st')
        with Seams.until_end() as seams, suppress(WriteFailed):
            faulty = seams.disk(FaultyDisk(at, raising(OSError(errno.ENOSPC, "No space left"))))
            act(path)
        if faulty.struck is None:
            return struck
        struck.append((faulty.struck, path.read_bytes()))
        act(path)  # as if it were tried again
    raise AssertionError("it never came to an end")


def test_an_append_that_fails_can_be_tried_again(tmp_path):
    struck = _each_fault(tmp_path, lambda path: _written(path, 3))
    names = [name for name, _ in struck]
    assert names == ["open_lock", "truncate", "write", "sync", "close", "sync_folder"]
    for name, left in struck:
        assert left.count(b'"step":3') == (name in ("close", "sync_folder"))


def test_a_cut_that_fails_leaves_the_old_log_or_the_new_one(tmp_path):
    struck = _each_fault(tmp_path, lambda path: MetricsLog(path).cut(1))
    assert {"create", "write", "sync", "rename", "sync_folder"} <= {name for name, _ in struck}
    for name, left in struck:
        assert left.startswith(b'{"step":1,')
        assert (b'"step":2' in left) == (name not in ("close", "sync_folder"))
    for folder in tmp_path.iterdir():
        assert os.listdir(folder) == ["log.jsonl"]
