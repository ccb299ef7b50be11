"""The states of random generators, as trees that a store keeps, and back.

Out: `capture` for the global generators, `state_of` for one that is a part of a program's state.
Back: `restore` and `put_back`. What comes back out of a file is checked in full before it reaches
a generator: NumPy's take positions on trust, and would read beyond their words.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.errors import BadField, RefusedState, StateMismatch, UnknownFramework, shortened
from standfast.tensors.frameworks import (
    framework,
    frameworks_in_use,
    generator_state,
    restore_generator,
)


@dataclass(frozen=True)
class _Words:
    """An array of so many unsigned integers."""

    dtype: str
    count: int


@dataclass(frozen=True)
class _Whole:
    """A whole number from 0 to `most`."""

    most: int


_Form = _Words | _Whole | type[float] | None | Mapping[str, Any]
"""What may stand at a place of a tree; None for a float or None, a mapping for one of its keys."""

_VERSION: Final = 3
"""Of the states of Python's generator; the same since Python 3.2."""
_PYTHON: Final = {"version": _Whole(_VERSION), "words": _Words("uint32", 625), "gauss": None}
"""The words are 624 of the generator and its position in them; of a pair of normal numbers the
second one may wait."""

_SPARE: Final = {"has_uint32": _Whole(1), "uinteger": _Whole(2**32 - 1)}
"""The half of a 64-bit number that waits for the next draw of 32 bits."""
_PCG: Final = {"state": {"state": _Whole(2**128 - 1), "inc": _Whole(2**128 - 1)}, **_SPARE}
_BIT_GENERATORS: Final[Mapping[str, Mapping[str, Any]]] = {
    "MT19937": {"state": {"key": _Words("uint32", 624), "pos": _Whole(624)}},
    "PCG64": _PCG,
    "PCG64DXSM": _PCG,
    "Philox": {
        "state": {"counter": _Words("uint64", 4), "key": _Words("uint64", 2)},
        "buffer": _Words("uint64", 4),
        "buffer_pos": _Whole(4),
        **_SPARE,
    },
    "SFC64": {"state": {"state": _Words("uint64", 4)}, **_SPARE},
}
_LEGACY: Final = {"has_gauss": _Whole(1), "gauss": float}
"""Here too, of a pair of normal numbers, the second one may wait."""


def capture() -> dict[str, Any]:
    """The states of Python's and NumPy's global generators, and of all frameworks in use."""
    states = {
        "python": _from_python(random.getstate()),
        "numpy": _from_numpy(np.random.get_state(legacy=False)),
    }
    used = {name: each.random_states() for name, each in frameworks_in_use().items()}
    return states | {name: state for name, state in used.items() if state}


def restore(states: Mapping[str, Any]) -> list[str]:
    """Put back what `capture` gave; sentences say what could not be.

    Raises BadField for what it never gave; Python's and NumPy's generators, and those of the
    framework in question, are unchanged then.
    """
    if not isinstance(states, Mapping) or not all(isinstance(name, str) for name in states):
        raise BadField("random states are a mapping of names, such as 'python', to states")
    absent = []
    python = numpy = None
    if "python" in states:
        python = _to_python(states["python"], "random.python")
    else:
        absent.append("the checkpoint has no state of Python's generator")
    if "numpy" in states:
        numpy = _to_numpy(states["numpy"], "random.numpy", legacy=True)
    else:
        absent.append("the checkpoint has no state of NumPy's generator")
    absent += _restore_frameworks(states)
    # Last: a framework that is only now imported may have drawn from them.
    if python:
        random.setstate(python)
    if numpy:
        absent += _restore_numpy(numpy)
    return absent


def _restore_frameworks(states: Mapping[str, Any]) -> list[str]:
    absent = []
    for name in states.keys() - {"python", "numpy"}:
        try:
            used = framework(name)
        except UnknownFramework as error:
            absent.append(f"the random state of {shortened(name)!r} was left out: {error}")
        else:
            absent += used.restore_random_states(states[name])
    for name, used in frameworks_in_use().items():
        if name not in states and used.random_states():
            absent.append(f"the checkpoint has no state of the generators of {name}")
    return sorted(absent)


def _restore_numpy(state: dict[str, Any]) -> list[str]:
    here = np.random.get_state(legacy=False)["bit_generator"]
    if state["bit_generator"] != here:
        return [
            f"the checkpoint has the state of a {state['bit_generator']}, and NumPy's global "
            f"generator is a {here}: it was left as it is (see numpy.random.set_bit_generator)"
        ]
    np.random.set_state(state)
    return []


def is_generator(value: Any) -> bool:
    """Whether `state_of` and `put_back` know this kind of random generator."""
    if isinstance(value, np.random.Generator | np.random.RandomState) or _is_python(value):
        return True
    return generator_state(value) is not None


def _is_python(value: Any) -> bool:
    # Some, such as SystemRandom, have no state, or one of their own.
    return isinstance(value, random.Random) and (
        (type(value).getstate, type(value).setstate)
        == (random.Random.getstate, random.Random.setstate)
    )


def state_of(generator: Any) -> Any:
    """A copy of the state of a generator, as a tree; raises RefusedState if it is not known."""
    if _is_python(generator):
        return _from_python(generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return _from_numpy(generator.get_state(legacy=False))
    if isinstance(generator, np.random.Generator):
        return _from_numpy(generator.bit_generator.state)
    state = generator_state(generator)
    if state is None:
        raise RefusedState(
            f"a {type(generator).__qualname__} is no random generator that can be saved: "
            "use one of random.Random, numpy.random.Generator or torch.Generator"
        )
    return state


def put_back(generator: Any, state: Any) -> None:
    """Put back what `state_of` gave; raises StateMismatch if it was that of another kind.

    Raises BadField for what it never gave. The generator is unchanged if this raises.
    """
    if _is_python(generator):
        _refuse_other_kinds(state, "words", generator)
        generator.setstate(_to_python(state, "the state"))
    elif isinstance(generator, np.random.RandomState):
        here = generator.get_state(legacy=False)["bit_generator"]
        generator.set_state(_for_numpy(generator, here, state, legacy=True))
    elif isinstance(generator, np.random.Generator):
        here = type(generator.bit_generator).__name__
        generator.bit_generator.state = _for_numpy(generator, here, state, legacy=False)
    else:
        _refuse_other_kinds(state, "device", generator)
        restore_generator(generator, state)


def _for_numpy(generator: Any, here: str, state: Any, legacy: bool) -> dict[str, Any]:
    """The checked state, if it is that of such a generator around a bit generator called `here`."""
    _refuse_other_kinds(state, "bit_generator", generator)
    if isinstance(state, Mapping) and "bit_generator" in state and ("gauss" in state) != legacy:
        other = "Generator" if legacy else "RandomState"
        raise StateMismatch(
            f"the state is that of a {other} of NumPy, and this is a {type(generator).__qualname__}"
        )
    checked = _to_numpy(state, "the state", legacy)
    if checked["bit_generator"] != here:
        raise StateMismatch(
            f"the state is that of a {checked['bit_generator']}, and this generator has a {here}: "
            f"make it with numpy.random.{checked['bit_generator']}"
        )
    return checked


_KINDS: Final = {
    "words": "Python's random.Random",
    "bit_generator": "a generator of NumPy",
    "device": "a framework's generator",
}
"""The key by which a state can be told."""


def _refuse_other_kinds(state: Any, own: str, generator: Any) -> None:
    for key, kind in _KINDS.items():
        if key != own and isinstance(state, Mapping) and key in state:
            raise StateMismatch(
                f"the state is that of {kind}, and this is a {type(generator).__qualname__}"
            )


def _from_python(state: tuple[Any, ...]) -> dict[str, Any]:
    version, words, gauss = state
    return {"version": version, "words": np.array(words, np.uint32), "gauss": gauss}


def _to_python(state: Any, path: str) -> tuple[Any, ...]:
    checked = _checked(state, _PYTHON, path)
    words = tuple(checked["words"].tolist())
    if checked["version"] != _VERSION or words[-1] > 624:
        raise BadField(f"{path}: no state of version 3, or a position beyond its 624 words")
    return checked["version"], words, checked["gauss"]


def _from_numpy(state: Any) -> dict[str, Any]:
    tree: dict[str, Any] = dict(state)
    if tree["bit_generator"] not in _BIT_GENERATORS:
        raise RefusedState(
            f"the state of a {tree['bit_generator']} cannot be saved: use one of the bit "
            f"generators {', '.join(_BIT_GENERATORS)}"
        )
    return tree


def _to_numpy(state: Any, path: str, legacy: bool) -> dict[str, Any]:
    """A checked copy; `legacy` with the number that waits, which a RandomState has."""
    name = state.get("bit_generator") if isinstance(state, Mapping) else None
    form = _BIT_GENERATORS.get(name) if isinstance(name, str) else None
    if form is None:
        known = ", ".join(_BIT_GENERATORS)
        raise BadField(f"{path}: expected the state of one of {known} under 'bit_generator'")
    rest = {key: value for key, value in state.items() if key != "bit_generator"}
    checked: dict[str, Any] = _checked(rest, {**form, **_LEGACY} if legacy else form, path)
    if "PCG" in str(name) and checked["state"]["inc"] % 2 == 0:
        raise BadField(f"{path}.state.inc: the increment of a {name} is odd")
    return {"bit_generator": name, **checked}


def _checked(value: Any, form: _Form, path: str) -> Any:
    """A copy of a tree that has this form; raises BadField, with the path."""
    if isinstance(form, Mapping):
        if not isinstance(value, Mapping) or set(value) != set(form):
            raise _bad(path, f"a mapping with {', '.join(form)}", value)
        return {key: _checked(value[key], below, f"{path}.{key}") for key, below in form.items()}
    if isinstance(form, _Words):
        fits = type(value) is np.ndarray and value.dtype == form.dtype
        if not fits or value.shape != (form.count,):
            raise _bad(path, f"an array of {form.count} {form.dtype}", value)
        return value.copy()
    if isinstance(form, _Whole):
        if type(value) is not int or not 0 <= value <= form.most:
            raise _bad(path, f"a whole number from 0 to {form.most}", value)
        return value
    if type(value) is not float and (form is float or value is not None):
        raise _bad(path, "a float", value)
    return value


def _bad(path: str, expected: str, found: Any) -> BadField:
    return BadField(f"{path}: expected {expected}, found a {type(found).__name__} that is not")
