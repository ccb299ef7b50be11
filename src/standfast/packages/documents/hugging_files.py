"""The files that Transformers has beside the weights: of its tokenizers, and of how to generate."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from standfast.errors import BadOption, printable, shortened
from standfast.files.atomic import as_write_failed
from standfast.packages.documents.names import GENERATION_CONFIG, TOKENIZER, TOKENIZER_FILES
from standfast.packages.documents.tokenizer import tokenizer_text
from standfast.tensors.frameworks import unwrapped


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
