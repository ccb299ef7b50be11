"""The Trainer that a callback is in: found, checked, and made to save by the callback."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from transformers import Trainer, TrainerCallback
from transformers.trainer_utils import HubStrategy

from standfast.errors import BadOption, StateMismatch
from standfast.store import Checkpoint
from standfast.store.load.filling import spec_of
from standfast.tensors.frameworks import unwrapped
from standfast.transformers.folder import OWN

_SHARDED: Final = {
    "is_fsdp_enabled": "FSDP",
    "is_fsdp_xla_enabled": "FSDP",
    "is_deepspeed_enabled": "DeepSpeed",
    "is_distributed_loading_by_transformers": "a DistributedConfig",
}
"""What lets each rank have a part of the model alone."""
_REPLACED: Final = ("_save_checkpoint", "_load_best_model")
"""The methods of a Trainer that a callback takes over."""
_SHOWN: Final = 5


def trainer_above(callback: TrainerCallback) -> Trainer | None:
    """The Trainer that is calling a callback now; an event does not say which it is."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        handler = getattr(caller, "callback_handler", None)
        if isinstance(caller, Trainer) and handler and callback in handler.callbacks:
            return caller
        frame = frame.f_back  # type: ignore[assignment]
    return None


def take_over(trainer: Trainer, save: Callable[..., None], load_best: Callable[[], None]) -> None:
    """Let the Trainer save, and load its best model, by these instead of its own methods.

    A save comes after the step was logged and evaluated, which no event of a callback does.
    """
    for name, method in zip(_REPLACED, (save, load_best), strict=True):
        if not hasattr(trainer, name):
            raise BadOption(
                f"a {type(trainer).__name__} has no {name}, which Standfast takes the place of: it "
                "needs a Trainer of Transformers 5"
            )
        setattr(trainer, name, method)


def refuse(trainer: Trainer) -> None:
    """Raise BadOption for a training that could not be saved, or would not be as is expected."""
    args = trainer.args
    for name, what in _SHARDED.items():
        if getattr(trainer, name, False):
            raise BadOption(f"a model that is sharded by {what} cannot be saved by this callback")
    if trainer.state.is_hyper_param_search:
        raise BadOption(
            "a hyperparameter search has many runs, and this callback is for one: leave it out"
        )
    strategy = HubStrategy(args.hub_strategy)
    if args.push_to_hub and strategy != HubStrategy.END:
        raise BadOption(
            f"hub_strategy={strategy.value!r} uploads the Trainer's own folders, and "
            'there are none: hub_strategy="end" uploads the model when the training is done'
        )
    if getattr(args, "enable_jit_checkpoint", False):
        raise BadOption(
            "enable_jit_checkpoint saves in the middle of a step: leave it out; the callback "
            "itself saves after the step when SIGTERM or SIGUSR1 comes"
        )


def check_fits(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Raise StateMismatch unless the model's tensors are those of the checkpoint.

    The Trainer would load what fits, and go on with fresh weights for the rest.
    """
    specs = {name: spec_of(leaf) for name, leaf in unwrapped(trainer.model).state_dict().items()}
    mine = {f"model.{name}": tuple(spec.shape) for name, spec in specs.items() if spec}
    saved = {
        name: tuple(spec.shape)
        for name, spec in checkpoint.tensors.items()
        if name.startswith("model.")
    }
    lines = [
        f"  {name}: {saved.get(name, 'absent')}, and here {mine.get(name, 'absent')}"
        for name in {**saved, **mine}
        if saved.get(name) != mine.get(name)
    ]
    if lines:
        rest = [f"  and {len(lines) - _SHOWN:,} more"] if len(lines) > _SHOWN else []
        raise StateMismatch(
            "\n".join([f"{checkpoint.ref} is of another model:", *lines[:_SHOWN], *rest])
        )


def restore_losses(trainer: Trainer, folder: Path) -> None:
    """Give back the losses that were not logged yet, of which a Trainer keeps nothing itself.

    So the next logged loss is the mean of the same steps as if nothing had happened.
    """
    unlogged: list[Any] = json.loads((folder / OWN).read_text())["unlogged"]
    rank = trainer.args.process_index
    if len(unlogged) != trainer.args.world_size or not hasattr(trainer, "_tr_loss"):
        return
    loss, last_logged = unlogged[rank]
    if loss is not None and last_logged is not None:
        trainer._tr_loss += loss
        trainer._globalstep_last_logged = last_logged
        trainer._total_loss_scalar -= loss  # the mean of this call of `train` is of its own steps
