"""The tensors of a GPT: what they are called, and which shapes they have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from standfast.errors import StateMismatch, shortened
from standfast.packages.model.config import Config
from standfast.tensors import TensorSpec

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
