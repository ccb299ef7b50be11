"""The damage matrix of snapshots: whatever happens to whichever section, of one rank or of all."""

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
    TruncatedFile,
)
from standfast.store.load.reading import read_record
from standfast.store.schema import names
from standfast.store.schema.extents import extents_of
from tests.amr.damage.places import COLUMNS, NEW, OLD, WHOM, Place, damaged, whole
from tests.amr.snapshot.step_states import RUN, content, expected, load, save
from tests.kit.fault_states import UnsyncedDisk, copy_store, make_small
from tests.kit.rank_threads import attempt_on_ranks, on_ranks

RANKS = 2
TENSORS = {
    "blocks": "rank{}.blocks",
    "slots": "rank{}.field_slots",
    "storage": "rank{}.storage.0",
    "free list": "rank{}.free_slots",
    "links": "rank{}.links.0",
    "random": "rank{}.random.own.kicks.state.key",
    "owners": "simulation.owners.origins",
    "values": "simulation.values.trace",
}


@dataclass(frozen=True)
class Snapshots:
    """A store with the snapshots of two steps."""

    path: Path

    def place(self, section: str, rank: int, step: int) -> Place:
        """Where a section of a rank lies."""
        store, root = Store(self.path), self.path / "checkpoints"
        run = store.run(RUN).hash
        if section in ("header", "record"):
            file = whole(root / names.record_file(run, step))
            return file if section == "record" else _header_in(file, rank)
        record = read_record(store.backend, run, step)
        name = TENSORS.get(section, TENSORS["blocks"]).format(rank)
        (extent,) = extents_of(record, record.names.index(name))
        path = root / names.run_folder(run) / extent.file
        if section == "file's header":
            return Place(path, 0, 8 + int.from_bytes(path.read_bytes()[:8], "little"))
        return whole(path) if section == "file" else Place(path, extent.start, extent.size)

    def latest(self) -> tuple[list[Any], list[str]]:
        """What each rank gets, and how it was warned."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            loaded = on_ranks(RANKS, lambda comm: load(self.path, comm))
        assert all(each.category is FellBack for each in caught)
        return [content(each) for each in loaded], [str(each.message) for each in caught]


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
DIGEST = (DigestMismatch, TruncatedFile, DigestMismatch, DigestMismatch, DigestMismatch, NONE)
SEALED = (IndexMismatch, TruncatedFile, IndexMismatch, IndexMismatch, IndexMismatch, NONE)
SHARED = (DigestMismatch, TruncatedFile, DigestMismatch, NONE, DigestMismatch, NONE)
OF_EACH_RANK: dict[str, tuple[Any, ...]] = {
    "header": SEALED,
    **dict.fromkeys(("blocks", "slots", "storage", "free list", "links", "random"), DIGEST),
    "file": (*DIGEST[:-1], MissingData),
    "file's header": (INTACT, TruncatedFile, INTACT, INTACT, INTACT, NONE),
}
OF_ALL_RANKS: dict[str, tuple[Any, ...]] = {
    "owners": SHARED,
    "values": SHARED,
    "record": (DamagedFile, TruncatedFile, IndexMismatch, NONE, DamagedFile, RefNotFound),
}
CASES = [
    pytest.param(
        *(section, damage, ranks, outcome),
        id=f"{section}, {damage}, {whom}",
        marks=[] if whom == "rank 1" or section in ("storage", "record") else [pytest.mark.long],
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


@pytest.mark.parametrize(("section", "damage", "ranks", "outcome"), CASES)
def test_damage_is_found_by_all_ranks_and_the_snapshot_before_is_loaded(
    section, damage, ranks, outcome, built, tmp_path, seams
):
    seams.disk(UnsyncedDisk())
    seams.no_manifest()
    copy_store(built, tmp_path / "store")
    snapshots = Snapshots(tmp_path / "store")
    tensors = [TENSORS[section].format(rank) for rank in ranks if section in TENSORS]
    with damaged(snapshots.place, section, damage, ranks) as places:
        if outcome == INTACT:
            assert snapshots.latest() == (_expected(RANKS, NEW), [])
        else:
            errors = attempt_on_ranks(RANKS, lambda comm: load(snapshots.path, comm, NEW))
            assert [type(each) for each in errors] == [outcome] * RANKS
            assert len({str(each) for each in errors}) == 1
            if outcome is DigestMismatch:
                assert all(repr(name) in str(errors[0]) for name in tensors)
            loaded, words = snapshots.latest()
            assert loaded == _expected(RANKS, OLD)
            assert len(words) == (outcome is not RefNotFound), "rank 0 says it for all"
            for place in places if words else ():
                assert place.path.name in str(errors[0])
                assert f"@{OLD}" in words[0]
        with pytest.raises(RefNotFound if outcome is RefNotFound else DamagedFile) as found:
            Store(snapshots.path).run(RUN).checkpoint(NEW).verify()
        if isinstance(found.value, DigestMismatch) and tensors:
            assert {*found.value.tensors} == {*tensors}
    assert snapshots.latest() == (_expected(RANKS, NEW), [])
