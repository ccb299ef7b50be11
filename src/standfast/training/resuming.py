"""A checkpoint put back into the objects of a program, and what came of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from standfast.errors import StateMismatch
from standfast.parallel import SingleRank
from standfast.store import Checkpoint
from standfast.store.load.filling import LoadReport, leaves_of, spec_of
from standfast.store.load.loading import saved_tree
from standfast.store.load.ranks_choosing import with_checkpoint_together
from standfast.store.schema.names import dotted
from standfast.store.schema.run_file import software
from standfast.store.store import Store
from standfast.store.tree.per_rank import own_of
from standfast.store.tree.tree import Path, Ranks, Ref
from standfast.tensors import TensorSpec, frameworks, randomness
from standfast.tensors.devices import Device
from standfast.tensors.frameworks import frameworks_in_use, shards_of
from standfast.training import loaders
from standfast.training.beginning import Beginning, changed_settings
from standfast.training.comparison import compare, differences
from standfast.training.parts import member_at, merged
from standfast.training.ranks import Crew
from standfast.training.report import NO_LOADER, ResumeReport
from standfast.training.state import (
    RANDOM,
    TrainingState,
    generators_of,
    parts_of,
    trees_of,
)

MIDWAY: Final = "standfast.midway"
"""The name under which a checkpoint has the epoch that it was saved in the middle of, if no loader
knows where."""
_SHOWN: Final = 5
_MOVING: Final = frozenset({"last_epoch", "_step_count", "num_bad_epochs", "best", "0"})
"""What changes as a scheduler goes on; `0` is the rate in its list of last rates."""


class Resumption:
    """The way of a run's last checkpoint, if it has one, into the state of a program."""

    def __init__(
        self,
        store: Store,
        state: TrainingState,
        beginning: Beginning,
        strict: bool,
        crew: Crew | None = None,
    ) -> None:
        """With a crew of several ranks, all of them restore the same checkpoint."""
        self._store = store
        self._crew = crew or Crew(SingleRank())
        self._ranks = self._crew.ranks
        self._changed_ranks: str | None = None
        """What another number of ranks means for what each of them had for itself."""
        self._state = state
        self._beginning = beginning
        self._strict = strict
        self._left_out: dict[str, str] = {}
        """The parts that are not restored, and why."""
        self._not_saved: set[str] = set()
        """The generators of a rank that there was not when it was saved."""
        self._random: dict[str, Any] | None = None
        self._generators: dict[str, Any] = {}

    def restore(self) -> ResumeReport:
        """Restore everything, the random states too; raises StateMismatch or a DamagedFile.

        What does not fit is found before anything is changed. Damage is too, but for tensors on
        devices that all of a checkpoint is put into: they are filled as it is verified.
        """
        found = self._load()
        run = self._beginning.run
        if found is None:
            return ResumeReport(run.hash, run.name, notes=self._beginning.notes)
        checkpoint, fits, tree = found
        self._random = tree.pop(RANDOM, None if self._changed_ranks else {})
        midway = tree.pop(MIDWAY, None)
        before = self._settings_now()
        self._put_back(tree, fits)
        inexact = [*self._differing(tree, fits), *_other_software(checkpoint)]
        inexact += self.restore_random()
        inexact += [self._changed_ranks] if self._changed_ranks else []
        inexact += self._left_out.values()
        inexact += self._unsure_of_data(midway)
        epoch = checkpoint.epoch
        return ResumeReport(
            run=run.hash,
            name=run.name,
            step=checkpoint.step,
            epoch=epoch if epoch is None or loaders.in_epoch(self._state) else epoch + 1,
            ref=checkpoint.ref,
            branched=checkpoint.head.run != run.hash,
            found=fits,
            inexact=inexact,
            notes=(
                *self._beginning.notes,
                *self._fallen_back(checkpoint),
                *self._overruled(checkpoint, before),
                *self._without_loader(),
            ),
        )

    def restore_random(self) -> list[str]:
        """Put the random states back, as they were saved; says what could not be."""
        if self._random is None:
            return []
        for name, saved in self._generators.items():
            parts_of(self._state)[name].restore(saved)
        return randomness.restore(self._random)

    def _load(self) -> tuple[Checkpoint, LoadReport, dict[str, Any]] | None:
        """The checkpoint to go on from, what of it fits, and all of it, verified."""
        if self._beginning.parent is not None:
            parent = self._beginning.parent
            found: _Found = self._crew.together(lambda: self._loaded(parent))
            return found
        run = self._beginning.run
        if not self._crew.tell(lambda: self._store.index.count(run.hash)):
            return None
        return with_checkpoint_together(run, self._crew.comm, "latest", self._loaded)

    def _loaded(self, checkpoint: Checkpoint) -> tuple[Checkpoint, LoadReport, dict[str, Any]]:
        fits = self._compared(checkpoint)
        if self._strict and not fits.exact:
            raise StateMismatch(
                "\n".join(
                    [
                        f"{checkpoint.ref} does not fit the program; nothing of it was restored:",
                        *fits.differences(),
                        *_dropped(checkpoint),
                        "strict=False restores what fits",
                    ]
                )
            )
        return checkpoint, fits, self._placed(checkpoint, fits)

    def _placed(self, checkpoint: Checkpoint, fits: LoadReport) -> Any:
        """The state, with the program's own tensors where they lie on devices, filled.

        Others are made where they will stay: copied there later, they would take memory twice.
        Where not everything fits, only what is shared out over ranks is filled here.
        """
        parts, trees = parts_of(self._state), trees_of(self._state)
        accepted = None if self._strict else {*fits.loaded}

        def own(path: Path) -> Any:
            part = parts.get(path[0])
            mine = member_at(trees, path) if part and part.takes_own else None
            if accepted is None:
                return mine
            return mine if dotted(path) in accepted and shards_of(mine) is not None else None

        def home(path: Path) -> Device | None:
            if path[0] not in parts or accepted is not None:
                return None
            mine = frameworks.device_of(member_at(trees, path))
            return mine or frameworks.home(parts[path[0]].value, path[1:])

        def blank(path: Path, spec: TensorSpec) -> Any:
            part = parts.get(path[0])
            return frameworks.blank(part.value, path[1:], spec) if part else None

        saved = self._localized(saved_tree(checkpoint, None))
        return checkpoint.state_with(saved, own, home, blank)

    def _localized(self, saved: Any) -> Any:
        """A saved tree as this rank has it.

        Where another number of ranks saved it, each takes the random states of the one with its
        number, and a rank that there was not before goes on with its own.
        """
        rank, size = self._ranks
        for name in (RANDOM, *generators_of(self._state)) if isinstance(saved, dict) else ():
            if name in saved:
                members = saved[name] if isinstance(saved[name], Ranks) else [saved[name]]
                if len(members) != size:
                    self._changed_ranks = _of_other_ranks(len(members), size)
                    del saved[name]
                    if rank < len(members):
                        saved[name] = members[rank]
                    else:
                        self._not_saved.add(name)
        for name in parts_of(self._state) if isinstance(saved, dict) else ():
            members = saved.get(name)
            if isinstance(members, Ranks) and len(members) != size:
                self._leave_out(name, len(members))
                del saved[name]
        return own_of(saved, self._ranks)

    def _leave_out(self, name: str, count: int) -> None:
        why = f"{name}: {_of_ranks(count, self._ranks.size)}, and it was one for each"
        if self._strict:
            raise StateMismatch(f"{why}: nothing was restored; strict=False leaves it as it is")
        self._left_out[name] = f"{why}: it is left as it is"

    def _compared(self, checkpoint: Checkpoint) -> LoadReport:
        record = checkpoint.record
        saved = self._localized(saved_tree(checkpoint, None))
        if not isinstance(saved, dict):
            raise StateMismatch(f"{checkpoint.ref} holds no training state, but a single value")
        saved.pop(RANDOM, None)
        saved.pop(MIDWAY, None)

        def spec(leaf: Any) -> TensorSpec | None:
            return record.specs[leaf.tensor] if isinstance(leaf, Ref) else None

        mine, parts = trees_of(self._state), parts_of(self._state)
        absent = self._left_out.keys() | self._not_saved
        mine = {name: each for name, each in mine.items() if name not in absent}
        report = compare(mine, saved, spec, [name for name in parts if parts[name].is_tree])
        if not report.exact:  # then what an object has not yet is not taken either
            own = leaves_of(mine)
            report.unexpected.extend(path for path in report.loaded if path not in own)
            report.loaded[:] = [path for path in report.loaded if path in own]
        return report

    def _put_back(self, tree: dict[str, Any], fits: LoadReport) -> None:
        exact, accepted = fits.exact, set(fits.loaded)
        parts = parts_of(self._state)
        # Loaders first: they refuse what was saved of other data, before anything is changed.
        for name in sorted(parts, key=lambda name: not loaders.is_loader(parts[name].value)):
            if name not in tree:
                continue
            part, saved = parts[name], tree[name]
            if not exact:
                saved = merged(part.tree(), saved, accepted.__contains__, name)
            try:
                part.restore(saved)
            except StateMismatch as error:
                if self._strict:
                    raise
                fits.mismatched.append(f"{name}: {error}")
            if randomness.is_generator(part.value):
                self._generators[name] = saved

    def _unsure_of_data(self, midway: Any) -> Iterator[str]:
        if midway is not None:
            yield (
                f"it was saved in the middle of epoch {midway}, and no loader in the state knows "
                "where: the epoch begins anew"
            )
        if loaders.count_in_epoch(self._state) > 1:
            yield "several loaders were in the middle of an epoch, which may have been another each"

    def _differing(self, tree: dict[str, Any], fits: LoadReport) -> Iterator[str]:
        """What is not as it was saved, now that it was put back: the objects are asked again."""
        if not fits.exact:
            yield "not everything was restored"
        accepted = set(fits.loaded)
        paths = [p for p in differences(trees_of(self._state), tree) if p in accepted]
        for path in paths[:_SHOWN]:
            yield f"{path} is not what was saved, though it was put back"
        if len(paths) > _SHOWN:
            yield f"and {len(paths) - _SHOWN:,} more leaves"

    def _fallen_back(self, checkpoint: Checkpoint) -> Iterator[str]:
        index = self._store.index
        newest = next(index.newest(checkpoint.head.run), None)
        if index.unreadable(checkpoint.head.run) or (
            self._beginning.parent is None and newest and newest.step != checkpoint.step
        ):
            yield f"a checkpoint of the run is damaged: {checkpoint.ref} is the newest intact one"

    def _overruled(self, checkpoint: Checkpoint, before: dict[str, Any]) -> Iterator[str]:
        """What other hyperparameters may have set, and the checkpoint has set back."""
        changed = [*changed_settings(self._beginning.hp, checkpoint.run.file.hyperparameters)]
        if not changed:
            return
        yield "its hyperparameters are others than those of the checkpoint:"
        yield from (f"  {line}" for line in changed[:_SHOWN])
        after = self._settings_now()
        replaced = [
            f"  {path}: {after[path]!r:.40} is restored, {value!r:.40} was set"
            for path, value in before.items()
            if path in after and repr(after[path]) != repr(value)
        ]
        if replaced:
            yield "what the program had set before is overruled; set it again inside the `with`:"
            yield from replaced[:_SHOWN]
            if len(replaced) > _SHOWN:
                yield f"  and {len(replaced) - _SHOWN:,} more"

    def _settings_now(self) -> dict[str, Any]:
        """What a program may have set in its objects, by path: plain values that stay the same."""
        found: dict[str, Any] = {}
        for name, part in parts_of(self._state).items():
            if part.is_tree or loaders.is_loader(part.value) or name in self._generators:
                continue
            leaves = leaves_of({name: part.tree()})
            for path, leaf in leaves.items():
                container, _, key = path.rpartition(".")
                scheduled = key == "lr" and f"{container}.initial_lr" in leaves
                if key not in _MOVING and not scheduled and spec_of(leaf) is None:
                    found[path] = leaf
        return found

    def _without_loader(self) -> Iterator[str]:
        if frameworks_in_use() and not loaders.has_loader(self._state):
            yield NO_LOADER


def _of_ranks(before: int, now: int) -> str:
    return f"{before} rank{'s' if before > 1 else ''} saved it, {now} go{'es' * (now == 1)} on"


def _of_other_ranks(before: int, now: int) -> str:
    return f"{_of_ranks(before, now)}: random numbers are not those of before"


_Found = tuple[Checkpoint, LoadReport, dict[str, Any]]


def _dropped(checkpoint: Checkpoint) -> Iterator[str]:
    for part in checkpoint.head.dropped:
        yield f"its {part} was deleted, because the run does not keep that of old checkpoints"


def _other_software(checkpoint: Checkpoint) -> Iterator[str]:
    here = software()
    for name, version in checkpoint.head.software.items():
        if name != "standfast" and here.get(name, version) != version:
            yield f"{name} {version} saved it, and {here[name]} is running"
