"""What a training program is made of, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from standfast.errors import RefusedState
from standfast.store.load.filling import leaves_of, spec_of
from standfast.store.tree.per_rank import ALONE, PerRank, Rank, per_rank
from standfast.tensors import randomness
from standfast.tensors.frameworks import describe
from standfast.training.parts import Part, part_of

RANDOM: Final = "random"
"""The name under which the states of the global generators are saved."""


class TrainingState:
    """Everything that a training run needs to go on, by the names it is saved under.

    A part is anything with `state_dict` and `load_state_dict`, a generator of random numbers, or a
    tree of tensors and plain values, which is filled in place. The global random states of Python,
    NumPy and torch come with it.

    >>> state = standfast.TrainingState(model=model, optimizer=optimizer, loader=loader)
    >>> state.model is model
    True
    """

    # What is done with a state stands below the class: all other names are those of its parts.

    def __init__(self, *unnamed: Any, **parts: Any) -> None:
        if unnamed or not parts:
            raise RefusedState(
                "a training state is made of parts by name: TrainingState(model=model, …)"
            )
        if RANDOM in parts:
            raise RefusedState(
                f"{RANDOM!r} is the name that the global random states are saved under: give a "
                "generator of your own another one"
            )
        self.__parts: dict[str, Part] = {name: part_of(name, it) for name, it in parts.items()}

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["_TrainingState__parts"][name].value
        except KeyError:
            raise AttributeError(f"the training state has no part {name!r}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        parts = self.__dict__.get("_TrainingState__parts")
        if parts is None:  # it is being made
            super().__setattr__(name, value)
        elif name in parts:  # arrays of JAX never change: there are always new ones
            parts[name] = part_of(name, value)
        else:
            raise AttributeError(f"the training state has no part {name!r} to be replaced")

    def __getitem__(self, name: str) -> Any:
        return self.__parts[name].value

    def __iter__(self) -> Iterator[str]:
        return iter(self.__parts)

    def __repr__(self) -> str:
        parts = (f"{name}={type(part.value).__name__}" for name, part in self.__parts.items())
        return f"TrainingState({', '.join(parts)})"


def parts_of(state: TrainingState) -> Mapping[str, Part]:
    """The parts of a state, without the global random states."""
    parts: Mapping[str, Part] = vars(state)["_TrainingState__parts"]
    return parts


def tree_of(state: TrainingState, ranks: Rank = ALONE) -> dict[str, Any]:
    """All that is saved of a state now; the tensors are those of the program, not copies.

    Of several ranks each has random states of its own.
    """
    tree = {**trees_of(state), RANDOM: randomness.capture()}
    if ranks.size > 1:
        for name in (RANDOM, *generators_of(state)):
            if not isinstance(tree[name], PerRank):
                tree[name] = per_rank(tree[name])
    return tree


def trees_of(state: TrainingState) -> dict[str, Any]:
    """The same without the global random states."""
    return {name: part.tree() for name, part in parts_of(state).items()}


def generators_of(state: TrainingState) -> list[str]:
    """The parts that are generators of random numbers."""
    parts = parts_of(state)
    return [name for name in parts if randomness.is_generator(parts[name].value)]


def model_of(state: TrainingState) -> Any:
    """What the identity of a run knows of a state: its modules, or its model's tensors by spec."""
    parts = parts_of(state)
    models: dict[str, Any] = {
        name: part.value for name, part in parts.items() if isinstance(describe(part.value), dict)
    }
    if not models and "model" in parts:
        # Values that change do not make another model.
        leaves = leaves_of(parts["model"].tree())
        models = {"model": {path: spec for path, leaf in leaves.items() if (spec := spec_of(leaf))}}
    if list(models) == ["model"]:
        return models["model"]
    return models or None
