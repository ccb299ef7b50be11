"""A run: the checkpoints of one experiment, saved and loaded."""

from __future__ import annotations

import operator
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self, TypeVar

import msgspec

from standfast.conventions import translate
from standfast.errors import (
    BadLabel,
    BadOption,
    DamagedFile,
    MissingFile,
    NotDeleted,
    Protected,
    RefNotFound,
    StandfastError,
    within_memory,
)
from standfast.identity import recorded
from standfast.parallel import Communicator, communicator, program_ranks
from standfast.parallel.program import is_first_of_program
from standfast.policies import Mode, Policies, Policy, Retention, retention
from standfast.store.backends.backend import Lock
from standfast.store.checkpoint import Checkpoint
from standfast.store.retention import budgets, deleting, retaining, verdicts
from standfast.store.retention.deleting import Command
from standfast.store.retention.pins import pin
from standfast.store.retention.retaining import Retained
from standfast.store.retention.verdicts import Verdict, best_by
from standfast.store.save.changing import PATIENCE
from standfast.store.save.held import is_cut_up
from standfast.store.save.planning import Plan, plan_leaves
from standfast.store.save.saving import (
    FORMATS,
    SAFETENSORS,
    Assemble,
    Assembler,
    Commit,
    Task,
    Wanted,
)
from standfast.store.save.taken import change_run
from standfast.store.save.writers import Writer, writer_of
from standfast.store.schema import names
from standfast.store.schema.hyperparameters import exact_form
from standfast.store.schema.metrics import checked_metrics
from standfast.store.schema.record import Head, Place
from standfast.store.schema.run_file import Monitor, RunFile, read_run
from standfast.store.schema.settings import read_settings
from standfast.store.tree import tree
from standfast.store.tree.per_rank import Rank

if TYPE_CHECKING:
    from standfast.store.save.sharing import Sharing
    from standfast.store.store import Store

Result = TypeVar("Result")


class Run:
    """One experiment of a store; `Store.run` makes it or finds it.

    >>> run = standfast.Store("experiments").run("gpt", hp={"lr": 3e-4})
    >>> run.save(100, {"model": model.state_dict()}, metrics={"loss": 0.25})
    >>> state = run.load("latest")
    """

    def __init__(self, store: Store, file: RunFile, *, is_known: bool = True) -> None:
        self._store = store
        self._file = file
        self._is_known = is_known
        """Whether the file is all of what the run is; not if only its records can be read."""
        self._writer: Writer | None = None
        self._pin: Lock | None = None
        """Keeps the checkpoint that the run came from, while it is written into."""
        self._has_saved = False

    @property
    def store(self) -> Store:
        """The store that it is in."""
        return self._store

    @property
    def hash(self) -> str:
        """The 24 characters that it goes by."""
        return self._file.run

    @property
    def name(self) -> str | None:
        """Its label, if it has one."""
        return self._file.name

    @property
    def hyperparameters(self) -> Any:
        """The hyperparameters, with the values and types that it was given."""
        return self._file.settings

    @property
    def file(self) -> RunFile:
        """What its run file said when it was last read."""
        return self._file

    def save(
        self,
        step: int,
        state: Any,
        metrics: Mapping[str, Any] | None = None,
        epoch: int | None = None,
        best: bool = False,
        replace: bool = False,
        format: str = SAFETENSORS,
        comm: Any = None,
    ) -> Checkpoint:
        """Commit a state as the checkpoint of a step; when this returns, it is durable.

        What the store holds already is referred to, not written again. A step that was saved
        before is refused unless `replace` is given. `best` makes it the best of its run. With
        format="torch" it is one whole file, which `torch.load` reads as `{run}_step_000100.pt`.

        In a program of many ranks (torchrun, mpiexec) all of them call this, with the same tree:
        see docs/ranks.md. `comm` says which ranks, if not all; `SingleRank()` is this one alone.
        """

        with within_memory():

            def wanted() -> Wanted:
                return self.wanted(step, metrics, epoch, best, replace, format)

            ranks = program_ranks() if comm is None else communicator(comm)
            if ranks.size > 1:
                return Checkpoint(self._store, self._save_shared(ranks, state, wanted))
            node, leaves = tree.flatten(state)
            if is_cut_up(leaves):
                return Checkpoint(self._store, self._save_shared(ranks, state, wanted))
            head = self.commit(plan_leaves(state, node, leaves), wanted())
            self.tidy()
            return Checkpoint(self._store, head)

    def _save_shared(self, comm: Communicator, state: Any, wanted: Callable[[], Wanted]) -> Head:
        from standfast.store.save.ranks import save_shared

        return save_shared(self, comm, state, wanted)

    @cached_property
    def sharing(self) -> Sharing:
        """What the ranks that save into it together have agreed on."""
        from standfast.store.save.sharing import Sharing

        return Sharing()

    def assembler(self) -> Assembler:
        """One that writes into it, for a rank of several: the run is another's."""
        return Assembler(self._store.backend, self._store.index, self.hash)

    def tidy(self) -> None:
        """After a save: let the manifest tell of it, and delete what the run does not keep."""
        self._store.saved()
        if self.is_limited():
            for problem in budgets.after_save(self._store, self.hash).problems:
                warnings.warn(f"old checkpoints: {problem}", NotDeleted, stacklevel=3)

    def is_limited(self) -> bool:
        """Whether a save may have something deleted: the run or the store keeps not everything."""
        try:
            if not self._is_known or self.retention is not None:
                return True
            return read_settings(self._store.backend).budget is not None
        except StandfastError:  # nobody knows: whoever tries to keep it will say so
            return True

    def wanted(
        self,
        step: int,
        metrics: Mapping[str, Any] | None = None,
        epoch: int | None = None,
        best: bool = False,
        replace: bool = False,
        format: str = SAFETENSORS,
    ) -> Wanted:
        """What `save` is asked for besides the state; what it would refuse of it is refused."""
        if format not in FORMATS:
            raise BadOption(f"format={format!r}: there are {' and '.join(FORMATS)}")
        return Wanted(
            _checked(step, "a step", 0),
            checked_metrics(metrics),
            None if epoch is None else _checked(epoch, "an epoch", -names.MAX_STEP),
            bool(best),
            bool(replace),
            format,
        )

    def commit(
        self,
        plan: Plan,
        wanted: Wanted,
        assemble: Assemble | None = None,
        before_commit: Callable[[], None] | None = None,
    ) -> Head:
        """Commit a planned state, which `assemble` may have another process write.

        `before_commit` is called when all of it is on the disk but its record.
        """
        writer = self._own_writer()  # once: another thread may close the run meanwhile
        writer.claim()
        self._make_file()  # only now: before, another process may have deleted the run
        head = writer.save(self._file, plan, wanted, assemble, before_commit)
        self._store.will_tell()
        self._has_saved = True
        return head

    def assemble(self, task: Task, commit: Commit) -> Head:
        """Write all of a checkpoint in this process, and have it committed."""
        return self._own_writer().assemble(task, commit)

    def _own_writer(self) -> Writer:
        if self._writer is not None and self._writer.process != os.getpid():
            self._writer = None  # it is that of the process which this one was forked from
        if self._writer is None:
            self._writer = writer_of(self._store.backend, self._store.index, self.hash)
            self._writer.enter()
            if self.parent is not None:
                self._pin = pin(self._store.backend, self.parent.run, self.parent.step)
        return self._writer

    def _make_file(self) -> None:
        """The files that say what the run is, if another process has deleted it."""
        if self._is_known and not self._store.backend.exists(names.run_file(self.hash)):
            self._change_file()

    def load(
        self,
        ref: int | str = "latest",
        into: Any = None,
        strict: bool = True,
        rename: Mapping[str, str] | None = None,
        verify: bool = True,
        device: Any = None,
        cast: Any = None,
        part: str | None = None,
        comm: Any = None,
    ) -> Any:
        """A saved state: of a step, of `latest`, of `best` or of a tag.

        `latest` and `best` fall back to the newest intact checkpoint, with a FellBack warning,
        if they are damaged; a step or a tag raises. With `into`, the given tree is filled in
        place and returned; its leaves must be those of the state. `strict=False` fills what
        fits, and `rename={"old.path": "new.path"}` takes what was saved under one name as
        another: both return the state and a report.

        `device="cuda"` lets all tensors of torch lie there, `cast="bfloat16"` makes all that are
        of an everyday floating-point dtype that one, and `part="model"` reads and returns that
        part of the state alone.

        In a program of many ranks all of them call this, and get the same checkpoint; of tensors
        in `into` that are shared out each reads its own part, however they were when they were
        saved. `comm` is that of `save`.
        """
        with within_memory():
            ranks = program_ranks() if comm is None else communicator(comm)

            def load(checkpoint: Checkpoint) -> Any:
                return checkpoint.load(
                    into=into,
                    strict=strict,
                    rename=rename,
                    verify=verify,
                    device=device,
                    cast=cast,
                    part=part,
                    ranks=Rank(ranks.rank, ranks.size),
                )

            if ranks.size > 1:
                from standfast.store.load.ranks_choosing import with_checkpoint_together

                return with_checkpoint_together(self, ranks, ref, load)
            return self.with_checkpoint(ref, load)

    def checkpoint(self, ref: int | str = "latest") -> Checkpoint:
        """The checkpoint of a step, `latest`, `best` or a tag, without its state."""

        def found(checkpoint: Checkpoint) -> Checkpoint:
            if ref in names.RESERVED:
                checkpoint.check_files()
            return checkpoint

        return self.with_checkpoint(ref, found)

    def with_checkpoint(self, ref: int | str, action: Callable[[Checkpoint], Result]) -> Result:
        """Do something with the checkpoint that is meant; see `load` for what falls back."""
        if ref == "latest":
            return self._store.with_latest(action, self.hash)
        if ref == "best":
            return self._store.with_best(action, self.hash)
        self._store.index.refresh()
        if isinstance(ref, str) and ref.isdecimal() and len(ref) <= 16:  # no step has more digits
            ref = int(ref)
        if isinstance(ref, str):
            tagged = self._store.tagged(ref)
            if tagged is not None:
                if tagged.head.run != self.hash:
                    raise RefNotFound(f"the tag {ref!r} is on {tagged.ref}, in another run")
                return action(tagged)
            raise RefNotFound(f"run {self.hash} has no tag {ref!r}")
        step = _checked(ref, "a step", 0)
        return action(self._store.checkpoint(self.hash, step))

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints whose records can be read, in the order of their commits."""
        self._store.index.refresh()
        listed = list(self._store.index.newest(self.hash))
        return [Checkpoint(self._store, each.head) for each in reversed(listed)]

    def rename(self, name: str) -> None:
        """Give the run another label."""
        names.check_label(name, "a run's name")
        self._change_file(name=name)
        self._store.write_manifest()

    def describe(self, hp: Any) -> None:
        """Record the hyperparameters as they are now: those that do not count may have changed."""
        self._change_file(hyperparameters=recorded(hp), exact=exact_form(hp))

    def date(self, created: str | None, last_used: str | None) -> None:
        """Record when another program made and used it, as far as that is known."""
        self._change_file(created=created or self._file.created, last_used=last_used)

    @property
    def retention(self) -> Retention | None:
        """Which of its checkpoints are kept, as it is set at the moment; None if it never was."""
        return self._now().retention

    def retain(
        self,
        keep: Policy | Policies | None = None,
        *,
        budget: int | float | str | None = None,
        monitor: str | None = None,
        mode: Mode | None = None,
        **conventions: Any,
    ) -> Retained:
        """Delete all checkpoints that are not kept, now and after every save from now on.

        `keep` is a policy or several put together by `|`; `budget` is what the run may take on
        the disk ("50GB"): beyond it the oldest go. Both are stored with the run, until they are
        given again; without either, what is stored is done. The latest, the best, tagged ones and
        those in use always stay. The deletion is immediate. The names of Lightning and
        Transformers (`save_top_k`, `save_total_limit`, …) are taken too: see docs/retention.md.
        """
        told = translate(conventions, monitor, mode, keep)
        wanted = retention(told.keep, budget, told.monitor, told.mode or "min")
        if wanted is not None:
            self.set_retention(wanted)
        done = retaining.retain(self._store, self.hash)
        if done:
            self._store.saved()
        return done

    def verdicts(
        self, keep: Policy | Policies | None = None, *, budget: int | float | str | None = None
    ) -> list[Verdict]:
        """What `retain` would do with each checkpoint, and why, the newest first."""
        return verdicts.verdicts(self._store, self.hash, retention(keep, budget))

    def set_retention(self, wanted: Retention) -> None:
        """Store which checkpoints are kept, and delete none."""
        self._change_file(retention=wanted)

    def set_monitor(self, metric: str, mode: Mode) -> None:
        """Store which metric decides on the best checkpoint."""
        self._change_file(monitor=Monitor(metric, mode))

    def mark_best(self) -> None:
        """Let the best by the run's metric be its best, now that others have come or gone."""
        monitor = self._now().monitor
        if monitor is None:
            return
        self._store.index.refresh()
        step, marked = best_by(self._store, self.hash, monitor), self._store.index.best(self.hash)
        if step is not None and (marked is None or marked.step != step):
            self._store.checkpoint(self.hash, step).add_metrics({}, best=True)

    def _change_file(self, **fields: Any) -> None:
        """Replace some of what the run file says, if it says something else now."""
        self._file = change_run(
            self._store.backend,
            self._store.index,
            self.hash,
            lambda file: msgspec.structs.replace(file, **fields),
            self._file if self._is_known else None,
        )

    def _now(self) -> RunFile:
        """What the run file says at this moment, which other processes may have changed."""
        with suppress(MissingFile, DamagedFile):
            self._file = read_run(self._store.backend, self.hash)
        return self._file

    def delete(self, *steps: int, trash: Command | None = None, why: str = "") -> None:
        """Delete checkpoints, and what only they refer to.

        Tagged ones are refused. One of those that are left must be intact, which is verified, the
        newest first: `delete_all` deletes a run. With `trash`, they go there first.
        """
        if steps:
            deleting.delete(self._store, self.hash, steps, trash, why)
            self.mark_best()
            self._store.write_manifest()

    def check_delete(self, *steps: int) -> int:
        """Raise what `delete` would, and delete nothing; returns an intact step that is left."""
        return deleting.check_delete(self._store, self.hash, steps)

    def delete_all(self, trash: Command | None = None) -> None:
        """Delete the run with all its checkpoints; files that are not ours stay."""
        backend = self._store.backend
        with ExitStack() as stack:
            if self._writer is None or not self._writer.is_locking():
                lock = backend.lock(self.hash)
                if lock is None:
                    holder = backend.holder(self.hash)
                    raise Protected(f"run {self.hash}: {holder} writes into it; end that first")
                stack.enter_context(lock)
            deleting.delete_all(self._store, self.hash, trash)
        self.close()
        self._store.write_manifest()

    def delete_empty(self) -> None:
        """Delete the run, which this object has taken, if it has no record; else do nothing."""
        if self._writer is None or not self._writer.is_locking():
            return
        if deleting.delete_empty(self._store, self.hash):
            self.close()
            self._store.write_manifest()

    @property
    def parent(self) -> Place | None:
        """The checkpoint that the run came from."""
        return self._file.parent

    def close(self) -> None:
        """Let other processes write into the run; a later save takes it again.

        If this object has saved, the manifest tells of it when this returns.
        """
        self._leave()
        if self._has_saved:
            self._has_saved = False
            self._store.flush()

    def _leave(self) -> None:
        if self._pin is not None:
            self._pin.release()
            self._pin = None
        if self._writer is not None:
            self._writer.leave()
            self._writer = None

    def __del__(self) -> None:
        # When the interpreter ends, modules lose their names, and locks go with the process.
        if sys is not None and not sys.is_finalizing():
            self._leave()

    def take(self, patience: float = PATIENCE) -> None:
        """Take the run for this process; raises RunBusy if another one writes into it.

        One that is about to delete from it, or to add to it, is waited for, so many seconds.
        """
        self._own_writer().claim(patience)
        self._make_file()  # only now: before, another process may have deleted the run

    def __enter__(self) -> Self:
        """Take the run for this process; raises RunBusy if another one writes into it.

        In a program of many ranks the first one takes it, for all of them.
        """
        if is_first_of_program():
            self.take()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        return f"<run {self.hash}{label} of {self._store.url!r}>"


def _checked(value: Any, what: str, least: int) -> int:
    if isinstance(value, bool):
        raise BadLabel(f"{what} is an integer, not a bool")
    try:
        number = operator.index(value)
    except TypeError:
        raise BadLabel(f"{what} is an integer, not a {type(value).__name__}") from None
    if not least <= number < names.MAX_STEP:
        raise BadLabel(f"{what} is between {least} and 2^53: {number} is not")
    return number
