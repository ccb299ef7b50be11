"""A compact GPT of GPT-2's architecture: what the weights of a package are put into.

It computes what the Transformers library's `GPT2LMHeadModel` computes, in the same order, so that
both give the same logits, bit for bit, on a CPU.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from standfast.errors import BadOption
from standfast.packages.model.config import Config

Past: TypeAlias = tuple[Tensor, Tensor]
"""The keys and values of one layer, for the positions that were computed before."""


def _gelu_new(x: Tensor) -> Tensor:
    # torch's gelu(approximate="tanh") differs in the last bits.
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x.pow(3.0))))


def _gelu_tanh(x: Tensor) -> Tensor:
    return functional.gelu(x, approximate="tanh")


ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "gelu": functional.gelu,
    "gelu_new": _gelu_new,
    "gelu_pytorch_tanh": _gelu_tanh,
    "relu": functional.relu,
    "silu": functional.silu,
    "swish": functional.silu,
    "tanh": torch.tanh,
}
"""By the names that `config.json` has for them: those of config.ACTIVATIONS."""


# What torch's own layers begin with is drawn by GPT itself, once: to draw it without memory would
# import a thousand modules.
class _Embedding(nn.Embedding):
    def reset_parameters(self) -> None:
        pass


class _Norm(nn.LayerNorm):
    def reset_parameters(self) -> None:
        pass


class _Head(nn.Linear):
    def reset_parameters(self) -> None:
        pass


class GPT(nn.Module):
    """A language model: token ids in, logits of the next token out.

    Its parameters have GPT-2's names and layouts: `wte.weight`, `h.0.attn.c_attn.weight`, ….

    >>> model = GPT(Config.small(vocab_size=5000))
    >>> model.generate([1, 2, 3], 20, seed=0)
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.config = config
        self.origin = ""
        """Where the weights came from, and whether they were verified."""
        self.wte = _Embedding(config.vocab_size, config.n_embd)
        self.wpe = _Embedding(config.n_positions, config.n_embd)
        self.drop = nn.Dropout(config.embd_pdrop)
        self.h = nn.ModuleList(_Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = _Norm(config.n_embd, eps=config.layer_norm_epsilon)
        self.lm_head = None
        if not config.tie_word_embeddings:
            self.lm_head = _Head(config.n_embd, config.vocab_size, bias=False)
        if not self.wte.weight.is_meta:
            self._begin()

    def forward(self, ids: Tensor, past: list[Past] | None = None) -> Tensor:
        """The logits at every position of `ids`, a batch of rows of token ids.

        With a list as `past` the positions go on after those in it, and theirs are added.
        """
        start = past[0][0].shape[-2] if past else 0
        if start + ids.shape[-1] > self.config.n_positions:
            raise BadOption(
                f"{start + ids.shape[-1]:,} tokens are more than the {self.config.n_positions:,} "
                "positions that the model has"
            )
        positions = torch.arange(start, start + ids.shape[-1], device=ids.device)
        x = self.drop(self.wte(ids) + self.wpe(positions))
        for layer, block in enumerate(self.h):
            x, present = block(x, past[layer] if past and start else None)
            if past is not None:
                past[layer : layer + 1] = [present]
        x = self.ln_f(x)
        return self.lm_head(x) if self.lm_head else functional.linear(x, self.wte.weight)

    @torch.no_grad()
    def generate(
        self,
        ids: Sequence[int] | Tensor,
        max_new_tokens: int = 64,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        seed: int | None = None,
    ) -> list[int]:
        """The ids of one text, continued until the end token or so many new ones are there.

        The same seed gives the same tokens, whatever torch's global generator did; without one,
        the global generator is used. `temperature=0` always takes the likeliest token.
        """
        known = _checked(ids, self.config)
        _check(max_new_tokens, temperature, top_k, seed)
        generator = None if seed is None else torch.Generator().manual_seed(seed)
        ends = self.config.end_tokens
        was_training = self.training
        self.eval()
        past: list[Past] = []
        try:
            for _ in range(max_new_tokens):
                window = known[-self.config.n_positions :]
                if past and len(known) <= self.config.n_positions:
                    window = known[-1:]
                else:
                    past = []  # a window that moves has other positions
                row = torch.tensor([window], device=self.wte.weight.device)
                logits = self(row, past)[0, -1].float().cpu()
                known.append(_chosen(logits, temperature, top_k, generator))
                if known[-1] in ends:
                    break
        finally:
            self.train(was_training)
        return known

    def extra_repr(self) -> str:
        """Where the weights came from."""
        return self.origin

    def _begin(self) -> None:
        """Give new weights the distribution that GPT-2 began with."""
        deviation = self.config.initializer_range
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, 0.0, deviation / math.sqrt(2 * self.config.n_layer))
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif ".ln_" in f".{name}":
                nn.init.ones_(parameter)
            else:
                nn.init.normal_(parameter, 0.0, deviation)


class _Block(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.ln_1 = _Norm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = _Attention(config, layer)
        self.ln_2 = _Norm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = _MLP(config)

    def forward(self, x: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        attended, present = self.attn(self.ln_1(x), past)
        x = attended + x
        return x + self.mlp(self.ln_2(x)), present


class _Attention(nn.Module):
    def __init__(self, config: Config, layer: int) -> None:
        super().__init__()
        self.c_attn = _Projection(config.n_embd, 3 * config.n_embd)
        self.c_proj = _Projection(config.n_embd, config.n_embd)
        self.dropout = nn.Dropout(config.resid_pdrop)
        self._heads = config.n_head
        self._attention_dropout = config.attn_pdrop
        self._scale = (config.n_embd // config.n_head) ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            self._scale /= float(layer + 1)

    def forward(self, x: Tensor, past: Past | None) -> tuple[Tensor, Past]:
        rows, length, width = x.shape
        query, key, value = (
            part.view(rows, length, self._heads, -1).transpose(1, 2)
            for part in self.c_attn(x).split(width, dim=2)
        )
        if past is not None:
            key, value = torch.cat((past[0], key), -2), torch.cat((past[1], value), -2)
        attended = functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=None if past is None else _mask(length, key.shape[-2], x.device),
            dropout_p=self._attention_dropout if self.training else 0.0,
            is_causal=past is None and length > 1,
            scale=self._scale,
        )
        joined = attended.transpose(1, 2).reshape(rows, length, width)
        return self.dropout(self.c_proj(joined)), (key, value)


class _MLP(nn.Module):
    def __init__(self, config: Config) -> None:
        super().__init__()
        self.c_fc = _Projection(config.n_embd, config.inner)
        self.c_proj = _Projection(config.inner, config.n_embd)
        self.dropout = nn.Dropout(config.resid_pdrop)
        self._activation = ACTIVATIONS[config.activation_function]

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.dropout(self.c_proj(self._activation(self.c_fc(x))))
        return result


class _Projection(nn.Module):
    """A linear layer whose weight lies as GPT-2's do: a row for each input."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, outputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        flat = torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        return flat.view(*x.shape[:-1], -1)


def empty(config: Config) -> GPT:
    """A model whose parameters have no memory yet: `fill` gives them theirs."""
    with torch.device("meta"):
        return GPT(config)


def fill(model: GPT, tensors: Mapping[str, Any], device: str = "cpu") -> None:
    """Let tensors be the parameters of the same names; those that are on the device as they are."""
    try:
        moved = {name: tensor.to(device) for name, tensor in tensors.items()}
    except (AssertionError, RuntimeError) as error:  # torch without that device, or a full one
        raise BadOption(f"the weights cannot be put on {device!r}: {error}") from error
    model.load_state_dict(moved, strict=False, assign=True)


def _mask(length: int, known: int, device: torch.device) -> Tensor | None:
    """Which of all positions each of the last ones may look at; None if all."""
    if length == 1:
        return None
    return torch.ones(length, known, dtype=torch.bool, device=device).tril(known - length)


def _chosen(
    logits: Tensor, temperature: float, top_k: int | None, generator: torch.Generator | None
) -> int:
    if not logits.isfinite().all():
        raise BadOption("the model computes no numbers: its weights hold NaN or infinities")
    if temperature == 0:
        return int(logits.argmax())
    logits = logits / temperature
    if top_k is not None and top_k < logits.numel():
        lowest = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < lowest, -math.inf)
    return int(torch.multinomial(logits.softmax(-1), 1, generator=generator))


def _checked(ids: Sequence[int] | Tensor, config: Config) -> list[int]:
    if isinstance(ids, Tensor):
        ids = (ids[0] if ids.ndim == 2 and len(ids) == 1 else ids).tolist()
    try:
        known = [operator.index(each) for each in ids]
    except TypeError as error:
        raise BadOption(f"the ids must be whole numbers in a row, not {ids!r:.80}") from error
    if not known:
        raise BadOption("there are no tokens to go on from: give at least one id")
    if not all(0 <= each < config.vocab_size for each in known):
        raise BadOption(f"the ids must be from 0 to {config.vocab_size - 1}: {known[:10]}")
    return known


def _check(count: int, temperature: float, top_k: int | None, seed: int | None) -> None:
    if not isinstance(count, Integral) or isinstance(count, bool) or count < 0:
        raise BadOption(f"max_new_tokens is {count!r}: it must be a whole number, 0 or more")
    if not 0 <= temperature < math.inf:
        raise BadOption(f"temperature is {temperature}: it must be 0 or more")
    if top_k is not None and top_k < 1:
        raise BadOption(f"top_k is {top_k}: it must be 1 or more")
    if seed is not None and not 0 <= seed < 1 << 64:
        raise BadOption(f"seed is {seed}: it must be from 0 to 2^64 - 1")
