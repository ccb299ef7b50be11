"""What the model of a run is made of, without its weights: a description that runs no code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from standfast.errors import BadField, DamagedFile, LimitExceeded, TooNew
from standfast.identity import recorded
from standfast.identity.names import qualified_name
from standfast.store.backends.backend import Backend
from standfast.store.schema import names
from standfast.store.schema.seal import line_of, seal, unseal
from standfast.tensors import Packed, TensorSpec, source_of
from standfast.tensors.frameworks import describe

FORMAT: Final = "standfast architecture 1"
MAX_SIZE: Final = 256 << 20
_PARTS: Final = ("modules", "parameters", "buffers")


def encode_architecture(identity: str | None, model: Any) -> bytes | None:
    """The description of a model with this digest; None if it is too long to be read again.

    It does not name the run, so that runs with the same model can share the file.
    """
    text = seal(FORMAT, {"model": identity, **described(model)}) + b"\n"
    return text if len(text) <= MAX_SIZE else None


def read_architecture(backend: Backend, run: str) -> dict[str, Any]:
    """What the model of a run is: `modules`, `parameters` and `buffers` by name, or a `value`.

    Raises MissingFile for a run without a model, or a DamagedFile that says what is wrong.
    """
    path = names.architecture_file(run)
    try:
        text = backend.read(path, MAX_SIZE + 1)
        if len(text) > MAX_SIZE:
            raise LimitExceeded(f"it has over {MAX_SIZE:,} bytes")
        fields = unseal(line_of(text, FORMAT), FORMAT)
        identity = fields.pop("model", None)
        if not isinstance(identity, str) or not identity.startswith(run[8:16]):
            raise BadField("it is that of another model")
        if set(fields) != {"value"} and set(fields) != set(_PARTS):
            raise BadField(f"expected the keys {', '.join(_PARTS)}, or value")
        if "value" not in fields:
            msgspec.convert(fields, dict[str, dict[str, Any]])
    except msgspec.ValidationError as error:
        raise BadField(f"{path}: {error}") from error
    except (DamagedFile, TooNew) as error:
        error.args = (f"{path}: {error}", *error.args[1:])
        raise
    return fields


def described(model: Any) -> dict[str, Any]:
    """A model as JSON: classes by their names, tensors as `[dtype, shape]`.

    What stands under two names is `{"same": …}` the second time. A model of no framework is the
    `value` that its identity sees.
    """
    description = describe(model)
    if not isinstance(description, Mapping) or set(description) != set(_PARTS):
        return {"value": _shown(model)}
    return {
        part: {name: _shown_part(member) for name, member in description[part].items()}
        for part in _PARTS
    }


def _shown_part(member: Any) -> Any:
    return {"same": member} if isinstance(member, str) else _shown(member)


def _shown(value: Any) -> Any:
    """One value; there is no circle in it, or it would have no identity."""
    if isinstance(value, type):
        return qualified_name(value)
    if isinstance(value, np.ndarray | Packed):
        value = source_of(value).spec
    elif (description := describe(value)) is not None:
        value = description
    if isinstance(value, TensorSpec):
        return [value.dtype, list(value.shape)]
    if isinstance(value, Mapping):
        return {names.key_text(key): _shown(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(member) for member in value]
    return recorded(value)
