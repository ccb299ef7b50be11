"""A file that is not what was written is found out and named, and costs no other checkpoint."""

import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.errors import (
    DamagedFile,
    DigestMismatch,
    FellBack,
    MissingData,
    StandfastError,
    TruncatedFile,
    UnreadableFile,
    UnsupportedFile,
)
from standfast.store import Store
from standfast.store.load.reading import read_record
from standfast.store.schema.decoder import decode, decode_head
from tests.kit.stores import flip, same
from tests.store.faults.damage import (
    HELD,
    NEWEST,
    Damaged,
    become_a_folder,
    become_a_link_to_nowhere,
    check_fallback,
    check_others,
    check_saving,
    load_latest,
    rewritten,
)

TENSORS = ["model.weight", "model.bias", "optimizer.moments"]


def flip_tensor(store: Damaged, name: str) -> None:
    """Turn one bit over in the middle of a tensor of the newest checkpoint."""
    run = store.run()
    record = read_record(Store(store.path).backend, run.hash, NEWEST)
    extent = record.first_extents[record.names.index(name)]
    file = record.head.files[record.files[extent]]
    flip(store.folder() / file.name, int(record.starts[extent] + record.sizes[extent] // 2))


DATA_FILES: dict[str, tuple[Callable[[Path], object], type[StandfastError]]] = {
    "missing": (Path.unlink, MissingData),
    "cut": (rewritten(lambda data: data[:-1]), TruncatedFile),
    "cut to the header": (rewritten(lambda data: data[:100]), TruncatedFile),
    "empty": (rewritten(lambda data: b""), TruncatedFile),
    "extended": (rewritten(lambda data: data + b"\0"), TruncatedFile),
    "a folder": (become_a_folder, UnreadableFile),
    "a link to nowhere": (become_a_link_to_nowhere, MissingData),
}


@pytest.mark.parametrize("part", ["model", "optimizer"])
@pytest.mark.parametrize("damage", DATA_FILES)
def test_a_file_that_is_gone_or_of_another_size_is_found_before_anything_is_read(
    damage, part, store
):
    store.run().checkpoint(NEWEST).tag("paper")
    file = store.data_file(part)
    hurt, error = DATA_FILES[damage]
    hurt(file)
    check_fallback(store, file.name, error)
    with pytest.raises(error, match=file.name):
        store.run().load("paper")
    with pytest.warns(FellBack, match=file.name):
        assert store.run().checkpoint().step == 2
    with pytest.warns(FellBack, match=file.name):
        assert Store(store.path).resolve("latest").step == 2
    with pytest.raises(StandfastError, match=file.name):
        store.run().checkpoint(NEWEST).verify()
    check_saving(store, weight=4)
    check_others(store)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("tensor", TENSORS)
def test_a_flipped_bit_is_found_and_its_tensor_named(tensor, store):
    store.run().checkpoint(NEWEST).tag("paper")
    flip_tensor(store, tensor)
    check_fallback(store, tensor, DigestMismatch)
    with pytest.raises(DigestMismatch) as raised:
        store.run().load("paper")
    assert raised.value.tensors == (tensor,)
    with pytest.raises(DigestMismatch) as raised:
        store.run().checkpoint(NEWEST).verify()
    assert raised.value.tensors == (tensor,)
    check_saving(store, weight=4)  # which refers to nothing that was found damaged
    check_others(store)


def test_all_tensors_that_are_damaged_are_named(store):
    for tensor in TENSORS:
        flip_tensor(store, tensor)
    with pytest.raises(DigestMismatch) as raised:
        store.run().checkpoint(NEWEST).verify()
    assert sorted(raised.value.tensors) == sorted(TENSORS)


def test_a_shared_tensor_that_is_damaged_costs_all_that_share_it_and_no_others(store):
    path = store.data_file("model", 1)  # the weight of steps 1 and 2, and of the other run
    data = bytearray(path.read_bytes())
    data[-1000] ^= 1
    path.write_bytes(data)
    for run, step in ((store.run(), 1), (store.run(), 2), (store.run("second"), 1)):
        with pytest.raises(DigestMismatch, match=r"model\.weight"):
            run.load(step)
    assert same(store.run().load(), HELD["first", NEWEST])


def test_a_header_that_is_damaged_harms_other_programs_alone(store):
    file = store.data_file("model")
    sound = file.read_bytes()
    room = 8 + int.from_bytes(sound[:8], "little")
    for at in range(0, room, 97):
        flip(file, at)
        assert same(store.run().load(), HELD["first", NEWEST])
        with pytest.raises(DamagedFile, match=file.name):
            store.run().checkpoint(NEWEST).verify()
        file.write_bytes(sound)
    assert store.run().checkpoint(NEWEST).verify().tensors == 3


def test_a_file_that_is_another_one_of_the_same_size_is_found(store):
    file, other = store.data_file("optimizer"), store.data_file("optimizer", 2)
    assert file.stat().st_size == other.stat().st_size
    file.write_bytes(other.read_bytes())
    check_fallback(store, "moments", DigestMismatch)
    with pytest.raises(DamagedFile, match=file.name):
        store.run().checkpoint(NEWEST).verify()
    check_saving(store)


def test_if_no_checkpoint_is_intact_latest_says_so(store):
    for file in store.data_files():
        rewritten(lambda data: data[:-1])(file)
    with pytest.raises(DamagedFile, match=f"{NEWEST}"):
        store.run().load()
    check_saving(store)


# Records


def lines_kept(count: int) -> Callable[[Damaged], bytes]:
    return lambda store: b"".join(store.record().read_bytes().splitlines(True)[:count])


def cut(at: float) -> Callable[[Damaged], bytes]:
    def damage(store: Damaged) -> bytes:
        data = store.record().read_bytes()
        return data[: int(at * len(data)) if at >= 0 else int(at)]

    return damage


def flipped(line: int) -> Callable[[Damaged], bytes]:
    """A bit of one line is another."""

    def damage(store: Damaged) -> bytes:
        lines = store.record().read_bytes().splitlines(True)
        changed = bytearray(lines[line])
        changed[len(changed) // 2] ^= 1
        return b"".join([*lines[:line], bytes(changed), *lines[line + 1 :]])

    return damage


RECORDS: dict[str, Callable[[Damaged], bytes]] = {
    **{f"the first {n} lines": lines_kept(n) for n in (0, 1, 2, 8)},
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
@pytest.mark.parametrize("damage", RECORDS)
def test_a_damaged_record_costs_its_own_checkpoint_and_no_other(damage, is_known, store):
    record = store.record()
    sound = record.read_bytes()
    record.write_bytes(RECORDS[damage](store))
    if not is_known:
        store.forget()
    check_fallback(store, record.name)
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
def test_every_byte_of_a_head_counts(store):
    run = store.run().hash
    flipped = flipped_heads(store.record().read_bytes())
    assert len(flipped) > 500
    for changed in flipped:
        with pytest.raises(DamagedFile):
            decode(changed, run, NEWEST)
        with pytest.raises((DamagedFile, UnsupportedFile)):  # of a version that is to come
            decode_head(changed.partition(b"\n")[0], run, NEWEST)


@pytest.mark.parametrize("stride", [19, pytest.param(1, marks=pytest.mark.long)])
def test_wherever_a_head_is_flipped_latest_falls_back_and_no_data_is_deleted(stride, store, seams):
    seams.backend(cache=None)
    record = store.record()
    sound = record.read_bytes()
    files = store.data_files()
    for i, changed in enumerate(flipped_heads(sound)[::stride]):
        record.write_bytes(changed)
        run = store.run()
        assert same(load_latest(run, record.name), HELD["first", 2])
        with pytest.raises(DamagedFile, match=record.name):
            run.load(NEWEST)
        if i % 20 == 0:
            check_others(store)
            check_saving(store)
            assert files <= store.data_files()
            store.run().delete(4)
    record.write_bytes(sound)
    assert same(store.run().load(), HELD["first", NEWEST])


def test_a_record_of_a_gigabyte_of_nothing_takes_no_memory(store):
    os.truncate(store.record(), 0)
    os.truncate(store.record(), 1 << 30)
    store.forget()
    tracemalloc.start()
    check_fallback(store, store.record().name)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 128 << 20
    check_saving(store)


@pytest.mark.parametrize("what", ["a folder", "a link to nowhere", "a link to itself", "a pipe"])
def test_something_else_in_the_place_of_a_record(what, store):
    record = store.record()
    record.unlink()
    if what == "a folder":
        record.mkdir()
    elif what == "a pipe":
        os.mkfifo(record)
    else:
        record.symlink_to(record if "itself" in what else "nowhere")
    check_others(store)
    run = store.run()
    loaded = run.load() if what == "a folder" else load_latest(run, record.name)
    assert same(loaded, HELD["first", 2])
    check_saving(store)
    with pytest.raises(StandfastError):
        store.run().load(NEWEST)
