"""What a GPT is made of: its `config.json`, and the names and shapes of its tensors."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Self

import numpy as np

from standfast.errors import BadField, StateMismatch, UnsupportedFile, shortened
from standfast.packages.documents import json_text
from standfast.tensors import TensorSpec

MODEL_TYPE: Final = "gpt2"
_LARGEST: Final = {
    "vocab_size": 1 << 28,
    "n_positions": 1 << 28,
    "n_embd": 1 << 20,
    "n_layer": 1 << 14,
    "n_head": 1 << 16,
    "n_inner": 1 << 22,
}
"""Beyond what any model has: nothing is built of a size that only a broken file can ask for."""
_LARGEST_NUMBER: Final = 1e6
ACTIVATIONS: Final = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "swish", "tanh")
_OTHER_NAMES: Final = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
_ALSO: Final = {"architectures": ["GPT2LMHeadModel"], "model_type": MODEL_TYPE}
"""What `config.json` says for other programs, unless `others` has it."""


@dataclass(frozen=True)
class Config:
    """The sizes of a GPT, and how it computes; every field has GPT-2's own name.

    >>> Config.small(vocab_size=5000, n_positions=256)
    """

    vocab_size: int = 50257
    n_positions: int = 1024
    n_embd: int = 768
    n_layer: int = 12
    n_head: int = 12
    n_inner: int | None = None
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    resid_pdrop: float = 0.1
    embd_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    initializer_range: float = 0.02
    scale_attn_weights: bool = True
    scale_attn_by_inverse_layer_idx: bool = False
    tie_word_embeddings: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    others: Mapping[str, Any] = field(default_factory=dict)
    """All that `config.json` says besides; it is written again as it was."""

    def __post_init__(self) -> None:
        for each in fields(self):
            if isinstance(value := getattr(self, each.name), np.generic):
                object.__setattr__(self, each.name, value.item())
        _check(self)

    @classmethod
    def small(cls, vocab_size: int = 50257, **changes: Any) -> Self:
        """6 layers, 384 wide: 30 million parameters with GPT-2's vocabulary."""
        return cls(**{"vocab_size": vocab_size, "n_embd": 384, "n_layer": 6, "n_head": 6} | changes)

    @classmethod
    def medium(cls, vocab_size: int = 50257, **changes: Any) -> Self:
        """8 layers, 512 wide: 51 million parameters with GPT-2's vocabulary."""
        return cls(**{"vocab_size": vocab_size, "n_embd": 512, "n_layer": 8, "n_head": 8} | changes)

    @classmethod
    def large(cls, vocab_size: int = 50257, **changes: Any) -> Self:
        """12 layers, 768 wide: 124 million parameters with GPT-2's vocabulary."""
        return cls(**{"vocab_size": vocab_size} | changes)

    @property
    def inner(self) -> int:
        """The width inside of a layer's feed-forward part."""
        return 4 * self.n_embd if self.n_inner is None else self.n_inner

    @property
    def end_tokens(self) -> frozenset[int]:
        """The tokens after which a text is at its end."""
        ends = self.eos_token_id
        return frozenset(() if ends is None else [ends] if isinstance(ends, int) else ends)

    def changed(self, **changes: Any) -> Self:
        """The same with other values."""
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """What `config.json` says, plain values under string keys."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        others = own.pop("others")
        # Transformers has a null for what it would fill in itself.
        also = {key: value for key, value in _ALSO.items() if others.get(key) is None}
        return {**others, **also, **own}

    @classmethod
    def of_dict(cls, given: Mapping[str, Any]) -> Self:
        """Made of what a `config.json` says; raises BadField or UnsupportedFile."""
        kind = given.get("model_type", MODEL_TYPE)
        if kind != MODEL_TYPE:
            raise UnsupportedFile(
                f"model_type is {shortened(str(kind))!r}, and only {MODEL_TYPE!r} is built here: "
                "the Transformers library opens others, and standfast.load reads their tensors"
            )
        named = {each.name for each in fields(cls)} - {"others"}
        known = {_OTHER_NAMES.get(key, key): value for key, value in given.items()}
        own = {key: value for key, value in known.items() if key in named}
        others = {key: value for key, value in known.items() if key not in named}
        return cls(**own, others={k: v for k, v in others.items() if _ALSO.get(k, ...) != v})

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a `config.json`, durably."""
        json_text.write(path, self.as_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a `config.json`."""
        return json_text.named(path, lambda: cls.of_dict(json_text.read_object(path)))


def _check(config: Config) -> None:
    """Raise for values of which no model can be built."""
    for name, largest in _LARGEST.items():
        value = getattr(config, name)
        if name == "n_inner" and value is None:
            continue
        if type(value) is not int or not 1 <= value <= largest:
            raise _bad(name, value, f"a whole number from 1 to {largest:,}")
    if config.n_embd % config.n_head:
        raise _bad("n_embd", config.n_embd, f"a multiple of n_head, {config.n_head}")
    if config.activation_function not in ACTIVATIONS:
        expected = f"one of {', '.join(ACTIVATIONS)}"
        raise _bad("activation_function", config.activation_function, expected)
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        if not _is_number(getattr(config, name)) or not 0 <= getattr(config, name) <= 1:
            raise _bad(name, getattr(config, name), "a number from 0 to 1")
    for name in ("layer_norm_epsilon", "initializer_range"):
        if not _is_number(getattr(config, name)) or getattr(config, name) < 0:
            raise _bad(name, getattr(config, name), "a number that is not negative")
    for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings"):
        if type(getattr(config, name)) is not bool:
            raise _bad(name, getattr(config, name), "true or false")
    for name in ("bos_token_id", "eos_token_id"):
        value = getattr(config, name)
        tokens = value if isinstance(value, list) and name == "eos_token_id" else [value]
        if value is not None and not all(type(each) is int for each in tokens):
            raise _bad(name, value, "a token's id, or nothing")
    for name in ("add_cross_attention", "reorder_and_upcast_attn"):
        if config.others.get(name):
            raise UnsupportedFile(f"{name} is set, and no model with it is built here")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and -_LARGEST_NUMBER < value < _LARGEST_NUMBER


def _bad(name: str, value: Any, expected: str) -> BadField:
    return BadField(f"{name} is {shortened(repr(value))}: it must be {expected}")


EMBEDDING: Final = "wte.weight"
HEAD: Final = "lm_head.weight"
"""The output layer, which most models share with the embedding of the tokens."""
PREFIX: Final = "transformer."
"""What Transformers puts before the names of all tensors but the output layer's."""
_MASK: Final = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
"""Constants that older releases of Transformers saved with the weights."""
_COMPILED: Final = "_orig_mod"
_PARALLEL: Final = "module."
_MOST_NAMED: Final = 5


def shapes(config: Config) -> Iterator[tuple[str, tuple[int, ...]]]:
    """The names and shapes of all parameters, in the order of the model."""
    width, inner = config.n_embd, config.inner
    yield "wte.weight", (config.vocab_size, width)
    yield "wpe.weight", (config.n_positions, width)
    for layer in range(config.n_layer):
        for name, shape in (
            ("ln_1.weight", (width,)),
            ("ln_1.bias", (width,)),
            ("attn.c_attn.weight", (width, 3 * width)),
            ("attn.c_attn.bias", (3 * width,)),
            ("attn.c_proj.weight", (width, width)),
            ("attn.c_proj.bias", (width,)),
            ("ln_2.weight", (width,)),
            ("ln_2.bias", (width,)),
            ("mlp.c_fc.weight", (width, inner)),
            ("mlp.c_fc.bias", (inner,)),
            ("mlp.c_proj.weight", (inner, width)),
            ("mlp.c_proj.bias", (width,)),
        ):
            yield f"h.{layer}.{name}", shape
    yield "ln_f.weight", (width,)
    yield "ln_f.bias", (width,)
    if not config.tie_word_embeddings:
        yield HEAD, (config.vocab_size, width)


def unwrapped_names(names: Iterable[str]) -> dict[str, str]:
    """By the names that a wrapped model has, those of the model in it.

    A compiled module is anywhere, a parallel one around all of them.
    """
    bare = {name: ".".join(p for p in name.split(".") if p != _COMPILED) for name in names}
    while bare and all(name.startswith(_PARALLEL) for name in bare.values()):
        bare = {name: plain.removeprefix(_PARALLEL) for name, plain in bare.items()}
    first: dict[str, str] = {}
    for name, plain in bare.items():
        _add(first, plain, name)
    return bare


def plain_name(name: str) -> str | None:
    """A tensor's name as GPT has it, without what Transformers adds; None if it is no weight."""
    plain = name.removeprefix(PREFIX)
    return None if _MASK.fullmatch(plain) else plain


def plain_names(names: Iterable[str]) -> dict[str, str]:
    """By the names that GPT has for them, the names that a file has for the same tensors."""
    found: dict[str, str] = {}
    for name in names:
        plain = plain_name(name)
        if plain is None:
            continue
        _add(found, plain, name)
    return found


def _add(found: dict[str, str], plain: str, name: str) -> None:
    if plain in found:
        raise StateMismatch(
            f"the tensors {shortened(found[plain])!r} and {shortened(name)!r} are the same one of "
            "a model: save its state under one set of names"
        )
    found[plain] = name


def saved_names(names: Iterable[str]) -> dict[str, str]:
    """By the names that GPT has, those that a file shall have: Transformers' if it has a head."""
    given = list(names)
    if HEAD not in given:
        return {name: name for name in given}
    return {name: name if name == HEAD else PREFIX + name for name in given}


def check_shapes(specs: Mapping[str, TensorSpec], config: Config) -> None:
    """Raise StateMismatch unless these are the tensors that the configuration asks for."""
    wanted = config.n_layer * 12 + 4 + (not config.tie_word_embeddings)
    missing, wrong = [], []
    for name, shape in shapes(config):
        if name not in specs:
            missing.append(name)
        elif specs[name].shape != shape:
            wrong.append(f"{name!r} is {list(specs[name].shape)} and should be {list(shape)}")
        if len(missing) + len(wrong) > _MOST_NAMED:
            break  # a configuration may ask for far more layers than there are
    unknown = [] if missing or wrong or len(specs) == wanted else _unknown(specs, config)
    problems = [f"{name!r} is missing" for name in missing] + wrong
    problems += [f"{shortened(name)!r} is not part of such a model" for name in unknown]
    if problems:
        more = "" if len(problems) <= _MOST_NAMED else ", and more"
        raise StateMismatch(
            f"the weights are not those that the configuration asks for: "
            f"{'; '.join(problems[:_MOST_NAMED])}{more}"
        )


def _unknown(specs: Mapping[str, TensorSpec], config: Config) -> list[str]:
    known = {name for name, _ in shapes(config)}
    return [name for name in specs if name not in known]
