"""The state that all figures are measured on: GPT-2 124M with Adam's moments."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def parameter_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    yield "wte.weight", (50257, 768)
    yield "wpe.weight", (1024, 768)
    for i in range(12):
        for name, shape in {
            "ln_1.weight": (768,),
            "ln_1.bias": (768,),
            "attn.c_attn.weight": (768, 2304),
            "attn.c_attn.bias": (2304,),
            "attn.c_proj.weight": (768, 768),
            "attn.c_proj.bias": (768,),
            "ln_2.weight": (768,),
            "ln_2.bias": (768,),
            "mlp.c_fc.weight": (768, 3072),
            "mlp.c_fc.bias": (3072,),
            "mlp.c_proj.weight": (3072, 768),
            "mlp.c_proj.bias": (768,),
        }.items():
            yield f"h.{i}.{name}", shape
    yield "ln_f.weight", (768,)
    yield "ln_f.bias", (768,)


def gpt2_with_adam() -> dict[str, torch.Tensor]:
    """444 tensors, 1.49 GB, of random numbers that no file system can compress."""
    generator = torch.Generator().manual_seed(0)
    state = {}
    for prefix in ("model", "optimizer.exp_avg", "optimizer.exp_avg_sq"):
        for name, shape in parameter_shapes():
            state[f"{prefix}.{name}"] = torch.randn(shape, generator=generator)
    return state
