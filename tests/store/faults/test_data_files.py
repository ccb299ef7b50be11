"""A data file that is not what was written is found out, and the damage is named."""

from __future__ import annotations

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
)
from standfast.files import disk
from standfast.store import Store
from standfast.store.load.reading import read_record
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

TENSORS = ["model.weight", "model.bias", "optimizer.moments"]


@pytest.fixture
def store(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Damaged:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    return Damaged(folder / "store")


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def flip_tensor(store: Damaged, name: str) -> None:
    """Turn one bit over in the middle of a tensor of the newest checkpoint."""
    run = store.run()
    record = read_record(Store(store.path).backend, run.hash, NEWEST)
    extent = record.first_extents[record.names.index(name)]
    file = record.head.files[record.files[extent]]
    flip(store.folder() / file.name, int(record.starts[extent] + record.sizes[extent] // 2))


def remove(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def cut_to_the_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:100])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def become_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def become_a_link_to_nowhere(path: Path) -> None:
    path.unlink()
    path.symlink_to("nowhere")


DAMAGES: dict[Callable[[Path], None], type[StandfastError]] = {
    remove: MissingData,
    cut: TruncatedFile,
    cut_to_the_header: TruncatedFile,
    empty: TruncatedFile,
    extend: TruncatedFile,
    become_a_folder: UnreadableFile,
    become_a_link_to_nowhere: MissingData,
}


@pytest.mark.parametrize("part", ["model", "optimizer"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_that_is_gone_or_of_another_size_is_found_before_anything_is_read(
    damage: Callable[[Path], None], part: str, store: Damaged
) -> None:
    store.run().checkpoint(NEWEST).tag("paper")
    file = store.data_file(part)
    damage(file)
    error = DAMAGES[damage]
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
def test_a_flipped_bit_is_found_and_its_tensor_named(tensor: str, store: Damaged) -> None:
    store.run().checkpoint(NEWEST).tag("paper")
    flip_tensor(store, tensor)
    check_fallback(store, tensor, DigestMismatch)
    with pytest.raises(DigestMismatch, match=tensor) as raised:
        store.run().load("paper")
    assert raised.value.tensors == (tensor,)
    with pytest.raises(DigestMismatch) as raised:
        store.run().checkpoint(NEWEST).verify()
    assert raised.value.tensors == (tensor,)
    check_saving(store)
    check_others(store)


def test_all_tensors_that_are_damaged_are_named(store: Damaged) -> None:
    for tensor in TENSORS:
        flip_tensor(store, tensor)
    with pytest.raises(DigestMismatch) as raised:
        store.run().checkpoint(NEWEST).verify()
    assert sorted(raised.value.tensors) == sorted(TENSORS)


def test_a_shared_tensor_that_is_damaged_costs_all_that_share_it_and_no_others(
    store: Damaged,
) -> None:
    flip(store.data_file("model", 1), -1000)  # the weight of steps 1 and 2, and of the other run
    run = store.run()
    for step in (1, 2):
        with pytest.raises(DigestMismatch, match=r"model\.weight"):
            run.load(step)
    with pytest.raises(DigestMismatch, match=r"model\.weight"):
        store.run("second").load(1)
    assert same(run.load(), HELD["first", NEWEST])


def test_a_header_that_is_damaged_harms_other_programs_alone(store: Damaged) -> None:
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


def test_a_file_that_is_another_one_of_the_same_size_is_found(store: Damaged) -> None:
    file, other = store.data_file("optimizer"), store.data_file("optimizer", 2)
    assert file.stat().st_size == other.stat().st_size
    file.write_bytes(other.read_bytes())
    check_fallback(store, "moments", DigestMismatch)
    with pytest.raises(DamagedFile, match="another file"):
        store.run().checkpoint(NEWEST).verify()
    check_saving(store)


def test_if_no_checkpoint_is_intact_latest_says_so(store: Damaged) -> None:
    for file in store.data_files():
        cut(file)
    with pytest.raises(DamagedFile, match="has no intact checkpoint") as raised:
        store.run().load()
    assert f"step {NEWEST}" in str(raised.value)
    check_saving(store)


def test_a_save_does_not_refer_to_what_a_load_found_damaged(store: Damaged) -> None:
    flip_tensor(store, "model.weight")
    loaded, warning = load_latest(store.run())
    assert "model.weight" in warning
    assert same(loaded, HELD["first", 2])
    check_saving(store, weight=4)
