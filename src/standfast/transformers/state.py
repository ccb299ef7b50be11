"""What is saved of a Trainer: its objects by name, its own state, and that of every rank."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch.distributed
from transformers import Trainer
from transformers.trainer_callback import ExportableState, TrainerState

from standfast.errors import NotOpen
from standfast.files.atomic import as_write_failed
from standfast.identity import recorded
from standfast.tensors import randomness
from standfast.tensors.frameworks import unwrapped
from standfast.training.state import TrainingState

MODEL: Final = "model"
OPTIMIZER: Final = "optimizer"
SCHEDULER: Final = "scheduler"
SCALER: Final = "scaler"
TRAINER: Final = "trainer"
RANKS: Final = "ranks"
FILES: Final = "files"


class State:
    """The state of a Trainer, as it is at each save."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._ranks: list[dict[str, Any]] = []
        self._files = _model_files(trainer)
        parts: dict[str, Any] = {MODEL: trainer.model}
        if not trainer.args.save_only_model:
            parts |= self._of_training()
        parts[TRAINER] = _Asked(lambda: trainer_tree(trainer))
        parts[FILES] = _Asked(lambda: self._files)
        self.parts: Final = TrainingState(**parts)

    def _of_training(self) -> dict[str, Any]:
        trainer = self._trainer
        # Accelerate's wrapper has the state of the optimizer inside, which does the steps.
        parts: dict[str, Any] = {
            OPTIMIZER: getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            SCHEDULER: trainer.lr_scheduler,
        }
        if getattr(trainer.accelerator, "scaler", None) is not None:
            parts[SCALER] = trainer.accelerator.scaler
        parts[RANKS] = _Asked(lambda: self._ranks)
        return parts

    def take(self, ranks: list[dict[str, Any]]) -> None:
        """Have the next save hold these states of the ranks."""
        self._ranks = ranks


class _Asked:
    """A part of a state that is asked for at each save, and that the Trainer puts back itself."""

    def __init__(self, tree: Callable[[], Any]) -> None:
        self._tree = tree

    def state_dict(self) -> Any:
        """What it is now."""
        return self._tree()

    def load_state_dict(self, saved: Any) -> None:
        """Refuse: the Trainer reads it out of a folder."""
        raise NotOpen("a Trainer is restored by trainer.train(resume_from_checkpoint=…)")


def of_ranks(trainer: Trainer) -> list[dict[str, Any]]:
    """What each rank has of its own, in their order: on every rank, and called by all of them."""
    loss = getattr(trainer, "_tr_loss", None)
    own = {
        "random": randomness.capture(),
        "loss": None if loss is None else float(loss.item()),
        "last_logged": getattr(trainer, "_globalstep_last_logged", None),
    }
    return gathered(own, trainer.args.world_size)


def gathered(value: Any, ranks: int) -> list[Any]:
    """The values of all ranks in their order; collective."""
    if ranks == 1:
        return [value]
    values: list[Any] = [None] * ranks
    torch.distributed.all_gather_object(values, value)
    return values


def trainer_tree(trainer: Trainer) -> dict[str, Any]:
    """The state of the Trainer and of its callbacks, and its arguments, as plain values."""
    state = dataclasses.asdict(trainer.state)
    # A place, and none that lasts; whether a process is the first one is for it to say.
    for name in ("best_model_checkpoint", "is_local_process_zero", "is_world_process_zero"):
        state.pop(name, None)
    own = [*trainer.callback_handler.callbacks, trainer.control]
    exported: list[Any] = [each for each in own if isinstance(each, ExportableState)]
    state["stateful_callbacks"] = TrainerState(stateful_callbacks=exported).stateful_callbacks
    return {"state": _plain(state), "arguments": arguments(trainer.args)}


def arguments(args: Any) -> Any:
    """The training arguments as plain values; tokens are left out."""
    return recorded(args.to_dict())


def _plain(value: Any) -> Any:
    """As the Trainer's own file of its state would give it back."""
    return json.loads(json.dumps(value))


def _model_files(trainer: Trainer) -> dict[str, Any]:
    """The files that make a folder of weights a model: its configuration, and the tokenizer's."""
    model, processing = unwrapped(trainer.model), trainer.processing_class
    collated = getattr(trainer.data_collator, "tokenizer", None)
    own: list[Any] = [
        getattr(model, "config", None),
        getattr(model, "generation_config", None),
        processing if processing is not None else collated,
    ]
    with (
        as_write_failed(tempfile.gettempdir()),
        tempfile.TemporaryDirectory(prefix="standfast-") as folder,
    ):
        for each in own:
            if hasattr(each, "save_pretrained"):
                each.save_pretrained(folder)
        paths = sorted(path for path in Path(folder).rglob("*") if path.is_file())
        return {
            path.relative_to(folder).as_posix(): np.frombuffer(path.read_bytes(), np.uint8)
            for path in paths
        }
