"""How a model was made: `generation_info.json`."""

from __future__ import annotations

import types
from dataclasses import dataclass, field
from typing import Any, ClassVar

from standfast.errors import BadField, shortened
from standfast.packages.documents.provenance import library_versions
from standfast.packages.documents.records import Record, now


@dataclass(frozen=True)
class TrainingParams(Record):
    """How a model was trained, and what came of it; what is not known is None."""

    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    block_size: int | None = None
    """The tokens of one sequence."""
    learning_rate: float | None = None
    warmup_steps: int | None = None
    weight_decay: float | None = None
    dropout: float | None = None
    optimizer: str | None = None
    seed: int | None = None
    final_loss: float | None = None
    validation_loss: float | None = None
    seconds: float | None = None
    """The time that it took."""


@dataclass(frozen=True)
class DataStats(Record):
    """How much a model was trained on; what is not known is None."""

    total_samples: int | None = None
    total_tokens: int | None = None
    total_characters: int | None = None
    training_tokens: int | None = None
    validation_tokens: int | None = None
    vocab_size: int | None = None


def _versions() -> dict[str, str | None]:
    return {**library_versions()}


@dataclass(frozen=True)
class GenerationInfo(Record):
    """What `generation_info.json` says.

    >>> GenerationInfo("recipes", "small", TrainingParams(epochs=3)).save("generation_info.json")
    """

    ABSENT: ClassVar = {"creation_date": str, "libraries": dict}

    prompt: str = ""
    """What the model was asked to be."""
    model_size: str = ""
    """A label: small, medium, large, 12M."""
    training_params: TrainingParams = field(default_factory=TrainingParams)
    data_stats: DataStats = field(default_factory=DataStats)
    creation_date: str = field(default_factory=now)
    libraries: dict[str, str | None] = field(default_factory=_versions)
    """The version of each; None in a file that does not know it."""
    quantization: dict[str, Any] | None = None
    """How far quantized weights are from those that they were made of, and the sizes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, version in self.libraries.items():
            if type(version) not in (str, types.NoneType):
                raise BadField(
                    f"libraries[{shortened(name)!r}] is {shortened(repr(version))}: "
                    "it must be a text"
                )
