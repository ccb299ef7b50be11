"""What differs between two runs: hyperparameters, layers, samples."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar

from standfast.errors import StandfastError
from standfast.identity.identity import IGNORED
from standfast.store.backends.backend import Backend
from standfast.store.query.view import named_leaves
from standfast.store.schema import names
from standfast.store.v3 import companions
from standfast.tensorfile.diff import ABSENT, differences
from standfast.tensors import TensorSpec

if TYPE_CHECKING:
    from standfast.store.run import Run
    from standfast.store.schema.run_file import RunFile

PARTS: Final = ("hp", "model", "data")
"""What a run is, in the order of its hash."""

_STATE: Final = ("uids", "discarded", "tags")

Found = TypeVar("Found")
Pair = tuple[Any, Any]
"""What something was and is; ABSENT where it is not there."""


@dataclass(frozen=True, slots=True)
class LayerChanges:
    """What differs between two models, their weights apart."""

    modules: Mapping[str, Pair] = field(default_factory=dict)
    """The classes of modules, by the modules' names."""
    tensors: Mapping[str, Pair] = field(default_factory=dict)
    """The specs of parameters and buffers; text says which other one a tensor is."""

    @property
    def layers(self) -> set[str]:
        """The modules in which anything differs."""
        return {*self.modules, *(name.rpartition(".")[0] for name in self.tensors)}

    def __bool__(self) -> bool:
        return bool(self.modules or self.tensors)


@dataclass(frozen=True, slots=True)
class SampleChanges:
    """What differs between the data of two runs, by the samples' uids."""

    counts: tuple[int, int] = (0, 0)
    """How many samples there were and are."""
    added: Sequence[Any] = ()
    removed: Sequence[Any] = ()
    discarded: Sequence[Any] = ()
    restored: Sequence[Any] = ()
    """Those that are discarded no more."""
    tags: Mapping[Any, tuple[Sequence[str], Sequence[str]]] = field(default_factory=dict)
    other: Mapping[str, Pair] = field(default_factory=dict)
    """What else the data were described by."""

    @property
    def count(self) -> int:
        """How many samples something changed about."""
        lists = (self.added, self.removed, self.discarded, self.restored, self.tags)
        return sum(map(len, lists)) or abs(self.counts[1] - self.counts[0])

    def __bool__(self) -> bool:
        return bool(self.count or self.other)


@dataclass(frozen=True, slots=True)
class RunChanges:
    """What differs between two runs."""

    identity: tuple[str, ...]
    """Those of `hp`, `model` and `data` that are not the same, by their full digests."""
    hyperparameters: Mapping[str, Pair]
    """By their paths."""
    uncounted: frozenset[str]
    """Those of them that are no part of the identity."""
    trial: Pair | None
    """None too if it is the name that tells each of them apart from equal runs."""
    is_by_name: bool
    """Whether `hp` is in `identity` because of the names of the runs alone."""
    layers: LayerChanges | None
    samples: SampleChanges | None
    """None where they are not the same, and one of the runs has no description of them."""

    def __bool__(self) -> bool:
        return bool(self.identity or self.hyperparameters or self.trial)


def changes(before: Run, after: Run, largest: int | None = None) -> RunChanges:
    """What differs between two runs; what cannot be read counts as not described.

    So does a file of more than `largest` bytes, for those who have no time to read it.
    """
    old, new = before.file, after.file
    trial = differences(trial_of(old), trial_of(new)).get("trial")
    identity = tuple(part for part in PARTS if old.identity.get(part) != new.identity.get(part))
    hyperparameters = differences(
        named_hyperparameters(old.hyperparameters), named_hyperparameters(new.hyperparameters)
    )
    layers: LayerChanges | None = LayerChanges()
    samples: SampleChanges | None = SampleChanges()
    if "model" in identity:
        layers = _compared(_LAYERS, before, after, largest)
    if "data" in identity:
        samples = _compared(_SAMPLES, before, after, largest)
    return RunChanges(
        identity,
        hyperparameters,
        frozenset(hyperparameters.keys() & uncounted((old, new))),
        trial,
        not hyperparameters and not trial and (old.named or new.named),
        layers,
        samples,
    )


def _compared(kind: _Kind[Found], before: Run, after: Run, largest: int | None) -> Found | None:
    """What differs between two descriptions; None if one is missing, damaged or too large."""
    with suppress(StandfastError):
        found = []
        for run in (before, after):
            backend = run.store.backend
            if largest is not None and (backend.size(kind.file(run.hash)) or 0) > largest:
                return None
            found.append(kind.read(backend, run.hash))
        return kind.compare(*found)
    return None


def named_hyperparameters(hyperparameters: Any) -> dict[str, Any]:
    """Hyperparameters by their paths: `optimizer.lr`."""
    if hyperparameters is None:
        return {}
    if not isinstance(hyperparameters, dict):
        return {"hyperparameters": hyperparameters}
    return named_leaves(hyperparameters) if hyperparameters else {}


def varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same in all of them."""
    return [
        key
        for key in dict.fromkeys(key for each in settings for key in each)
        if len({repr(each.get(key, ABSENT)) for each in settings}) > 1
    ]


def uncounted(files: Iterable[RunFile]) -> set[str]:
    """Those of the hyperparameters of runs that are surely no part of their identities.

    One in which two runs differ whose digests are equal is; where these differ too, nobody knows
    by which of them.
    """
    of_digest: dict[str | None, list[dict[str, Any]]] = {}
    for file in files:
        named = named_hyperparameters(file.hyperparameters)
        of_digest.setdefault(file.identity.get("hp"), []).append(named)
    groups = of_digest.values()
    ignored = {key for group in groups for each in group for key in each if _is_ignored(key)}
    return ignored.union(*map(varying, groups))


def _is_ignored(key: str) -> bool:
    """Whether a hyperparameter never counts: only entries at the top can be such."""
    return key.partition(".")[0] in IGNORED


def trial_of(file: RunFile) -> dict[str, Any]:
    """The trial that a run was given, if it was given one."""
    return {} if file.trial is None or file.named else {"trial": file.trial}


def layer_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> LayerChanges:
    """What differs between two descriptions of models: modules, parameters and buffers."""
    return LayerChanges(
        differences(before.get("modules") or {}, after.get("modules") or {}),
        differences(_specs(before), _specs(after)),
    )


def _specs(description: Mapping[str, Any]) -> dict[str, Any]:
    if "value" in description:  # a model of no framework
        return dict(_members(description["value"]))
    tensors = {**(description.get("parameters") or {}), **(description.get("buffers") or {})}
    return {name: _spec(value) for name, value in tensors.items()}


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    waiting = [("", value)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, dict) and value:
            prefix = f"{path}." if path else ""
            waiting.extend((prefix + key, member) for key, member in reversed(value.items()))
        else:
            yield path or "model", _spec(value)


def _spec(value: Any) -> Any:
    """A tensor as a description has it: by its spec, or as another name for a tensor."""
    match value:
        case [str(dtype), [*shape]] if all(type(length) is int for length in shape):
            return TensorSpec(dtype, tuple(shape))
        case {"same": str(name)}:
            return f"the same as {name}"
    return value


def sample_changes(before: Mapping[str, Any], after: Mapping[str, Any]) -> SampleChanges:
    """What differs between two data states; a million samples take about a second."""
    old, new = (list(state.get("uids") or ()) for state in (before, after))
    removed, added = _apart(old, new)
    restored, discarded = _apart(*(list(s.get("discarded") or ()) for s in (before, after)))
    return SampleChanges(
        counts=(len(old), len(new)),
        added=added,
        removed=removed,
        discarded=discarded,
        restored=restored,
        tags=_tag_changes(before.get("tags") or {}, after.get("tags") or {}),
        other=differences(_others(before), _others(after)),
    )


def _others(state: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in _STATE}


def _apart(old: list[Any], new: list[Any]) -> tuple[list[Any], list[Any]]:
    """Those that only one of two lists has, each once, in their order."""
    if old == new:
        return [], []
    first, second = set(old), set(new)
    return _in_order(old, first - second), _in_order(new, second - first)


def _in_order(those: list[Any], chosen: set[Any]) -> list[Any]:
    return list(dict.fromkeys(each for each in those if each in chosen)) if chosen else []


def _tag_changes(
    before: Mapping[Any, Sequence[str]], after: Mapping[Any, Sequence[str]]
) -> dict[Any, tuple[Sequence[str], Sequence[str]]]:
    none: Sequence[str] = []
    changed = [uid for uid, tags in before.items() if after.get(uid, none) != tags]
    changed += [uid for uid in after if uid not in before]
    pairs = {uid: (before.get(uid, none), after.get(uid, none)) for uid in changed}
    # The order of tags does not count.
    return {uid: pair for uid, pair in pairs.items() if set(pair[0]) != set(pair[1])}


class _Kind(NamedTuple, Generic[Found]):
    """A kind of description: the file that it is in, how it is read, and compared."""

    file: Callable[[str], str]
    read: Callable[[Backend, str], Any]
    compare: Callable[[Any, Any], Found]


_LAYERS: Final = _Kind(names.architecture_file, companions.read_architecture, layer_changes)
_SAMPLES: Final = _Kind(names.data_state_file, companions.read_data_state, sample_changes)

__all__ = [
    "ABSENT",
    "PARTS",
    "LayerChanges",
    "RunChanges",
    "SampleChanges",
    "changes",
    "layer_changes",
    "sample_changes",
]
