"""Packages that are kept: many in a folder, one in a store, one in 8 bits."""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import standfast
from benchmarks import models, raw
from benchmarks.files import ROUNDS, nothing
from benchmarks.models import gone, size, weights, write
from benchmarks.report import Figure, Section
from benchmarks.rounds import Contender, run_rounds
from standfast.packages import (
    GPT,
    Config,
    GenerationInfo,
    export,
    list_saved_models,
    load_model_folder,
    save_to_store,
)

STORED = Config.large()
"""124 million parameters: 0.50 GB, in 12 layers."""
TUNED = (10, 11)
"""The layers that are changed between two saves."""
PACKAGES = 1000
FLOOR = "raw: direct writes"


def sections(folder: Path) -> Iterator[Section]:
    yield listing(folder)
    model = models.gpt(STORED)
    yield stored(folder, model)
    yield quantized(folder, model)


def listing(folder: Path) -> Section:
    """Every tenth one is broken."""
    home = folder / "models"
    write(folder / "one", models.gpt(models.TINY))
    for number in range(PACKAGES):
        other = shutil.copytree(folder / "one", home / f"model{number}_20261116_{number:06d}")
        if number % 10 == 9:
            (other / "tokenizer.json").unlink()
    os.sync()
    name, floor = "list_saved_models", "raw: each file looked at, config.json read"
    contenders: dict[str, Contender] = {
        floor: (nothing, partial(_look, home)),
        name: (nothing, partial(list_saved_models, home)),
    }
    found = list_saved_models(home)
    assert len(found) == PACKAGES
    assert sum(each.integrity == "broken" for each in found) == PACKAGES // 10
    rounds = run_rounds(contenders, ROUNDS)
    gone(home, folder / "one")
    return Section(
        f"listing {PACKAGES:,} packages",
        rounds,
        None,
        [Figure("seconds", rounds.median(name), 1, at_most=True)],
    )


def _look(home: Path) -> None:
    for package in os.scandir(home):
        for file in os.scandir(package):
            file.stat()
        Path(package, "config.json").read_bytes()


def stored(folder: Path, model: GPT) -> Section:
    """The whole package, a fine-tune of two layers, and what comes out as a folder again."""
    path, package, floor = folder / "store", folder / "exported", folder / "floor"
    staged = raw.staged(dict(model.named_parameters()))
    tuned = [weight for layer in TUNED for weight in model.h[layer].parameters()]
    layers = sum(weight.nbytes for weight in tuned)
    run = standfast.Store(path).run("tuned")
    steps = itertools.count()
    written: list[int] = []

    def save() -> None:
        save_to_store(run, next(steps), model, models.tokenizer(), model.config)

    def save_whole() -> None:
        other = standfast.Store(folder / "fresh").run("whole")
        save_to_store(other, 1, model, models.tokenizer(), model.config)
        other.close()

    def tune() -> None:
        for weight in tuned:
            weight.data.add_(1.0)
        written.append(_size_below(path))

    def make_room() -> None:
        floor.unlink(missing_ok=True)
        gone(folder / "fresh", package)

    save()
    name, whole = "save_to_store, 2 layers tuned", "save_to_store, all of it"
    contenders: dict[str, Contender] = {
        FLOOR: (make_room, partial(raw.write_direct, floor, staged)),
        whole: (make_room, save_whole),
        name: (tune, save),
        "export": (make_room, lambda: export(run.checkpoint("latest"), package)),
    }
    rounds = run_rounds(contenders, ROUNDS)
    written.append(_size_below(path))
    most = max(after - before for before, after in itertools.pairwise(written))
    make_room()
    run.close()
    gone(path)
    return Section(
        "a package in a store, saved again after 2 layers were tuned",
        rounds,
        staged.size,
        [
            Figure("bytes written, of those of the layers", most / layers, 1.05, at_most=True),
            Figure("MB of the layers", layers / 1e6),
            Figure("all of it, of the raw floor", rounds.speed_ratio(whole, FLOOR)),
            Figure("export, of the raw floor", rounds.speed_ratio("export", FLOOR)),
        ],
    )


def _size_below(folder: Path) -> int:
    return size([file for file in folder.rglob("*") if file.is_file()])


def quantized(folder: Path, model: GPT) -> Section:
    """Of weights with a normal distribution, as new ones have it."""
    whole, small = folder / "whole", folder / "int8"
    names = "save_model_folder", "… quantize='int8'", "load_model_folder of it"
    contenders: dict[str, Contender] = {
        names[0]: (partial(gone, whole), partial(write, whole, model)),
        names[1]: (partial(gone, small), partial(write, small, model, quantize="int8")),
        names[2]: (partial(_have, small, model), partial(load_model_folder, small)),
    }
    rounds = run_rounds(contenders, 3)
    report = GenerationInfo.load(small / "generation_info.json").quantization
    assert report is not None
    figures = [
        Figure("size, of that of the whole", size(weights(small)) / size(weights(whole))),
        Figure("MB", size(weights(small)) / 1e6),
        Figure("% relative error", 100 * report["relative_error"]),
        Figure("% largest error, in standard deviations", 100 * report["largest_error"]),
    ]
    gone(whole, small)
    return Section("a package in 8 bits", rounds, None, figures)


def _have(small: Path, model: GPT) -> None:
    if not small.exists():
        write(small, model, quantize="int8")
