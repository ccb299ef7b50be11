"""A checkpoint that was committed: what it is, its state, its proof, its tags and notes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec.structs import replace

from standfast.errors import (
    AmbiguousRef,
    BadLabel,
    MissingFile,
    RefNotFound,
    StandfastError,
    TruncatedFile,
    within_memory,
)
from standfast.files.reader import Progress
from standfast.store.copies.export import Exported, export
from standfast.store.load.loading import Options, load_into, load_state, report_of
from standfast.store.load.making import state_with
from standfast.store.load.reading import Data, gone, read_record
from standfast.store.query.view import Array, CheckpointView
from standfast.store.retention.pins import pinned
from standfast.store.save.changing import change_of
from standfast.store.save.taken import changing
from standfast.store.schema import names
from standfast.store.schema.damage import mark_damaged
from standfast.store.schema.headers import check_header
from standfast.store.schema.marks import Marks, Note, change_marks, read_marks
from standfast.store.schema.metrics import checked_metrics
from standfast.store.schema.record import STORAGE, DataFile, Head, Record
from standfast.store.schema.run_file import now
from standfast.store.tree import tree
from standfast.store.tree.per_rank import ALONE, Rank
from standfast.tensors import TensorSpec
from standfast.tensors.devices import Device

if TYPE_CHECKING:
    from standfast.store.copies.copy import Copied
    from standfast.store.run import Run
    from standfast.store.store import Store


@dataclass(frozen=True, slots=True)
class Verified:
    """What was verified of a checkpoint, every byte of it."""

    tensors: int
    nbytes: int
    files: int


class Checkpoint:
    """One saved state of a run.

    >>> checkpoint = store.resolve("gpt@100")
    >>> checkpoint.metrics["loss"], checkpoint.tensors["model.wte.weight"]
    >>> checkpoint.tag("paper")
    """

    def __init__(self, store: Store, head: Head) -> None:
        self._store = store
        self.head: Final = head

    @property
    def store(self) -> Store:
        """The store that it is in."""
        return self._store

    @property
    def run(self) -> Run:
        """The run that it belongs to."""
        return self._store.open_run(self.head.run)

    @property
    def step(self) -> int:
        """The step that it was saved at."""
        return self.head.step

    @property
    def epoch(self) -> int | None:
        """The epoch, if one was given."""
        return self.head.epoch

    @property
    def sequence(self) -> int:
        """Its number in the history of the store."""
        return self.head.sequence

    @property
    def ref(self) -> str:
        """What refers to it whatever happens: `{run}@{step}`."""
        return f"{self.head.run}@{self.head.step}"

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """Its metrics, those that came after its commit too."""
        node = {**self.head.metrics, **self._marks().metrics}
        metrics: dict[str, Any] = tree.decode(msgspec.json.encode(node), 0)
        return metrics

    @property
    def parent(self) -> Checkpoint | None:
        """The checkpoint before it; None if there was none, or if it is gone."""
        place = self.head.parent
        if place is None:
            return None
        found = self._store.find(place.run, place.step)
        return found if found and found.sequence == place.sequence else None

    @property
    def nbytes(self) -> int:
        """The bytes of its tensors, wherever they are stored."""
        return self.head.nbytes

    @cached_property
    def tensors(self) -> Mapping[str, TensorSpec]:
        """Its tensors by their paths."""
        record = self.record
        return {
            name: spec
            for name, spec, kind in zip(record.names, record.specs, record.kinds, strict=True)
            if kind != STORAGE
        }

    @property
    def tags(self) -> list[str]:
        """The tags that it bears."""
        return self._marks().tags

    @property
    def notes(self) -> list[Note]:
        """What was written about it, each with its time."""
        return self._marks().notes

    @cached_property
    def record(self) -> Record:
        """All that was committed, but for the bytes of the tensors."""
        record = read_record(self._store.backend, self.head.run, self.head.step)
        if record.head.place != self.head.place:
            raise RefNotFound(f"{self.ref} was replaced meanwhile: resolve it again")
        return record

    def state(
        self,
        *,
        verify: bool = True,
        mapped: bool | None = None,
        device: Any = None,
        cast: Any = None,
        part: str | None = None,
        ranks: Rank = ALONE,
    ) -> Any:
        """The state, with the types that it was saved with; every byte is verified.

        `device`, `cast` and `part` are those of `Run.load`; `ranks` says which of how many loads
        it.
        """
        with within_memory():
            return load_state(self, Options(verify, mapped, device, cast, part, ranks))

    def load(
        self,
        *,
        into: Any = None,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        verify: bool = True,
        device: Any = None,
        cast: Any = None,
        part: str | None = None,
        ranks: Rank = ALONE,
    ) -> Any:
        """The state, or the given tree filled with it: see `Run.load`."""
        with within_memory():
            options = Options(verify, None, device, cast, part, ranks)
            is_exact = strict and not rename
            if into is not None:
                loaded, report = load_into(self, into, options, strict, rename)
                return loaded if is_exact else (loaded, report)
            loaded = load_state(self, options, rename)
            return loaded if is_exact else (loaded, report_of(self, options, rename))

    def __getitem__(self, name: str) -> Array:
        """One tensor, by its name in `tensors`: nothing else is read, and it is verified."""
        return CheckpointView(self)[name]

    def state_with(
        self,
        saved: Any,
        own: Callable[[tree.Path], Any],
        home: Callable[[tree.Path], Device | None],
        blank: Callable[[tree.Path, TensorSpec], Any] = lambda path, spec: None,
    ) -> Any:
        """The state of a decoded tree, with tensors that a program has: `making.state_with`."""
        # Not mapped: what an object keeps of it must be memory of its own.
        with self.data(mapped=False) as data:
            return state_with(self.record, saved, data, own, home, blank)

    def verify(self, progress: Progress | None = None) -> Verified:
        """Read everything and check every byte; raises a DamagedFile that says what is wrong.

        That it was found intact, and when, is recorded, if the store can be written.
        """
        record = self.record
        for file in record.head.files:
            self.check_header(file)
        with self.data() as data:
            data.check(progress)
        self.mark_verified()
        head = record.head
        return Verified(len(self.tensors), head.nbytes, len(head.files))

    def check_files(self) -> None:
        """Check that the record is sound, and that all its files are there in their sizes."""
        folder = names.run_folder(self.head.run)
        for file in self.record.head.files:
            size = self._store.backend.size(f"{folder}/{file.name}")
            if size is None:
                raise gone(self._store.backend, self.record.head, file.name)
            if size != file.size:
                raise TruncatedFile(
                    f"{self.ref}: its file {file.name} has {size:,} bytes, not {file.size:,}"
                )

    def check_header(self, file: DataFile) -> None:
        """Check that a data file is a whole safetensors file, and the one that was written."""
        try:
            check_header(self._store.backend, self.head.run, file)
        except MissingFile as error:
            raise gone(self._store.backend, self.record.head, file.name) from error

    @contextmanager
    def data(self, **options: Any) -> Iterator[Data]:
        """Its data files, open: see `reading.Data`. What is damaged is not referred to again."""

        backend = self._store.backend

        def distrust(name: str) -> None:
            mark_damaged(backend, name, f"found by a read of {self.ref}")

        with (
            pinned(backend, self.head.run, self.head.step),
            Data(backend, self.record, damaged=distrust, **options) as data,
        ):
            yield data

    def export(
        self,
        target: str | os.PathLike[str],
        part: str | None = None,
        format: str | None = None,
        cast: bool = False,
    ) -> Exported:
        """Write it, or one part of it, as files that need no store.

        A target with the suffix of a format becomes one file, any other a folder with a file for
        each part.
        """
        return export(self, target, part, format, cast)

    def copy_to(
        self, store: Store, progress: Progress | None = None, *, check: bool = False
    ) -> Copied:
        """Copy it to another store, byte for byte: see docs/copying.md.

        Only what that store lacks is copied, and verified on its way. With `check`, all of it is
        read back from there.
        """
        from standfast.store.copies.copy import copy_checkpoint

        with within_memory():
            return copy_checkpoint(self, store, progress, check=check)

    def tag(self, name: str) -> None:
        """Give it a name of its own in the store; a tagged checkpoint is not deleted."""
        names.check_label(name, "a tag")
        if name.isdecimal():
            raise BadLabel(f"a tag {name!r} would be taken for a step: give it a letter")
        with change_of(self._store.backend, "tags"):
            self._store.index.refresh()
            self._refuse_names_of_runs(name)
            for run, step in self._store.index.tagged(name, surely=True):
                if (run, step) != (self.head.run, self.head.step):
                    raise AmbiguousRef(
                        f"the tag {name!r} is on {run}@{step}: remove it there first, by "
                        f"store.untag({name!r})"
                    )
            self._change(lambda marks: replace(marks, tags=[*dict.fromkeys([*marks.tags, name])]))

    def _refuse_names_of_runs(self, tag: str) -> None:
        prefix = tag.replace("_", "")
        runs = self._store.index.runs(name=tag)
        if not runs and len(prefix) >= names.SHORTEST:
            runs = self._store.index.runs(prefix=prefix)
        if runs:
            raise BadLabel(f"a tag {tag!r} would hide run {runs[0].run}, which goes by it too")

    def untag(self, name: str) -> None:
        """Take a tag away again; raises RefNotFound if it does not bear it."""
        with change_of(self._store.backend, "tags"):
            if name not in self.tags:
                raise RefNotFound(f"{self.ref} has no tag {name!r}")
            self._change(
                lambda marks: replace(marks, tags=[tag for tag in marks.tags if tag != name])
            )

    def note(self, text: str) -> None:
        """Write something about it; notes are added, none is changed."""
        if not isinstance(text, str) or not text.strip():
            raise BadLabel("a note is some text, and not empty")
        self._change(lambda marks: replace(marks, notes=[*marks.notes, Note(now(), text)]))

    def add_metrics(self, metrics: Mapping[str, Any], best: bool = False) -> None:
        """Add metrics that became known after the commit; `best` makes it the best of its run."""
        node = checked_metrics(metrics)
        with change_of(self._store.backend, "tags"):
            self._store.index.refresh()
            highest = self._store.index.highest()
            self._change(
                lambda marks: replace(
                    marks,
                    metrics=marks.metrics | node,
                    best=highest if best else marks.best,
                )
            )
            if best:
                self._unmark_others()
        vars(self).pop("metrics", None)

    def _unmark_others(self) -> None:
        """Of two that were made the best after the same commit, only the last one is."""
        for step in self._store.index.made_best(self.head.run):
            other = self._store.find(self.head.run, step)
            if other is not None and other != self:
                other._change(lambda marks: replace(marks, best=None))

    def _marks(self) -> Marks:
        return read_marks(self._store.backend, self.head.place)

    def _change(self, change: Callable[[Marks], Marks]) -> None:
        with changing(self._store.backend, self._store.index, self.head.run):
            change_marks(self._store.backend, self.head.place, change)

    def mark_verified(self, *, locked: bool = False) -> None:
        """Remember that every byte was read and found intact, if its marks can be written.

        No other process that changes the run is waited for. `locked` says that the caller holds
        the lock of the run's changes itself.
        """
        with suppress(StandfastError), ExitStack() as stack:  # then it is verified again
            if not locked:
                backend, index = self._store.backend, self._store.index
                stack.enter_context(changing(backend, index, self.head.run, 0.0))
            change_marks(
                self._store.backend, self.head.place, lambda marks: replace(marks, verified=now())
            )

    def __repr__(self) -> str:
        return f"<checkpoint {self.ref} of {os.fspath(self._store.url)!r}>"

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Checkpoint)
            and self._store.url == other._store.url
            and self.head.place == other.head.place
        )

    def __hash__(self) -> int:
        return hash((self._store.url, self.head.run, self.head.sequence))
