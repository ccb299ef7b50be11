"""A tokenizer and a small GPT, trained on text and put into a folder that opens everywhere.

python examples/gpt.py
python examples/gpt.py novel.txt --size small --steps 5000 --prompt "It was"
python examples/gpt.py --generate-only models/gpt_20261116_120000 --prompt "If the"

Kill it at any moment and start it again: it goes on, and ends with the same weights, bit for bit.
Without a text it learns from the help that comes with Python.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch.nn import functional
from torch.utils.data import Dataset

import standfast
from standfast.packages import (
    GPT,
    Config,
    DatasetInfo,
    DataStats,
    GenerationInfo,
    TrainingParams,
    load_model_folder,
    save_model_folder,
)

END = "<|endoftext|>"
"""The token between two texts, which GPT-2 has too."""
CONTEXT = 64
"""The tokens of one window."""
RATE = 3e-3
"""The highest learning rate of a model 128 wide."""
WARM_UP = 0.1
"""The part of all steps in which the rate grows."""
NO_DROPOUT: dict[str, Any] = {"embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0}
SIZES: dict[str, Callable[..., Config]] = {
    "tiny": partial(Config.small, n_embd=128, n_layer=3, n_head=4, **NO_DROPOUT),
    "small": Config.small,
    "medium": Config.medium,
    "large": Config.large,
}


def main() -> None:
    """Train, write the package, and let it go on from the prompt."""
    arguments = parsed()
    try:
        folder = arguments.generate_only or make(arguments)
        if folder is not None:
            generate(folder, arguments)
    except (standfast.StandfastError, OSError, UnicodeDecodeError) as error:
        sys.exit(str(error))


def parsed() -> argparse.Namespace:
    """The options as they were given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", metavar="TEXT", type=Path, nargs="*", help="files to learn from")
    parser.add_argument("--name", default="gpt", help="of the run and of the package (gpt)")
    parser.add_argument("--store", default="experiments", help="for checkpoints (experiments)")
    parser.add_argument("--models", type=Path, default=Path("models"), help="for packages (models)")
    parser.add_argument("--steps", type=int, default=400, help="in all (400)")
    parser.add_argument("--batch", type=int, default=12, help="windows of a step (12)")
    parser.add_argument("--every", type=int, default=25, help="steps between checkpoints (25)")
    parser.add_argument("--size", choices=SIZES, default="tiny", help="of the model (tiny)")
    parser.add_argument("--vocabulary", type=int, default=2000, help="tokens that there are (2000)")
    parser.add_argument("--seed", type=int, default=1, help="of all random numbers (1)")
    parser.add_argument("--prompt", default='The "for" statement', help="what to go on from")
    parser.add_argument("--tokens", type=int, default=120, help="to generate, at most (120)")
    parser.add_argument("--generate-only", metavar="PACKAGE", type=Path, help="train nothing")
    arguments = parser.parse_args()
    if min(arguments.steps, arguments.batch, arguments.every) < 1 or not arguments.prompt:
        parser.error("--steps, --batch and --every are at least 1, and --prompt says something")
    if not 0 <= arguments.seed < 2**32:  # what NumPy takes
        parser.error("--seed is at least 0 and less than 2^32")
    return arguments


def make(arguments: argparse.Namespace) -> Path | None:
    """Everything from the text to the package; None if it was told to stop before."""
    if arguments.size == "tiny":
        torch.set_num_threads(1)  # more of them would mostly wait for each other
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(arguments.seed)
    texts = read(arguments.texts)
    tokenizer = trained_tokenizer(texts, arguments.vocabulary)
    end = tokenizer.token_to_id(END)
    vocabulary = tokenizer.get_vocab_size()
    model = GPT(
        SIZES[arguments.size](
            vocab_size=vocabulary, n_positions=CONTEXT, bos_token_id=end, eos_token_id=end
        )
    )
    loss = train(model, Windows(texts, tokenizer), arguments)
    if loss is None:
        return None
    method = "files" if arguments.texts else "the help of Python"
    dataset = DatasetInfo.of_texts(
        texts, lambda text: len(tokenizer.encode(text)), generation_method=method
    )
    folder: Path = arguments.models / f"{arguments.name}_{datetime.now():%Y%m%d_%H%M%S}"
    info = how_it_was_made(arguments, model.config, dataset, loss)
    save_model_folder(model, tokenizer, model.config, folder, dataset, info)
    return folder


def train(model: GPT, windows: Windows, arguments: argparse.Namespace) -> float | None:
    """All steps that are left, with checkpoints; the last loss, or None if it was stopped."""
    rate = highest_rate(model.config)
    # A stronger decay than torch's own: without it these few steps of high rates lead astray.
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, partial(share, last=arguments.steps))
    loader = standfast.ResumableLoader(windows, arguments.batch, shuffle=True, seed=arguments.seed)
    batches = loader.forever()
    state = standfast.TrainingState(
        model=model, optimizer=optimizer, scheduler=scheduler, loader=loader
    )
    # Another text is another run, and so is another number of steps: its rates are others.
    hp = {"seed": arguments.seed, "steps": arguments.steps, "batch": arguments.batch, "rate": rate}
    name, every = arguments.name, arguments.every
    with standfast.Checkpointer(
        arguments.store, state, name=name, hp=hp, data=windows.tokens, every=every, monitor="loss"
    ) as ckpt:
        for step in ckpt.steps(arguments.steps):
            window = next(batches)
            logits = model(window[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            used = scheduler.get_last_lr()[0]
            scheduler.step()
            if step == 1 or step % every == 0:
                print(f"{step:6d}  loss {loss.item():.3f}", flush=True)
            ckpt.step(step, loss=loss, rate=used)
    return None if ckpt.should_stop else float(ckpt.run.checkpoints()[-1].metrics["loss"])


def how_it_was_made(
    arguments: argparse.Namespace, config: Config, dataset: DatasetInfo, loss: float
) -> GenerationInfo:
    """What `generation_info.json` says."""
    training = TrainingParams(
        steps=arguments.steps,
        batch_size=arguments.batch,
        block_size=CONTEXT,
        learning_rate=highest_rate(config),
        weight_decay=0.1,
        dropout=config.resid_pdrop,
        optimizer="AdamW",
        seed=arguments.seed,
        final_loss=loss,
    )
    data = DataStats(
        total_samples=dataset.metadata.total_samples,
        total_tokens=dataset.metadata.total_tokens,
        total_characters=sum(len(sample.text) for sample in dataset.samples),
        vocab_size=config.vocab_size,
    )
    return GenerationInfo(arguments.prompt, arguments.size, training, data)


def read(paths: Sequence[Path]) -> list[str]:
    """The texts to learn from."""
    if paths:
        return [path.read_text(encoding="utf-8") for path in paths]
    return sorted(topics.values(), key=len)[:50]  # the long ones are tables and lists


def trained_tokenizer(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """A byte-level BPE tokenizer as GPT-2 has one: every text can be written in its tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class Windows(Dataset[torch.Tensor]):
    """All stretches of the text that a model can be shown, each with the token that follows."""

    def __init__(self, texts: Sequence[str], tokenizer: Tokenizer) -> None:
        end = tokenizer.token_to_id(END)
        ids = [id for text in texts for id in (*tokenizer.encode(text).ids, end)]
        if len(ids) <= CONTEXT:
            raise standfast.errors.BadOption(f"the text has {len(ids)} tokens: give a longer one")
        self.tokens = torch.tensor(ids)

    def __len__(self) -> int:
        return len(self.tokens) - CONTEXT

    def __getitem__(self, first: int) -> torch.Tensor:
        return self.tokens[first : first + CONTEXT + 1]


def highest_rate(config: Config) -> float:
    """Wider models take smaller steps."""
    return RATE * 128 / config.n_embd


def share(step: int, last: int) -> float:
    """Of the highest learning rate: up in a line, then down along a cosine to a tenth."""
    warm_up = max(1, WARM_UP * last)
    down = 0.5 + 0.5 * math.cos(math.pi * step / last)
    return min(1.0, (step + 1) / warm_up) * (0.1 + 0.9 * down)


def generate(folder: Path, arguments: argparse.Namespace) -> None:
    """Open the package, and print what it makes of the prompt."""
    model, tokenizer, _, _ = load_model_folder(folder)
    ids = tokenizer.encode(arguments.prompt).ids
    made = model.generate(ids, arguments.tokens, temperature=0.5, seed=arguments.seed)
    print(f"\n{folder} goes on:\n{tokenizer.decode(made).strip()}")


if __name__ == "__main__":
    main()
