"""Two snapshots of two ranks in a store, and where in its files each of their sections lies."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast import Store
from standfast.errors import FellBack
from standfast.store import Checkpoint
from standfast.store.load.reading import read_record
from standfast.store.maintenance.doctor import Diagnosis, examine
from standfast.store.schema import names
from standfast.store.schema.extents import extents_of
from tests.amr.damage.places import NEW, OLD, Place, whole
from tests.amr.snapshot.step_states import RUN, content, load, save
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


def build(path: Path) -> None:
    on_ranks(RANKS, lambda comm: [save(path, comm, step) for step in (OLD, NEW)])


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
