"""A checkpoint on its way back into a trainer: Lightning restores most of it, we the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch

from standfast.errors import BadField, StateMismatch
from standfast.lightning.progress import (
    EPOCH,
    EXCEPTION,
    KINDS,
    begin_data,
    go_on,
    is_resumable,
    step_plateaus,
)
from standfast.tensors import randomness

EXTRA: Final = "standfast"
"""The key, beside Lightning's own, of what it does not save."""
_VERSION: Final = 1


@dataclass(frozen=True)
class Extra:
    """What Lightning does not save."""

    kind: str
    """Where the training stood: see lightning_progress."""
    ranks: list[Any]
    """Of each rank its random states and the positions of its loaders."""
    world_size: int
    plateaus: list[list[Any]]
    """Steps of schedulers that were still to be made."""
    metrics: dict[str, Any]
    """All that was logged, as tensors."""

    def tree(self) -> dict[str, Any]:
        """As it is saved."""
        return {"version": _VERSION, **vars(self)}

    @classmethod
    def read(cls, tree: Any) -> Extra:
        """What `tree` gave; raises BadField for all else."""
        fields = {
            "kind": str,
            "ranks": list,
            "world_size": int,
            "plateaus": list,
            "metrics": dict,
        }
        if not isinstance(tree, dict) or set(tree) != {"version", *fields}:
            raise BadField(f"{EXTRA}: expected the fields version, {', '.join(fields)}")
        if tree["version"] != _VERSION:
            raise BadField(f"{EXTRA}.version: {tree['version']!r:.20} is not {_VERSION}")
        for name, kind in fields.items():
            if type(tree[name]) is not kind:
                raise BadField(f"{EXTRA}.{name}: expected a {kind.__name__}")
        if tree["kind"] not in KINDS:
            raise BadField(f"{EXTRA}.kind: {tree['kind']!r:.20} is none of {', '.join(KINDS)}")
        for number, rank in enumerate(tree["ranks"]):
            if not isinstance(rank, dict) or set(rank) != {"random", "loaders"}:
                raise BadField(f"{EXTRA}.ranks.{number}: expected random and loaders")
        metrics = tree["metrics"]
        if not all(isinstance(each, torch.Tensor) for each in metrics.values()):
            raise BadField(f"{EXTRA}.metrics: expected tensors")
        return cls(*(tree[name] for name in fields))


class Resumed:
    """A checkpoint that a training goes on from."""

    def __init__(self, ref: str, state: dict[str, Any], is_given: bool = False) -> None:
        self.ref: Final = ref
        self.state: Final = state
        self.is_given: Final = is_given
        """Whether it was passed to `trainer.fit` as `ckpt_path`."""
        self.is_restored = False

    def hand_over(self, trainer: Any) -> None:
        """Let Lightning restore it, as if it had loaded it from a `ckpt_path` itself.

        Without one it restores what its connector has at hand; `on_fit_start` sees that it did.
        """
        if "optimizer_states" not in self.state:
            raise StateMismatch(
                f"{self.ref} holds the weights alone, and no training can go on from it: "
                'resume="never" begins another one'
            )
        if EXTRA in self.state:
            Extra.read(self.state[EXTRA])
        trainer._checkpoint_connector._loaded_checkpoint = self.state

    def finish(self, trainer: Any) -> list[str]:
        """Put back what Lightning does not know of; says why the training may not be exact."""
        if EXTRA not in self.state:
            return [f"{self.ref} was saved by Lightning itself, without the random states"]
        extra = Extra.read(self.state[EXTRA])
        rank: int = trainer.global_rank
        own = extra.ranks[rank] if rank < len(extra.ranks) else None
        inexact = list(_doubts(trainer, extra, own))
        go_on(trainer, extra.kind)
        _recall_metrics(trainer, extra.metrics)
        step_plateaus(trainer, extra.plateaus)
        if own is not None:
            inexact += randomness.restore(own["random"])
        begin_data(trainer, extra.kind, own["loaders"] if own is not None else None)
        return inexact


def _doubts(trainer: Any, extra: Extra, own: Any) -> list[str]:
    doubts = []
    if extra.kind == EXCEPTION:
        doubts.append("it was saved after an exception, maybe in the middle of a step")
    if extra.world_size != trainer.world_size:
        doubts.append(f"{extra.world_size} ranks saved it, and {trainer.world_size} are running")
    elif len(extra.ranks) < extra.world_size:
        doubts.append("the random states of rank 0 alone are in it")
    if extra.kind != EPOCH and not is_resumable(trainer):
        doubts.append(
            "a loader of the training cannot go on in the middle of an epoch, and hands out its "
            "first batches again: use standfast.ResumableLoader"
        )
    return doubts


def _recall_metrics(trainer: Any, metrics: dict[str, Any]) -> None:
    """Let what was logged be known again: schedulers and callbacks may ask for it."""
    known = trainer._logger_connector._callback_metrics
    known.update({name: value.to(trainer.strategy.root_device) for name, value in metrics.items()})
