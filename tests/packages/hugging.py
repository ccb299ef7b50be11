"""The Transformers and Tokenizers libraries for tests: offline, quiet, small, always the same.

They are imported when they are first asked for, because that takes seconds.
"""

import math
import os
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
# It would warn after a fork.
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RUST_BACKTRACE"] = "0"

END = "<|endoftext|>"
"""The end of a text for all tokenizers here, of the id 0."""

TEXT = (
    "Take two eggs and a cup of flour. Beat the eggs, and fold in the flour slowly. ",
    "Melt the butter in a pan; pour in the batter when the butter foams. ",
    "Turn each crêpe once, and serve them with lemon, sugar or jam: 12 or 15 pieces. ",
    "Für den Teig: 250 g Mehl, 3 Eier, ½ Liter Milch. Let it rest for an hour. ",
)
"""What the tokenizers are made of."""


@cache
def transformers() -> Any:
    """The library, without its progress bars."""
    import transformers as library

    library.utils.logging.disable_progress_bar()
    return library


def config(**changes: Any) -> Any:
    """The GPT2Config of a model with some thousand parameters."""
    sizes = {"vocab_size": 300, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    return transformers().GPT2Config(**(sizes | tokens | changes))


def model(seed: int = 0, **changes: Any) -> Any:
    """A GPT2LMHeadModel in evaluation mode; no two of its parameters are alike, biases included."""
    import torch

    with torch.random.fork_rng(devices=[]):
        made = transformers().GPT2LMHeadModel(config(**changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.1, generator=generator)
    return made


def save(made: Any, folder: Path, **options: Any) -> Path:
    """What Transformers itself makes of a model or a tokenizer in a folder."""
    made.save_pretrained(folder, **options)
    return folder


def byte_level_bpe(vocab_size: int = 300) -> Any:
    """A tokenizer as GPT-2 has one, trained: every text comes back as it was."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator(TEXT, trainer)
    return made


def word_piece() -> Any:
    """A tokenizer as BERT has one: lower case, and unknown words."""
    # Training one, or a Unigram model, does not give the same in every process.
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    words = "".join(TEXT).lower().split()
    letters = set("".join(words))
    pieces = sorted({*words, *letters, *(f"##{letter}" for letter in letters)})
    vocabulary = {piece: i for i, piece in enumerate([END, "[UNK]", *pieces])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.add_special_tokens([END, "[UNK]"])
    return made


def unigram() -> Any:
    """A tokenizer as T5 has one: scores, and a mark in the place of spaces."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    text = "".join(TEXT)
    counts = Counter([*(f"▁{word}" for word in text.split()), *text.replace(" ", "▁")])
    scores = sorted((piece, math.log(n / counts.total())) for piece, n in counts.items())
    made = Tokenizer(models.Unigram([(END, 0.0), ("<unk>", 0.0), *scores], unk_id=1))
    made.normalizer = normalizers.NFKC()
    made.pre_tokenizer = pre_tokenizers.Metaspace()
    made.decoder = decoders.Metaspace()
    made.add_special_tokens([END, "<unk>"])
    return made


TOKENIZERS = {"byte-level BPE": byte_level_bpe, "WordPiece": word_piece, "Unigram": unigram}
"""One maker for each kind."""
