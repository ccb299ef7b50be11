"""Classes and functions at the top level of a module, as hyperparameters name them."""

import enum
from dataclasses import dataclass, field
from typing import Any


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Mode(enum.Flag):
    READ = 1
    WRITE = 2


class Level(enum.IntEnum):
    LOW = 1


@dataclass
class Adam:
    lr: float = 0.1


@dataclass
class Config:
    width: int
    optimizer: Any = field(default_factory=Adam)


def schedule(step: int, rate: float = 1.0) -> float:
    return step * rate


class Net:
    def forward(self) -> None: ...
