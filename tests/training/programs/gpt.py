"""A small GPT on the text of Python's own help: `python gpt.py --steps 60`.

AdamW, gradient clipping, bfloat16 autocast, dropout, tied embeddings; the text is sampled by a
generator that is part of the state.
"""

import random
import zlib
from collections.abc import Sequence
from pydoc_data.topics import topics

import numpy as np
import torch
from leaving_out import GENERATORS, WithoutMoments, arguments_of, begin_exactly, checkpointer
from torch import nn
from torch.nn import functional

PARTS = (*GENERATORS, "sampler", "moments")
CONTEXT, BATCH, WIDTH, HEADS, LAYERS = 32, 4, 32, 2, 2


def text() -> torch.Tensor:
    """Some of the help as bytes."""
    whole = "".join(topics[name] for name in sorted(topics))[:20_000]
    return torch.tensor([*whole.encode()[:20_000]])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before_attention = nn.LayerNorm(WIDTH)
        self.queries_keys_values = nn.Linear(WIDTH, 3 * WIDTH)
        self.attended = nn.Linear(WIDTH, WIDTH)
        self.before_feed = nn.LayerNorm(WIDTH)
        self.feed = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.queries_keys_values(self.before_attention(x)).chunk(3, dim=2)
        queries, keys, values = (
            part.view(batch, length, HEADS, width // HEADS).transpose(1, 2) for part in parts
        )
        attended = functional.scaled_dot_product_attention(
            queries, keys, values, dropout_p=0.1, is_causal=True
        )
        x = x + self.attended(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.feed(self.before_feed(x))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 256, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        return self.head(self.last(self.blocks(x)))


def blurred(tokens: torch.Tensor) -> torch.Tensor:
    """One token of each sample replaced by another, drawn from Python's and NumPy's generators."""
    tokens = tokens.clone()
    for sample in tokens:
        sample[random.randrange(CONTEXT)] = np.random.randint(256)
    return tokens


def main(given: Sequence[str] | None = None) -> None:
    arguments = arguments_of(given, PARTS)
    begin_exactly(42)
    model, tokens, sampler = GPT(), text(), torch.Generator().manual_seed(7)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    parts = {
        "model": model,
        "optimizer": WithoutMoments(optimizer) if arguments.leave_out == "moments" else optimizer,
        "sampler": sampler,
    }
    hp = {"lr": 3e-3, "max_steps": arguments.steps}
    with checkpointer(arguments, parts, hp) as ckpt:
        for step in ckpt.steps(arguments.steps):
            starts = torch.randint(len(tokens) - CONTEXT, (BATCH,), generator=sampler)
            windows = torch.stack([tokens[start : start + CONTEXT + 1] for start in starts])
            with torch.autocast("cpu", torch.bfloat16):
                guesses = model(blurred(windows[:, :-1]))
                loss = functional.cross_entropy(guesses.flatten(0, 1), windows[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            ckpt.step(step, loss=loss, norm=norm, order=zlib.crc32(starts.numpy().tobytes()))
            if step == arguments.stop_at:
                break


if __name__ == "__main__":
    main()
