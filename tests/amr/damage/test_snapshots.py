"""The damage matrix of snapshots: whatever happens to whichever section, of one rank or of all."""

from __future__ import annotations

import functools
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.errors import (
    DamagedFile,
    DigestMismatch,
    FellBack,
    IndexMismatch,
    MissingData,
    RefNotFound,
    StandfastError,
    TruncatedFile,
)
from standfast.files import disk
from standfast.store import Checkpoint
from standfast.store.index.manifest import Manifest
from standfast.store.load.reading import read_record
from standfast.store.maintenance.doctor import Diagnosis, examine
from standfast.store.schema import names
from standfast.store.schema.extents import extents_of
from tests.amr.damage.places import NEW, OLD, RANK, STEP, Damage, Place, whole
from tests.amr.snapshot.step_states import RUN, content, expected, load, save
from tests.kit.fault_states import UnsyncedDisk, copy_store, make_small
from tests.kit.rank_threads import attempt_on_ranks, on_ranks

RANKS = 2
HEADER, RECORD, FILE, FILE_HEADER = "header", "record", "file", "file's header"
TENSORS = {
    "blocks": "rank{}.blocks",
    "slots": "rank{}.field_slots",
    "storage": "rank{}.storage.0",
    "free list": "rank{}.free_slots",
    "links": "rank{}.links.0",
    "random": "rank{}.random.own.kicks.state.key",
    "owners": "simulation.owners.origins",
    "values": "simulation.values.trace",
    "table": "simulation.values.table",
    "global random": "rank{}.random.global.numpy.state.key",
}


@dataclass(frozen=True)
class Snapshots:
    """A store with the snapshots of two steps."""

    path: Path

    def checkpoint(self, step: int = NEW) -> Checkpoint:
        return Store(self.path).run(RUN).checkpoint(step)

    def place(self, section: str, rank: int, step: int = NEW) -> Place:
        """Where a section of a rank lies."""
        store, root = Store(self.path), self.path / "checkpoints"
        run = store.run(RUN).hash
        if section in (HEADER, RECORD):
            file = whole(root / names.record_file(run, step))
            return file if section == RECORD else _header_in(file, rank)
        record = read_record(store.backend, run, step)
        name = TENSORS.get(section, TENSORS["blocks"]).format(rank)
        (extent,) = extents_of(record, record.names.index(name))
        path = root / names.run_folder(run) / extent.file
        if section == FILE_HEADER:
            return Place(path, 0, 8 + int.from_bytes(path.read_bytes()[:8], "little"))
        return whole(path) if section == FILE else Place(path, extent.start, extent.size)

    def attempt(self, ref: int | str) -> list[Any]:
        """What each rank gets, or raises."""
        return attempt_on_ranks(RANKS, lambda comm: load(self.path, comm, ref))

    def latest(self) -> tuple[list[Any], list[str]]:
        """What each rank gets, and how it was warned."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = on_ranks(RANKS, lambda comm: load(self.path, comm))
        assert all(each.category is FellBack for each in caught)
        return [content(each) for each in loaded], [str(each.message) for each in caught]

    def examine(self) -> Diagnosis:
        store = Store(self.path)
        return examine(store.backend, store.index)


def _header_in(record: Place, rank: int) -> Place:
    """Where a record has what the header of a `.sunc` file would."""
    data = record.read()
    start = data.index(b'{"base_spacing"', data.index(b'"rank%d":{' % rank))
    return Place(record.path, start, data.index(b"}", start) + 1 - start)


_expected = functools.cache(expected)

INTACT = "intact"
"""The snapshot loads as if nothing had happened, and `verify` finds it."""
NONE = None
"""There is no such thing."""

COLUMNS = ("erased", "truncated", "flipped", RANK, STEP, "removed")
DIGEST = (DigestMismatch, TruncatedFile, DigestMismatch, DigestMismatch, DigestMismatch, NONE)
SEALED = (IndexMismatch, TruncatedFile, IndexMismatch, IndexMismatch, IndexMismatch, NONE)
HARMLESS = (INTACT, TruncatedFile, INTACT, INTACT, INTACT, NONE)

OF_EACH_RANK: dict[str, tuple[Any, ...]] = {
    "header": SEALED,
    "blocks": DIGEST,
    "slots": DIGEST,
    "storage": DIGEST,
    "free list": DIGEST,
    "links": DIGEST,
    "random": DIGEST,
    "file": (*DIGEST[:-1], MissingData),
    "file's header": HARMLESS,
}
OF_ALL_RANKS: dict[str, tuple[Any, ...]] = {
    "owners": (DigestMismatch, TruncatedFile, DigestMismatch, NONE, DigestMismatch, NONE),
    "values": (DigestMismatch, TruncatedFile, DigestMismatch, NONE, DigestMismatch, NONE),
    "record": (DamagedFile, TruncatedFile, IndexMismatch, NONE, DamagedFile, RefNotFound),
}
SHORT = {"storage", *OF_ALL_RANKS}
"""Of these, all that can be damaged is in the short form; of the others what rank 1 has."""
WHOM = {"rank 0": [0], "rank 1": [1], "all": [0, 1]}

CASES = [
    pytest.param(
        *(section, damage, ranks, outcome),
        id=f"{section}, {damage}, {whom}",
        marks=[] if whom == "rank 1" or section in SHORT else [pytest.mark.long],
    )
    for matrix, whoms in ((OF_EACH_RANK, WHOM), (OF_ALL_RANKS, {"all": [0]}))
    for section, row in matrix.items()
    for damage, outcome in zip(COLUMNS, row, strict=True)
    for whom, ranks in whoms.items()
    if outcome is not NONE
]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("snapshots") / "store"
    with pytest.MonkeyPatch.context() as patch:
        make_small(patch)
        on_ranks(RANKS, lambda comm: [save(path, comm, step) for step in (OLD, NEW)])
    return path


@pytest.fixture
def snapshots(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    monkeypatch.setattr(disk, "LOCAL", UnsyncedDisk())
    monkeypatch.setattr(Manifest, "refresh", Manifest.mark)
    copy_store(built, tmp_path / "store")
    return Snapshots(tmp_path / "store")


def test_the_matrix_has_all_that_was_promised() -> None:
    promised = {"header", "blocks", "slots", "storage", "free list", "links", "record"}
    assert promised <= {*OF_EACH_RANK, *OF_ALL_RANKS}
    assert all(NONE not in OF_EACH_RANK[name][:5] for name in promised - {"record"})


@pytest.mark.parametrize(("section", "damage", "ranks", "outcome"), CASES)
def test_damage(
    section: str, damage: str, ranks: list[int], outcome: Any, snapshots: Snapshots
) -> None:
    done = Damage(snapshots, section, damage, ranks)
    if outcome == INTACT:
        check_intact(snapshots)
        check_found(snapshots, done, [], DamagedFile)
    else:
        damaged = [TENSORS[section].format(rank) for rank in ranks if section in TENSORS]
        check_refused(snapshots, done, damaged, outcome)
        check_fallback(snapshots, done, outcome is RefNotFound)
        check_found(snapshots, done, damaged, outcome)
    if len(ranks) == 1:
        check_doctor(snapshots, done, outcome)
    done.undo()
    check_intact(snapshots)
    assert snapshots.checkpoint().verify().files == RANKS + 2, "and one of the step before"


def check_refused(
    snapshots: Snapshots, done: Damage, damaged: list[str], outcome: type[StandfastError]
) -> None:
    """The step that was asked for is refused, by all ranks alike."""
    errors = snapshots.attempt(NEW)
    assert [type(each) for each in errors] == [outcome] * RANKS
    assert len({str(each) for each in errors}) == 1
    text = str(errors[0])
    for place in done.places if outcome is not RefNotFound else ():
        assert place.path.name in text
    if outcome is DigestMismatch:
        assert all(repr(name) in text for name in damaged)
        assert {*damaged[:1]} <= {*errors[0].tensors}


def check_fallback(snapshots: Snapshots, done: Damage, is_gone: bool) -> None:
    """`latest` is the snapshot before, on all ranks; one that is not there is none."""
    loaded, words = snapshots.latest()
    assert loaded == _expected(RANKS, OLD)
    if is_gone:
        assert words == []
        return
    assert len(words) == 1, "rank 0 says it for all"
    assert done.places[0].path.name in words[0]
    assert f"@{OLD}" in words[0]


def check_found(
    snapshots: Snapshots, done: Damage, damaged: list[str], outcome: type[StandfastError]
) -> None:
    """`verify` finds it, and nothing else."""
    wanted = RefNotFound if outcome is RefNotFound else DamagedFile
    with pytest.raises(wanted) as found:
        snapshots.checkpoint().verify()
    if isinstance(found.value, DigestMismatch) and damaged:
        assert {*found.value.tensors} == {*damaged}
    elif outcome is not RefNotFound:
        assert done.places[0].path.name in str(found.value)


def check_doctor(snapshots: Snapshots, done: Damage, outcome: Any) -> None:
    """`doctor` finds it too, and mends nothing: there is no other copy."""
    found = snapshots.examine()
    assert found.restored == {}
    names = {place.path.name for place in done.places}
    if outcome == INTACT:
        assert {name.rpartition("/")[2] for name in found.damaged} == names
    elif outcome is RefNotFound:
        assert found.sound
        assert len(found.orphans) == RANKS + 1, "the data that the record referred to"
    else:
        assert len(found.damaged) == 1
        ((what, why),) = found.damaged.items()
        assert f"@{NEW}" in what or f"_step_{NEW:06d}.json" in what
        assert any(name in why for name in names)


def check_intact(snapshots: Snapshots) -> None:
    """All is as it was saved."""
    assert snapshots.latest() == (_expected(RANKS, NEW), [])


def test_what_two_snapshots_share_is_refused_in_both(snapshots: Snapshots) -> None:
    assert snapshots.place("table", 0) == snapshots.place("table", 0, OLD)
    done = Damage(snapshots, "table", "flipped", [0])
    for ref in (NEW, OLD, "latest"):
        for error in snapshots.attempt(ref):
            assert isinstance(error, DamagedFile)
            assert TENSORS["table"] in str(error)
    done.undo()
    check_intact(snapshots)


def test_doctor_mends_what_another_snapshot_has_a_copy_of(snapshots: Snapshots) -> None:
    """The global generators were not used between the two steps."""
    done = Damage(snapshots, "global random", "flipped", [1])
    check_refused(snapshots, done, [TENSORS["global random"].format(1)], DigestMismatch)
    found = snapshots.examine()
    assert found.sound
    assert [*found.restored] == [snapshots.checkpoint().ref]
    check_intact(snapshots)
    assert snapshots.examine().restored == {}
