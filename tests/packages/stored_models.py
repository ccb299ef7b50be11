"""Small models, for tests of packages, and what refuses these."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from standfast.packages import load_model_folder, verify_package
from standfast.packages.model.config import Config
from standfast.packages.model.gpt import GPT

TINY = Config(vocab_size=300, n_positions=32, n_embd=16, n_layer=2, n_head=2)


def model(seed: int = 0, config: Config = TINY) -> GPT:
    """A model of which no two parameters are alike."""
    made = GPT(config)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.1, generator=generator)
    return made


def bits(value: Any) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Dtype, shape and bytes of each tensor of a module or a mapping, by name."""
    state = value.state_dict() if hasattr(value, "state_dict") else value
    arrays = {name: np.asarray(tensor) for name, tensor in state.items()}
    return {name: (str(each.dtype), each.shape, each.tobytes()) for name, each in arrays.items()}


def check_refused(folder: Path | str, error: Any, named: str | None, *by: Any) -> None:
    """That all these calls, or a load and a verification, refuse a package."""
    for call in by or (load_model_folder, verify_package):
        with pytest.raises(error, match=named):
            call(folder)
