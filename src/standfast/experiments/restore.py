"""The content of a checkpoint, put back into a model and an optimizer."""

from __future__ import annotations

from typing import Any, Final

from standfast.errors import RefNotFound
from standfast.experiments.reader import Loaded
from standfast.training.parts import part_of

_NAMES: Final = {
    "model": ("model_state_dict", "model"),
    "optimizer": ("optimizer_state_dict", "optimizer"),
}
"""What a manager calls the parts of a state, and what a Checkpointer does."""


def restore(loaded: Loaded, model: Any, optimizer: Any) -> None:
    """Put the weights into a model, and what there is for it into an optimizer; None for neither.

    Raises RefNotFound if there are no weights, StateMismatch if an object refuses its part.
    """
    if model is not None:
        weights = _part(loaded.content, "model")
        if weights is None:
            where = loaded.checkpoint.ref if loaded.checkpoint else "the checkpoint"
            raise RefNotFound(f"{where} has no model_state_dict: another program wrote it")
        part_of("model", model).restore(weights)
    saved = _part(loaded.content, "optimizer")
    if optimizer is not None and saved is not None:
        part_of("optimizer", optimizer).restore(saved)


def _part(content: Any, part: str) -> Any:
    if not isinstance(content, dict):
        return None
    return next((content[name] for name in _NAMES[part] if name in content), None)
