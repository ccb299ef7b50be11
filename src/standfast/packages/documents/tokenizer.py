"""The tokenizer of a package, and the other files that Transformers has besides the weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from standfast.errors import (
    BadField,
    BadOption,
    LimitExceeded,
    StateMismatch,
    UnknownFramework,
    printable,
    shortened,
)
from standfast.files.atomic import as_write_failed
from standfast.packages.documents import json_text
from standfast.packages.documents.names import GENERATION_CONFIG, TOKENIZER, TOKENIZER_FILES
from standfast.packages.remote.places import file_in, opened
from standfast.tensors.frameworks import unwrapped

MAX_TEXT: Final = 256 << 20
"""Bytes; the largest vocabularies take some 30 MiB."""
MAX_PADDING: Final = 1 << 24
"""Tokens: beyond, the library would end the process for want of memory at the first text."""


def tokenizer_text(tokenizer: Any) -> bytes:
    """The `tokenizer.json` of a tokenizer.

    That is one of the Tokenizers or the Transformers library, the path of such a file, or its
    text. A file and a text stay byte for byte what they are, once the library has taken them.
    """
    if isinstance(tokenizer, str) and not tokenizer.lstrip().startswith("{"):
        return _file_text(tokenizer)
    if isinstance(tokenizer, os.PathLike):
        return _file_text(tokenizer)
    if isinstance(tokenizer, bytes | str):
        text = _encoded(tokenizer) if isinstance(tokenizer, str) else tokenizer
    else:
        text = _written(tokenizer)
    tokenizer_of(text)
    return text


def tokenizer_of(text: bytes) -> Any:
    """The `tokenizers.Tokenizer` that a `tokenizer.json` describes.

    Raises BadField for what the library does not take, and UnknownFramework without it.
    """
    if len(text) > MAX_TEXT:
        raise LimitExceeded(_too_long(len(text)))
    library = _library()
    try:
        tokenizer = library.Tokenizer.from_buffer(text)
    except BaseException as error:
        # Where its Rust code panics, what arrives here is no Exception.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        reason = shortened(printable(str(error)))
        raise BadField(
            f"it is not a tokenizer.json that the Tokenizers library {library.__version__} takes "
            f"({reason})"
        ) from error
    _check_padding(tokenizer.padding or {})
    return tokenizer


def read_tokenizer(path: str | os.PathLike[str]) -> Any:
    """The `tokenizers.Tokenizer` in a `tokenizer.json`."""
    return json_text.named(path, lambda: tokenizer_of(_read(path)))


def tokenizer_config(config: Mapping[str, Any], text: bytes) -> dict[str, Any]:
    """The `tokenizer_config.json` for a model's `config.json` and a `tokenizer.json`.

    Without it the Transformers library builds GPT-2's own tokenizer around the vocabulary,
    whatever the rest of `tokenizer.json` says.
    """
    made = {"clean_up_tokenization_spaces": False, "tokenizer_class": "PreTrainedTokenizerFast"}
    if "n_positions" in config:
        made["model_max_length"] = config["n_positions"]
    # One that is not special there would become so, and be cut out of every text.
    special = {
        number: token.content
        for number, token in tokenizer_of(text).get_added_tokens_decoder().items()
        if token.special
    }
    for name in ("bos_token", "eos_token"):
        number = config.get(f"{name}_id")
        number = number[0] if isinstance(number, list) and number else number
        if type(number) is int and number in special:
            made[name] = special[number]
    return made


def check_vocabulary(text: bytes, size: int) -> None:
    """Raise StateMismatch for a `tokenizer.json` with a token that the model has no row for."""
    tokens = tokenizer_of(text).get_vocab()
    last = max(tokens, key=lambda token: tokens[token], default="")
    if tokens and tokens[last] >= size:
        raise StateMismatch(
            f"the tokenizer has the token {shortened(printable(last))!r} with the id "
            f"{tokens[last]:,}, and vocab_size is {size:,}: ids go up to {size - 1:,}"
        )


def _written(tokenizer: Any) -> bytes:
    """The text of a tokenizer in memory."""
    inner = getattr(tokenizer, "backend_tokenizer", tokenizer)  # of Transformers
    if not hasattr(inner, "to_str"):
        raise BadOption(
            f"tokenizer is a {type(tokenizer).__name__}: it must be one of the Tokenizers library, "
            "a fast one of Transformers, or the path or the text of a tokenizer.json"
        )
    try:
        return str(inner.to_str(pretty=True)).encode()
    except Exception as error:
        raise BadOption(
            f"the tokenizer has a part that no tokenizer.json holds ({shortened(str(error))}): "
            "take one that the library can write"
        ) from error


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start]
        raise BadField(
            f"tokenizer: it has {half!r}, which is half of a character and no file holds: replace "
            "it"
        ) from error


def _read(path: str | os.PathLike[str]) -> bytes:
    with closing(opened(path)) as file:
        if file.size > MAX_TEXT:
            raise LimitExceeded(f"{os.fsdecode(path)}: {_too_long(file.size)}")
        return file.read(0, file.size)


def _file_text(path: str | os.PathLike[str]) -> bytes:
    file = file_in(path, TOKENIZER)  # of another package
    text = _read(file)
    json_text.named(file, lambda: tokenizer_of(text))
    return text


def _check_padding(padding: Mapping[str, Any]) -> None:
    for name in ("length", "pad_to_multiple_of"):
        if (padding.get(name) or 0) > MAX_PADDING:
            raise BadField(
                f"padding: {name} is {padding[name]:,} tokens, over {MAX_PADDING:,}, which is more "
                "than any model takes"
            )


def _too_long(size: int) -> str:
    return f"{size:,} bytes, over {MAX_TEXT:,}, which is more than any tokenizer.json has"


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UnknownFramework(
            f"the Tokenizers library cannot be imported ({error}): pip install tokenizers"
        ) from error
    return tokenizers


def is_of_transformers(tokenizer: Any) -> bool:
    """Whether a tokenizer is one of Transformers that the Tokenizers library works for."""
    return hasattr(tokenizer, "backend_tokenizer") and hasattr(tokenizer, "save_pretrained")


def tokenizer_files(tokenizer: Any) -> dict[str, bytes]:
    """The files of a tokenizer of Transformers as it writes them itself.

    They have what `tokenizer.json` does not: the token and the side of padding, the template of
    chats.
    """
    # Several templates would be files in a folder of their own, which no package has.
    several = isinstance(getattr(tokenizer, "chat_template", None), dict)
    options = {"save_jinja_files": False} if several else {}
    with (
        as_write_failed(tempfile.gettempdir()),
        tempfile.TemporaryDirectory(prefix="standfast-") as folder,
    ):
        try:
            tokenizer.save_pretrained(folder, **options)
        except OSError:
            raise
        except Exception as error:
            raise BadOption(
                f"the tokenizer cannot be saved by Transformers itself "
                f"({shortened(printable(str(error)))}): take one that can"
            ) from error
        paths = [Path(folder, name) for name in TOKENIZER_FILES]
        files = {path.name: path.read_bytes() for path in paths if path.is_file()}
    # What it does not write, it has to say itself.
    files[TOKENIZER] = tokenizer_text(files.get(TOKENIZER, tokenizer))
    return files


def generation_files(model: Any) -> dict[str, bytes]:
    """How a model of Transformers is meant to generate, in its own file; of others, nothing."""
    config = getattr(unwrapped(model), "generation_config", None)
    if config is None or not hasattr(config, "to_json_string"):
        return {}
    return {GENERATION_CONFIG: config.to_json_string().encode()}
