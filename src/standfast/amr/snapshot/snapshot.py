"""Snapshots: the state of a running simulation in a store, of one rank or of many.

docs/snapshots.md is the page of what is in one, and of who does what when many ranks save.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, Literal, Self, TypeVar

from blake3 import blake3

from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.frontends import Frontend, check_savable
from standfast.amr.mesh.tree import AMRTree
from standfast.amr.shard import ShardContext
from standfast.amr.snapshot.files import export, exported_paths, in_rank_order, read_files
from standfast.amr.snapshot.parts import SIMULATION, SavedParts, part_of, rank_of, simulation_of
from standfast.amr.snapshot.reshard import load_share
from standfast.amr.snapshot.restore import (
    check_frontend,
    load_random,
    load_rank,
    load_shard,
    load_values,
)
from standfast.amr.sunc.checkpoint import check_writable
from standfast.errors import BadOption, StateMismatch, WrongRankCount
from standfast.files.digests import digests_in_order
from standfast.parallel import Communicator, together
from standfast.parallel.agreement import agree_all
from standfast.parallel.select import given_ranks
from standfast.store import Checkpoint, Run
from standfast.store.load.ranks_choosing import with_checkpoint_together
from standfast.store.save.planning import plan_state
from standfast.store.save.ranks import save_together
from standfast.tensors import randomness

Tree = TypeVar("Tree", bound=AMRTree)


class Snapshot:
    """A checkpoint of a simulation.

    >>> run = standfast.Store("simulations").run("heat", hp={"threshold": 0.1})
    >>> Snapshot.save(run, step, tree, arena, time=0.25, random={"kicks": rng})
    >>> state = Snapshot.load(run, frontend=frontend)
    >>> state.restore_random(kicks=rng)
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint

    @classmethod
    def save(
        cls,
        run: Run,
        step: int,
        tree: AMRTree,
        arena: FieldArena,
        *,
        time: float = 0.0,
        random: Mapping[str, Any] | None = None,
        values: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        comm: Any = None,
        best: bool = False,
        replace: bool = False,
    ) -> Self:
        """Collective: commit the state of all ranks, or of none; when this returns, it is durable.

        `random` has the program's own generators by name; the global ones are saved too. `values`
        is whatever else the program needs, the same on all ranks. The ranks are those of `comm`,
        or of the tree's shard, or this process alone.
        """
        ranks = _ranks(tree, comm)

        def prepare() -> tuple[int, dict[str, Any], dict[str, Any], list[str]]:
            _check_run(run)
            if not isinstance(tree, AMRTree) or not isinstance(arena, FieldArena):
                kinds = f"{type(tree).__name__} and a {type(arena).__name__}"
                raise BadOption(f"a snapshot is of a tree and an arena, not of a {kinds}")
            check_writable(tree, arena)
            _check_ranks(tree, ranks)
            wanted = run.wanted(step, metrics, None, best, replace)
            common = simulation_of(tree, ranks.size, _finite(time), _mapping(values))
            states = {"own": _states(random), "global": randomness.capture()}
            part = rank_of(tree, arena, states)
            # Of what may be long the ranks compare digests; a rank alone has nothing to compare.
            long = ("values", "sharding", "owners") if ranks.size > 1 else ()
            return wanted.step, common, part, [_digest({name: common[name]}) for name in long]

        at, common, part, digests = together(ranks, prepare)
        geometry = [tree.base_spacing, tree.bits_per_dim, tree.max_level]
        agreed = {
            "the step": at,  # first: ranks at different steps differ in all the rest
            "the spacing, the bits and the levels of the tree": geometry,
            "the frontend": common["frontend"],
            "the time": common["time"],
            "the values, of which these are digests": digests[:1],
            "the tree, or the owners of blocks": [common["tree"], *digests[1:]],
        }
        agree_all(ranks, agreed)
        state = {SIMULATION: common} if ranks.rank == 0 else {}
        state[part_of(ranks.rank)] = part
        return cls(
            save_together(run, ranks, step, state, metrics=metrics, best=best, replace=replace)
        )

    @classmethod
    def import_files(
        cls,
        run: Run,
        paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        frontend: Frontend,
        step: int | None = None,
        time: float = 0.0,
        values: Mapping[str, Any] | None = None,
        metrics: Mapping[str, Any] | None = None,
        comm: Any = None,
        verify: bool | Literal["require"] = True,
        best: bool = False,
        replace: bool = False,
    ) -> Self:
        """Collective: commit existing `.sunc` files, one of each rank that wrote them.

        All ranks give the same paths, and share the reading; there may be more files than ranks,
        or fewer. The snapshot is one of as many ranks as files; `load` with reshard=True shares
        its blocks out among any number. Links come with a GaugeFrontend. A file has neither the
        time nor random states. The step is that of the files' names, unless it is given.

        >>> Snapshot.import_files(run, ["run_step100_rank0.sunc", "run_step100_rank1.sunc"],
        ...                       frontend=frontend)
        """
        ranks = given_ranks(comm)

        def prepare() -> tuple[list[str], int, float, Mapping[str, Any], dict[str, Any]]:
            _check_run(run)
            check_savable(frontend)
            files, named = in_rank_order(paths)
            at_step = named if step is None else step
            if at_step is None:
                raise BadOption("step=None: the names of the files do not tell it; give step=")
            wanted = run.wanted(at_step, metrics, None, best, replace)
            at, given = _finite(time), _mapping(values)
            agreed = {
                "the step": wanted.step,
                "the files": [os.fsencode(path) for path in files],
                "the frontend": frontend.describe(),
                "the time": at,
                "the values, of which this is a digest": _digest({"values": dict(given)}),
            }
            return files, wanted.step, at, given, agreed

        files, chosen, at, given, agreed = together(ranks, prepare)
        agree_all(ranks, agreed)
        states = read_files(files, frontend, ranks, verify)
        state: dict[str, Any] = {}
        if ranks.rank == 0:
            state[SIMULATION] = simulation_of(states[0].tree, len(files), at, given)
        for number, each in states.items():
            state[part_of(number)] = rank_of(each.tree, each.arena, None)
        return cls(
            save_together(run, ranks, chosen, state, metrics=metrics, best=best, replace=replace)
        )

    @classmethod
    def load(
        cls,
        run: Run,
        ref: int | str = "latest",
        *,
        frontend: Frontend | None = None,
        comm: Any = None,
        reshard: bool = False,
    ) -> Restored[Any]:
        """Collective: what was saved, on every rank its own, bit for bit and verified.

        `ref` is a step, `latest`, `best` or a tag; `latest` and `best` fall back to the newest
        snapshot that is intact for all ranks. `frontend` refuses those of another kind. Another
        number of ranks than it was saved by is refused, unless `reshard` is given: then the
        blocks are shared out anew.
        """
        ranks = given_ranks(comm)
        together(ranks, lambda: _check_run(run))

        def load(checkpoint: Checkpoint) -> Restored[Any]:
            return cls(checkpoint)._restored(frontend, ranks, reshard)

        return with_checkpoint_together(run, ranks, ref, load)

    def _restored(
        self, frontend: Frontend | None, ranks: Communicator, reshard: bool
    ) -> Restored[Any]:
        parts, ref = self._parts, self.checkpoint.ref
        if frontend is not None:
            check_frontend(parts.frontend, frontend, ref)
        if ranks.size == parts.ranks:
            state = load_rank(parts, ranks.rank)
            state.tree.attach_shard(load_shard(parts, ranks))
        elif reshard:
            state = load_share(parts, ranks)
        else:
            raise WrongRankCount(
                f"{ref} was saved by {_ranks_text(parts.ranks)}, and is loaded by {ranks.size}: "
                "pass reshard=True to share its blocks out anew"
            )
        random = load_random(parts, ranks.rank)
        return Restored(self, state.tree, state.arena, self.step, self.time, self.values, random)

    @cached_property
    def _parts(self) -> SavedParts:
        return SavedParts(self.checkpoint)

    @property
    def step(self) -> int:
        """The step that it was saved at."""
        return self.checkpoint.step

    @property
    def time(self) -> float:
        """The time of the simulation."""
        return self._parts.time

    @property
    def ranks(self) -> int:
        """How many ranks saved it."""
        return self._parts.ranks

    @property
    def frontend(self) -> Frontend:
        """What lies at a site, and where the mesh ends."""
        return self._parts.frontend

    @cached_property
    def values(self) -> Any:
        """What else the program saved."""
        return load_values(self.checkpoint, self._parts.values)

    def export(
        self,
        path: str | os.PathLike[str],
        *,
        compress: Literal["zstd"] | None = None,
        extras: bool = True,
    ) -> list[str]:
        """Write the `.sunc` file of each rank; returns their paths.

        `path` is a folder, in which they get the names that `format_path` gives, or the path of
        one file, to which several ranks add their numbers. With compress="zstd" each is a zstd
        file of its own, `.sunc.zst`. `extras=False` leaves out digests, and all else that is not
        the original's.
        """
        return export(self._parts, path, compress, extras)

    def exported_paths(
        self, path: str | os.PathLike[str], compress: Literal["zstd"] | None = None
    ) -> list[str]:
        """Where `export` would write."""
        return exported_paths(self._parts, path, compress)

    def __repr__(self) -> str:
        return f"<snapshot {self.checkpoint.ref}>"


@dataclass(frozen=True)
class Restored(Generic[Tree]):
    """What `Snapshot.load` gives: a simulation that can go on."""

    snapshot: Snapshot
    tree: Tree
    arena: FieldArena
    step: int
    time: float
    values: Any
    _random: Any = field(repr=False)

    @property
    def shard(self) -> ShardContext | None:
        """Who owns which block, if there are several ranks that share the mesh."""
        return self.tree.shard

    def restore_random(self, /, **generators: Any) -> list[str]:
        """Put back the states of generators, by the names that they were saved under.

        The global ones are put back too. Sentences say what was saved and could not be, or was
        not saved: a framework that is imported only now.
        """
        if self._random is None:
            raise StateMismatch(
                f"{self.snapshot.checkpoint.ref} has no random states for this rank: it was saved "
                f"by {_ranks_text(self.snapshot.ranks)}, or imported from files; seed the "
                "generators anew"
            )
        own = self._random["own"]
        if own.keys() != generators.keys():
            raise StateMismatch(
                f"{self.snapshot.checkpoint.ref} has the random states of {_listed(own)}, and "
                f"{_listed(generators)} were given"
            )
        before = {name: randomness.state_of(each) for name, each in generators.items()}
        try:
            for name, generator in generators.items():
                randomness.put_back(generator, own[name])
        except BaseException:
            for name, generator in generators.items():
                randomness.put_back(generator, before[name])
            raise
        return randomness.restore(self._random["global"])


def _check_run(run: Any) -> None:
    if not isinstance(run, Run):
        raise BadOption(f"run is a {type(run).__name__}: give one, as Store(…).run('heat') is")


def _ranks(tree: Any, comm: Any) -> Communicator:
    shard = tree.shard if comm is None and isinstance(tree, AMRTree) else None
    return given_ranks(comm) if shard is None else shard.comm


def _check_ranks(tree: AMRTree, ranks: Communicator) -> None:
    shard = tree.shard
    if shard is not None and (shard.rank, shard.size) != (ranks.rank, ranks.size):
        raise BadOption(
            f"this is rank {shard.rank} of the {shard.size} that share the tree, and rank "
            f"{ranks.rank} of {ranks.size} in comm: leave comm out"
        )


def _states(generators: Mapping[str, Any] | None) -> dict[str, Any]:
    if generators is not None and not isinstance(generators, Mapping):
        raise BadOption(f"random is a {type(generators).__name__}: give generators by name")
    names = list(generators or {})
    if not all(isinstance(name, str) for name in names):
        raise BadOption(f"random={names}: generators have names, as keyword arguments have")
    return {name: randomness.state_of(each) for name, each in (generators or {}).items()}


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "no generators"


def _finite(time: Any) -> float:
    try:
        value = float(time)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise BadOption(f"time={time!r:.40}: it is a finite number")
    return value


def _mapping(values: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if values is not None and not isinstance(values, Mapping):
        raise BadOption(f"values is a {type(values).__name__}: give a mapping of names to values")
    return values or {}


def _digest(state: dict[str, Any]) -> str:
    """What tells whether all ranks would save the same."""
    plan = plan_state(state)
    hasher = blake3(plan.tree)
    for tensor in plan.tensors:
        hasher.update(f"{tensor.name} {tensor.kind} {tensor.spec} {tensor.view}".encode())
    for _, digests in digests_in_order([t.source for t in plan.tensors if t.source]):
        hasher.update(digests)
    return hasher.hexdigest()


def _ranks_text(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
