"""Saves, loads and exports a model that lies in a file, and tells how much memory that took.

FILE LAYERS WIDTH SHARD     the file is made, and the package lies beside it
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from standfast.packages import Config, export, load_model_folder, save_model_folder
from standfast.packages.model.config import shapes
from standfast.packages.model.gpt import GPT, empty, fill
from standfast.store import Store

BLOCK = 1 << 22


def config_of(layers: int, width: int) -> Config:
    return Config(vocab_size=1024, n_positions=64, n_embd=width, n_layer=layers, n_head=16)


def make(path: Path, config: Config) -> None:
    elements = sum(int(np.prod(shape)) for _, shape in shapes(config))
    block = np.random.default_rng(1).standard_normal(BLOCK, np.float32)
    with path.open("wb") as file:
        for start in range(0, elements, BLOCK):
            block[0] = start
            file.write(block[: elements - start].data)


def model_over(path: Path, config: Config) -> GPT:
    """A model whose parameters lie in a file that is mapped."""
    storage = torch.from_file(str(path), shared=True, size=path.stat().st_size // 4)
    tensors, start = {}, 0
    for name, shape in shapes(config):
        stop = start + int(np.prod(shape))
        tensors[name] = storage[start:stop].view(shape)
        start = stop
    model = empty(config)
    fill(model, tensors)
    return model


def digest(model: GPT) -> str:
    hasher = blake3()
    for name, parameter in model.named_parameters():
        hasher.update(name.encode())
        flat = parameter.detach().reshape(-1).numpy()
        for start in range(0, flat.size, BLOCK):
            hasher.update(flat[start : start + BLOCK].view(np.uint8).data)
    return hasher.hexdigest()


class Watch:
    """The most memory that was this process's own while it ran."""

    def __enter__(self) -> Watch:
        self.before = self.most = own_memory()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.002):
            self.most = max(self.most, own_memory())

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    @property
    def more(self) -> int:
        return self.most - self.before


def own_memory() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def main(path: Path, config: Config, shard: int) -> None:
    make(path, config)
    model = model_over(path, config)
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    folder = path.with_name("package")
    with Watch() as saving:
        save_model_folder(model, tokenizer, config, folder, max_shard_size=shard)
    with Watch() as loading:
        loaded, *_ = load_model_folder(folder)
    same = digest(loaded) == digest(model)
    run = Store(path.with_name("store")).run("gpt")
    run.save(1, {"model": model.state_dict()})
    model.wte.weight.data[-1] += 1  # so that it lies in two files
    checkpoint = run.save(2, {"model": model.state_dict()})
    exported = path.with_name("exported")
    with Watch() as exporting:
        export(checkpoint, exported, config=config, tokenizer=tokenizer)
    found = {
        "size": path.stat().st_size,
        "shards": len(list(folder.glob("model-*.safetensors"))),
        "saving": saving.more,
        "loading": loading.more,
        "exporting": exporting.more,
        "same": same and digest(load_model_folder(exported)[0]) == digest(model),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    layers, width, shard = map(int, sys.argv[2:])
    main(Path(sys.argv[1]), config_of(layers, width), shard)
