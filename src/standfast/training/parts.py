"""The parts of a training state: how each becomes a tree, and takes one back."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from standfast.errors import RefusedState, RefusedTensor, StandfastError, StateMismatch
from standfast.store.load.filling import spec_of
from standfast.store.tree.per_rank import PerRank
from standfast.tensors import fill, kind_of, randomness, source_of, why_not_fillable
from standfast.tensors.frameworks import copy_on_device, device_of, frameworks_in_use, unwrapped

_CONTAINERS: Final = (dict, OrderedDict, list, tuple)

Fits = Callable[[str], bool]
"""Whether the leaf at a path may be taken from the checkpoint."""


class Part(Protocol):
    """One part of a training state."""

    value: Any
    """The object, as the program has it."""
    is_tree: bool
    """Whether it is containers of the program's own, rather than the state of an object."""

    @property
    def takes_own(self) -> bool:
        """Whether `restore` may be given the very tensors of `tree`, once they are filled."""
        ...

    def tree(self) -> Any:
        """Its state now: tensors and plain values, not copied."""
        ...

    def restore(self, saved: Any) -> None:
        """Put a saved tree back; raises StateMismatch if the object refuses it."""
        ...


def part_of(name: str, value: Any) -> Part:
    """A part of a training state; raises RefusedState for what cannot be put back."""
    if isinstance(value, PerRank):
        return _Own(part_of(name, value.tree))
    if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
        if not callable(getattr(value, "load_state_dict", None)):
            raise RefusedState(
                f"{name}: a {type(value).__name__} has a state_dict and no load_state_dict, so "
                "that its state could not be put back"
            )
        return _Stateful(name, value)
    if randomness.is_generator(value):
        return _Generator(value)
    if value is None or isinstance(value, _CONTAINERS) or _is_fillable(value):
        return _Tree(value)
    kind = type(value).__name__
    instead = (
        "make it a standfast.ResumableLoader, which takes the same arguments and knows its place"
        if kind == "DataLoader"
        else "give an object with state_dict and load_state_dict, a generator, tensors, or a dict "
        "that holds the value"
    )
    raise RefusedState(f"{name}: a {kind} cannot be put back where it was: {instead}")


def _is_fillable(value: Any) -> bool:
    try:
        kind_of(value)
    except RefusedTensor:
        return False
    return why_not_fillable(value) is None


class _Stateful:
    """An object with `state_dict` and `load_state_dict`."""

    is_tree = False

    def __init__(self, name: str, value: Any) -> None:
        self.value = value
        self._name = name
        self._stateful = unwrapped(value)

    @property
    def takes_own(self) -> bool:
        # Another's may empty its tensors first, and would be given what it has just emptied.
        module = getattr(self._stateful.load_state_dict, "__module__", None) or ""
        return module.partition(".")[0] in frameworks_in_use()

    def tree(self) -> Any:
        return self._stateful.state_dict()

    def restore(self, saved: Any) -> None:
        try:
            self._stateful.load_state_dict(saved)
        except StandfastError:
            raise
        except Exception as error:
            raise StateMismatch(
                f"{self._name}: {type(self.value).__name__}.load_state_dict refused what was "
                f"saved: {error}"
            ) from error


class _Generator:
    """A generator of random numbers of the program's own."""

    is_tree = False
    takes_own = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree(self) -> Any:
        return randomness.state_of(self.value)

    def restore(self, saved: Any) -> None:
        randomness.put_back(self.value, saved)


class _Own:
    """A part that each rank has for itself."""

    takes_own = False

    def __init__(self, part: Part) -> None:
        self._part = part
        self.value = part.value
        self.is_tree = part.is_tree

    def tree(self) -> Any:
        return PerRank(self._part.tree())

    def restore(self, saved: Any) -> None:
        self._part.restore(saved)
        self.value = self._part.value


class _Tree:
    """Tensors and plain values in containers, filled in place."""

    is_tree = True
    takes_own = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def tree(self) -> Any:
        return self.value

    def restore(self, saved: Any) -> None:
        self.value = _filled(self.value, saved)


def _filled(mine: Any, saved: Any) -> Any:
    """A tree that was checked to fit, with everything that can be filled in place."""
    if isinstance(mine, PerRank):
        mine.tree = _filled(mine.tree, saved)
        return mine
    if isinstance(mine, dict) and isinstance(saved, dict):
        for key in mine.keys() - saved.keys():
            del mine[key]  # it was not there when it was saved
        for key, member in saved.items():
            mine[key] = _filled(mine[key], member) if key in mine else member
        return mine
    if isinstance(mine, list) and isinstance(saved, list):
        mine[:] = _members(mine, saved)
        return mine
    if isinstance(mine, tuple) and isinstance(saved, tuple):
        return tuple(_members(mine, saved))
    if mine is saved:
        return mine
    both = spec_of(mine) is not None and spec_of(saved) is not None
    if both and not why_not_fillable(mine):
        source = source_of(saved)
        flat = source.contiguous()
        if flat is not None:
            array = flat.view(source.spec.kind.numpy).reshape(source.spec.array_shape)
            fill(mine, array, source.spec)
            return mine
        if device_of(mine) and device_of(saved):
            copy_on_device(mine, saved)
            return mine
    return saved


def member_at(tree: Any, path: Sequence[Any]) -> Any:
    """What a tree has at the keys and positions of a path; None if it has nothing there."""
    for key in path:
        if isinstance(tree, PerRank):
            tree = tree.tree
        if isinstance(tree, dict):
            tree = tree.get(key)
        elif isinstance(tree, list | tuple) and isinstance(key, int) and key < len(tree):
            tree = tree[key]
        else:
            return None
    return tree


def _members(mine: list[Any] | tuple[Any, ...], saved: list[Any] | tuple[Any, ...]) -> list[Any]:
    if len(mine) != len(saved):  # it was empty, or it is now
        return list(saved)
    return [_filled(a, b) for a, b in zip(mine, saved, strict=True)]


def merged(mine: Any, saved: Any, fits: Fits, path: str) -> Any:
    """A tree with the leaves of another, where they fit, and its own elsewhere.

    What is empty stays so: the moments of an optimizer may be those of another model.
    """
    if isinstance(mine, PerRank):
        return merged(mine.tree, saved, fits, path)
    if isinstance(mine, dict) and isinstance(saved, dict):
        result = copy.copy(mine)  # of its class, with its attributes
        for key in mine:
            if key in saved:
                result[key] = merged(mine[key], saved[key], fits, f"{path}.{key}")
        return result
    if isinstance(mine, list | tuple) and isinstance(saved, list | tuple):
        if len(mine) != len(saved):
            return mine
        members = [
            merged(a, b, fits, f"{path}.{i}")
            for i, (a, b) in enumerate(zip(mine, saved, strict=True))
        ]
        return type(mine)(members) if type(mine) in (list, tuple) else mine
    return saved if fits(path) else mine
