"""GPT-2 124M to be trained: the parameters of `state.py` in a model that runs."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from benchmarks.state import parameter_shapes

WIDTH, HEADS, LAYERS = 768, 12, 12


class GPT(nn.Module):
    """The weights by the names that GPT-2 gives them, and what is done with them."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        for name, shape in parameter_shapes():
            values = torch.randn(shape, generator=generator) * 0.02
            if name.endswith(("ln_1.weight", "ln_2.weight", "ln_f.weight")):
                values += 1
            self.register_parameter(name.replace(".", "_"), nn.Parameter(values))

    def weight(self, name: str) -> torch.Tensor:
        return self.get_parameter(name.replace(".", "_"))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """The loss of predicting each token from those before it."""
        length = tokens.shape[1] - 1
        x = self.weight("wte.weight")[tokens[:, :-1]] + self.weight("wpe.weight")[:length]
        for layer in range(LAYERS):
            x = x + self._attention(self._norm(x, f"h.{layer}.ln_1"), f"h.{layer}.attn")
            inner = self._linear(self._norm(x, f"h.{layer}.ln_2"), f"h.{layer}.mlp.c_fc")
            x = x + self._linear(functional.gelu(inner), f"h.{layer}.mlp.c_proj")
        logits = self._norm(x, "ln_f") @ self.weight("wte.weight").T
        return functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())

    def _attention(self, x: torch.Tensor, name: str) -> torch.Tensor:
        batch, length, _ = x.shape
        heads = self._linear(x, f"{name}.c_attn").view(batch, length, 3, HEADS, -1)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self._linear(mixed.transpose(1, 2).reshape(batch, length, WIDTH), f"{name}.c_proj")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weight(f"{name}.weight") + self.weight(f"{name}.bias")

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return functional.layer_norm(x, (WIDTH,), weight, bias)
