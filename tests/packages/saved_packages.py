"""Small packages for tests of what lists and shows them: no torch, no tokenizers."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

import standfast
from standfast.packages.documents.records import GenerationInfo
from standfast.packages.model.config import Config, shapes
from standfast.packages.writer import Contents, write_package
from standfast.tensors import source_of

CONFIG = Config(vocab_size=20, n_positions=8, n_embd=8, n_layer=1, n_head=2)
TENSORS = {name: np.full(shape, 0.5, np.float32) for name, shape in shapes(CONFIG)}
PARAMETERS = sum(tensor.size for tensor in TENSORS.values())
TOKENIZER = json.dumps({"version": "1.0", "padding": "x" * 70_000}).encode()
"""Larger than what a list reads."""


def make_package(
    folder: Path, info: GenerationInfo | None = None, config: Config = CONFIG, **options: Any
) -> Path:
    """A whole package; `options` are those of `write_package`."""
    files = {"tokenizer.json": TOKENIZER}
    if info is not None:
        files["generation_info.json"] = json.dumps(info.as_dict()).encode()
    folder.parent.mkdir(parents=True, exist_ok=True)
    tensors = {name: source_of(np.full(shape, 0.5, np.float32)) for name, shape in shapes(config)}
    write_package(Contents(tensors, config.as_dict(), files, {}), folder, **options)
    return folder


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    """Let the manifest say something else of the model, under a digest that is right."""
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    content["model"] |= changes
    content["digest"] = "0" * 64
    text = json.dumps(content)
    path.write_text(text.replace("0" * 64, blake3(text.encode()).hexdigest(), 1))


def make_foreign(folder: Path, tensors: Any = TENSORS) -> Path:
    """A folder as other programs write it: no manifest, no digests."""
    folder.mkdir(parents=True)
    standfast.save(folder / "model.safetensors", tensors, extras=False)
    (folder / "config.json").write_text(json.dumps(CONFIG.as_dict()))
    (folder / "tokenizer.json").write_bytes(TOKENIZER)
    return folder
