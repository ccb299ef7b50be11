"""The seam between tensors and jax: `tensors.adapter.Framework` for its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

from standfast.errors import (
    BadField,
    BadOption,
    StateMismatch,
    UnknownFramework,
    UnsupportedTensor,
    shortened,
)
from standfast.jax.arrays import (
    FLOAT4,
    as_weak,
    host_array,
    is_key,
    is_on_host,
    on_host,
    readable,
    source,
    words_of,
)
from standfast.jax.boxes import implementation, pieces_of, shards
from standfast.store.tree.aliases import c_strides
from standfast.tensors import Source, TensorSpec
from standfast.tensors.adapter import Guard, Memory
from standfast.tensors.devices import Device
from standfast.tensors.frameworks import memory_source

__all__ = [
    "as_kind",
    "copy",
    "describe",
    "device",
    "device_of",
    "fill",
    "generator_state",
    "guard",
    "held",
    "home",
    "kind",
    "memory",
    "plain",
    "random_states",
    "restore_generator",
    "restore_random_states",
    "same",
    "shards",
    "source",
    "stretch",
    "tensor",
    "unwrapped",
    "view",
    "why_not_fillable",
]
"""What an adapter provides: `tensors.adapter.Framework`."""

_PLAIN: Final = "jax"
_WEAK: Final = "jax:weak"
_KEY: Final = "jax:key:"
_IMMUTABLE: Final = "arrays of jax cannot be written to: a new one takes the place of the old"


def tensor(array: np.ndarray[Any, Any], spec: TensorSpec) -> jax.Array:
    """An array as one of jax, on the default device; a copy, because jax's never change.

    Raises UnsupportedDType for what jax would make a narrower dtype of.
    """
    return jnp.array(host_array(array, spec))


def kind(value: Any) -> str:
    """Whether it is a random key, and of which implementation, or of a dtype that gives way."""
    if isinstance(value, jax.core.Tracer) or not isinstance(value, jax.Array):
        readable(value)  # which says why not
    if is_key(value):
        name = implementation(value)
        if not isinstance(name, str):
            raise UnsupportedTensor(
                f"random keys of {name} would not come back, because jax knows no name for what "
                "draws from them: save jax.random.key_data(value)"
            )
        return f"{_KEY}{name}"
    return _WEAK if value.weak_type else _PLAIN


def as_kind(tensor: jax.Array, kind: str) -> jax.Array:
    """A plain array as the kind that `kind` once named."""
    if kind == _PLAIN:
        return tensor
    if kind == _WEAK:
        return as_weak(tensor)
    if not kind.startswith(_KEY):
        raise UnknownFramework(
            f"no kind of jax array is called {shortened(kind)!r}: a newer release may know it"
        )
    try:
        keys: jax.Array = jax.random.wrap_key_data(tensor, impl=kind.removeprefix(_KEY))
    except ValueError as error:
        raise UnknownFramework(
            f"jax knows no random keys of {shortened(kind.removeprefix(_KEY))!r} here: define "
            "them as the program that saved them did"
        ) from error
    except TypeError as error:
        raise BadField(
            f"{tensor.dtype} {list(tensor.shape)} cannot be random keys of {shortened(kind)!r}"
        ) from error
    return keys


def memory(value: Any) -> Memory | None:
    """Where an array lies; one that is not in the host's memory in one piece counts for itself."""
    data = words_of(readable(value))
    if not data.size or data.dtype.name == FLOAT4:
        return None
    if is_on_host(data):
        array = np.asarray(data.addressable_data(0))
        address = array.__array_interface__["data"][0]
        return Memory("cpu", address, array.itemsize, array.shape, array.strides)
    pieces = pieces_of(data)
    if pieces is None:
        return None
    place = Memory(f"jax {pieces}", 0, data.dtype.itemsize, data.shape, ())
    return place._replace(strides=c_strides(place))


def stretch(value: Any, start: int, stop: int) -> Source:
    """The bytes between two addresses of the host's memory around an array."""
    if not is_on_host(words_of(readable(value))):
        raise UnsupportedTensor("what lies around an array on a device cannot be read")
    return memory_source(value, start, stop)


def describe(value: Any) -> TensorSpec | None:
    """What an array, or the ShapeDtypeStruct of one, is."""
    if not isinstance(value, jax.Array | jax.ShapeDtypeStruct):
        return None
    return TensorSpec(value.dtype.name, tuple(value.shape))


def plain(value: Any) -> str | None:
    """A dtype that jax has a name of its own for, such as jnp.bfloat16, as text."""
    return str(value.dtype.name) if isinstance(value, type(jnp.float32)) else None


def held(value: Any) -> Any:
    """A copy of an array of one number: what is donated to jit is gone afterwards."""
    array = readable(value)
    if is_key(array) or array.size != 1 or jnp.iscomplexobj(array):
        raise UnsupportedTensor(
            f"an array of {array.dtype} and shape {list(array.shape)} is not one real number: "
            "take its mean, or one of its elements"
        )
    return array.addressable_data(0).copy()


def same(a: Any, b: Any) -> bool:
    """Whether two arrays of one spec have the same bits."""
    mine, other = (np.ascontiguousarray(on_host(words_of(readable(it)))) for it in (a, b))
    return mine.tobytes() == other.tobytes()


def why_not_fillable(value: Any) -> str | None:
    """Why an array cannot be written to: none can."""
    return _IMMUTABLE


def fill(value: Any, array: np.ndarray[Any, Any], spec: TensorSpec) -> NoReturn:
    """Refuse: no array of jax is ever written to."""
    raise UnsupportedTensor(_IMMUTABLE)


def copy(value: Any, given: Any) -> NoReturn:
    """Refuse: no array of jax is ever written to."""
    raise UnsupportedTensor(_IMMUTABLE)


def device(name: str) -> Device | None:
    """None for the host. Where jax's arrays lie is for jax to say: all others are refused."""
    if name == "cpu":
        return None
    raise BadOption(
        f"device={name!r}: arrays of jax come to lie on its default device; load them within "
        "jax.default_device(…), or give `restore` a target with shardings"
    )


def device_of(value: Any) -> Device | None:
    """None: arrays of jax are brought to the host to be saved, and made from there."""
    return None


def view(base: Any, spec: TensorSpec, offset: int, strides: Sequence[int]) -> NoReturn:
    """Refuse: `device` never made the base."""
    raise UnsupportedTensor("arrays of jax have no views")


def home(value: Any, path: Sequence[Any]) -> Device | None:
    """None: see `device_of`."""
    return None


def guard(value: Any, before_step: Callable[[], None]) -> Guard | None:
    """None: nothing of jax changes its arrays."""
    return None


def unwrapped(value: Any) -> Any:
    """The value itself: jax has no wrappers."""
    return value


def random_states() -> dict[str, Any]:
    """Nothing: jax has no generator that works unasked. Its keys are arrays of the program."""
    return {}


def restore_random_states(states: Any) -> list[str]:
    """Check that there is nothing to put back."""
    if not isinstance(states, Mapping) or states:
        raise BadField("jax has no random states besides the keys of the program")
    return []


def generator_state(value: Any) -> Any | None:
    """None: jax has no generators."""
    return None


def restore_generator(value: Any, state: Any) -> NoReturn:
    """Refuse: jax has no generators."""
    raise StateMismatch(f"a {type(value).__qualname__} of jax is no generator")
