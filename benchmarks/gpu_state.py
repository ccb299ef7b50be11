"""The state of the GPU benchmarks, and the device it lies on; a CPU can take a GPU's place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

State = dict[str, dict[str, torch.Tensor]]


@dataclass(frozen=True)
class Size:
    """How large the GPTs are that are saved and trained."""

    layers: int
    vocabulary: int
    positions: int
    width: int
    """Of the one that is saved: 14 bytes a parameter."""
    trained_width: int
    """Of the one that is trained: 12 bytes a parameter."""
    heads: int
    rows: int
    """The samples of a batch in training."""
    step: float
    """About so many seconds a step of training takes."""


SIZES = {
    "large": Size(12, 50257, 1024, 2120, 2304, 36, 8, 0.5),
    "small": Size(4, 5000, 128, 224, 128, 4, 1, 0.05),
}


def parameter_shapes(size: Size) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A GPT whose last norm has no weights: 146 parameters, if it is the large one."""
    width = size.width
    yield "wte.weight", (size.vocabulary, width)
    yield "wpe.weight", (size.positions, width)
    for i in range(size.layers):
        for name, outputs, inputs in (
            ("ln_1", width, None),
            ("attn.c_attn", 3 * width, width),
            ("attn.c_proj", width, width),
            ("ln_2", width, None),
            ("mlp.c_fc", 4 * width, width),
            ("mlp.c_proj", width, 4 * width),
        ):
            yield f"h.{i}.{name}.weight", (outputs,) if inputs is None else (inputs, outputs)
            yield f"h.{i}.{name}.bias", (outputs,)


def mixed_precision(size: Size, device: str) -> State:
    """A model in bfloat16, and what its optimizer keeps in float32, of random numbers."""
    generator = torch.Generator(device).manual_seed(0)

    def random(dtype: torch.dtype, prefix: str) -> dict[str, torch.Tensor]:
        return {
            prefix + name: torch.randn(shape, generator=generator, device=device, dtype=dtype)
            for name, shape in parameter_shapes(size)
        }

    optimizer: dict[str, torch.Tensor] = {}
    for prefix in ("master.", "exp_avg.", "exp_avg_sq."):
        optimizer |= random(torch.float32, prefix)
    return {"model": random(torch.bfloat16, ""), "optimizer": optimizer}


def flat(state: State) -> dict[str, torch.Tensor]:
    """The same tensors by one name each."""
    return {
        f"{part}.{name}": tensor
        for part, tensors in state.items()
        for name, tensor in tensors.items()
    }


def size_of(state: State) -> int:
    return sum(tensor.nbytes for tensor in flat(state).values())


def change(state: State) -> None:
    """Let every tensor be another one, so that nothing of it is in a store already."""
    for tensor in flat(state).values():
        tensor.add_(1e-3)
    synchronize()


def synchronize() -> None:
    """Wait until the GPU has done what it was asked for."""
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
