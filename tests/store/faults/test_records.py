"""A record that is not what was written is found out, and costs no other checkpoint."""

from __future__ import annotations

import os
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.errors import DamagedFile, StandfastError, UnsupportedFile
from standfast.files import disk
from standfast.store.backends.local import LocalBackend
from standfast.store.schema.decoder import decode, decode_head
from tests.kit.fault_states import UnsyncedDisk
from tests.kit.stores import same
from tests.store.faults.damage import (
    HELD,
    NEWEST,
    Damaged,
    check_fallback,
    check_others,
    check_saving,
    load_latest,
)


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Damaged:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    return Damaged(folder / "store")


def truncated(lines: int) -> Callable[[Damaged], bytes]:
    return lambda store: b"".join(store.record().read_bytes().splitlines(True)[:lines])


def cut(at: float) -> Callable[[Damaged], bytes]:
    def damage(store: Damaged) -> bytes:
        data = store.record().read_bytes()
        return data[: int(at * len(data)) if at >= 0 else int(at)]

    return damage


def flipped(line: int) -> Callable[[Damaged], bytes]:
    """A bit of one line is another."""

    def damage(store: Damaged) -> bytes:
        lines = store.record().read_bytes().splitlines(True)
        middle = len(lines[line]) // 2
        changed = bytearray(lines[line])
        changed[middle] ^= 1
        return b"".join([*lines[:line], bytes(changed), *lines[line + 1 :]])

    return damage


DAMAGES: dict[str, Callable[[Damaged], bytes]] = {
    **{f"the first {n} lines": truncated(n) for n in range(9)},
    **{f"line {n + 1} flipped": flipped(n) for n in range(9)},
    "half of the head": cut(0.1),
    "half of it": cut(0.5),
    "all but a byte": cut(-1),
    "all but its last line's end": cut(-3),
    "another step's": lambda store: store.record(2).read_bytes(),
    "another run's": lambda store: store.record(1, "second").read_bytes(),
    "garbage": lambda store: bytes(range(256)) * 20,
    "zeros": lambda store: bytes(5000),
    "more than was written": lambda store: store.record().read_bytes() + b"{}\n",
}


@pytest.mark.guarantee("G10")
@pytest.mark.parametrize("is_known", [True, False], ids=["seen before", "not seen before"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_record_costs_its_own_checkpoint_and_no_other(
    damage: str, is_known: bool, store: Damaged
) -> None:
    record = store.record()
    sound = record.read_bytes()
    record.write_bytes(DAMAGES[damage](store))
    if not is_known:
        store.forget()
    message = check_fallback(store, record.name)
    assert "another" not in damage or "it is that of step" in message
    files = store.data_files()
    check_saving(store)
    assert files <= store.data_files(), "what the record refers to was deleted"
    check_others(store)
    record.write_bytes(sound)
    store.forget()
    assert same(store.run().load(NEWEST), HELD["first", NEWEST])


def flipped_heads(record: bytes) -> list[bytes]:
    """A record with one bit turned over in each byte of its head, the line's end among them."""
    flipped_at = (bytearray(record) for _ in range(record.index(b"\n") + 1))
    found = []
    for i, changed in enumerate(flipped_at):
        changed[i] ^= 1 << i % 8
        found.append(bytes(changed))
    return found


@pytest.mark.guarantee("G9")
def test_every_byte_of_a_head_counts(store: Damaged) -> None:
    run = store.run().hash
    flipped = flipped_heads(store.record().read_bytes())
    assert len(flipped) > 500
    for changed in flipped:
        with pytest.raises(DamagedFile):
            decode(changed, run, NEWEST)
        with pytest.raises((DamagedFile, UnsupportedFile)):  # of a version that is to come
            decode_head(changed.partition(b"\n")[0], run, NEWEST)


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.long)])
def test_wherever_a_head_is_flipped_latest_falls_back_and_no_data_is_deleted(
    stride: int, store: Damaged, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LocalBackend, "cache", None)
    record = store.record()
    sound = record.read_bytes()
    files = store.data_files()
    for i, changed in enumerate(flipped_heads(sound)[::stride]):
        record.write_bytes(changed)
        run = store.run()
        loaded, warning = load_latest(run)
        assert record.name in warning
        assert "fell back" in warning
        assert same(loaded, HELD["first", 2])
        with pytest.raises(DamagedFile, match=record.name):
            run.load(NEWEST)
        if i % 20 == 0:
            check_others(store)
            check_saving(store)
            assert files <= store.data_files()
            store.run().delete(4)
    record.write_bytes(sound)
    assert same(store.run().load(), HELD["first", NEWEST])


def test_a_record_of_a_gigabyte_of_nothing_takes_neither_time_nor_memory(store: Damaged) -> None:
    os.truncate(store.record(), 0)
    os.truncate(store.record(), 1 << 30)
    store.forget()
    tracemalloc.start()
    began = time.process_time()
    check_fallback(store, "begin")
    took = time.process_time() - began
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 5
    assert peak < 128 << 20
    check_saving(store)


@pytest.mark.parametrize("what", ["a folder", "a link to nowhere", "a link to itself", "a pipe"])
def test_something_else_in_the_place_of_a_record(what: str, store: Damaged) -> None:
    record = store.record()
    record.unlink()
    if what == "a folder":
        record.mkdir()
    elif what == "a pipe":
        os.mkfifo(record)
    else:
        record.symlink_to(record if "itself" in what else "nowhere")
    check_others(store)
    assert same(load_latest(store.run())[0], HELD["first", 2])
    check_saving(store)
    with pytest.raises(StandfastError):
        store.run().load(NEWEST)
