"""Packages beside the Transformers library: mapped, in shards, loaded and verified."""

from __future__ import annotations

import mmap
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from benchmarks import models, packages_kept, raw
from benchmarks.files import ROUNDS, nothing, touch
from benchmarks.memory import peak_of
from benchmarks.models import gone, size, weights, write
from benchmarks.report import Figure, Section
from benchmarks.resident import WAYS
from benchmarks.rounds import Contender, Rounds, run_rounds
from standfast.packages import GPT, Config, load_model_folder, load_model_mmaped
from standfast.packages.model.gpt import empty

MAPPED = Config(n_embd=1024, n_layer=16, n_head=16)
"""254 million parameters: 1.02 GB."""
SHARDED = MAPPED.changed(n_layer=26)
"""380 million parameters: 1.52 GB."""
SHARD = "500MB"
FLOOR = "raw: direct writes"


def sections(folder: Path) -> Iterator[Section]:
    yield mapped(folder)
    model = models.gpt(SHARDED)
    yield save(folder, model)
    del model
    yield load(folder, cold=True)
    yield load(folder, cold=False)
    shutil.rmtree(folder / "ours")
    yield from packages_kept.sections(folder)


def beyond(rounds: Rounds, name: str, base: str) -> float:
    """How many ms longer than another, within the rounds."""
    pairs = zip(rounds.seconds[name], rounds.seconds[base], strict=True)
    return 1e3 * statistics.median(a - b for a, b in pairs)


def mapped(folder: Path) -> Section:
    """From the page cache: a mapping reads nothing, and whoever reads does not wait for a disk."""
    home, small = folder / "mapped", folder / "small"
    write(home, models.gpt(MAPPED))
    write(small, models.gpt(models.TINY))
    (file,) = weights(home)
    warm = partial(raw.read_mapped_touched, file)
    ours, theirs = "load_model_mmaped", "from_pretrained"
    bare, built = "raw: the file mapped", "the module built, without weights"
    contenders: dict[str, Contender] = {
        bare: (nothing, partial(_map, file)),
        built: (nothing, partial(empty, MAPPED)),
        ours: (warm, partial(load_model_mmaped, home)),
        theirs: (warm, partial(models.from_pretrained, home)),
    }
    for _, measured in contenders.values():
        measured()  # what it imports and keeps
    rounds = run_rounds(contenders, ROUNDS)
    figures = [
        Figure("ms beyond building the module", beyond(rounds, ours, built), 50, at_most=True),
        Figure("times as fast as from_pretrained", rounds.speed_ratio(ours, theirs)),
    ]
    for way in WAYS:
        opened, read = _resident(way, home, small)
        figures.append(Figure(f"MB resident after {way}", opened))
        figures.append(Figure("… and after one layer was read", read))
    gone(home, small)
    return Section("a package of 1 GB mapped", rounds, None, figures)


def _map(file: Path) -> object:
    fd = os.open(file, os.O_RDONLY)
    memory = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    os.close(fd)
    return memory


def _resident(way: str, home: Path, small: Path) -> tuple[float, float]:
    """By how many MB a process of its own grew when it had opened a package, and read a layer."""
    program = [sys.executable, "-m", "benchmarks.resident", way, str(home), str(small)]
    done = subprocess.run(program, check=True, capture_output=True, text=True)
    opened, read = (int(each) * 1024 / 1e6 for each in done.stdout.split())
    return opened, read


def save(folder: Path, model: GPT) -> Section:
    """Leaves the package in `ours`."""
    ours, theirs, floor = folder / "ours", folder / "theirs", folder / "floor"
    other = models.gpt_of_transformers(model)
    take = peak_of(partial(write, ours, model, max_shard_size=SHARD)) / 1024
    staged = raw.staged(dict(model.named_parameters()))

    def save_theirs() -> None:
        other.save_pretrained(theirs, max_shard_size=SHARD)
        for path in (*theirs.iterdir(), theirs):
            _fsync(path)

    def make_room() -> None:
        floor.unlink(missing_ok=True)
        gone(ours, theirs)

    name, beside = "save_model_folder", "save_pretrained + fsync"
    contenders: dict[str, Contender] = {
        FLOOR: (make_room, partial(raw.write_direct, floor, staged)),
        beside: (make_room, save_theirs),
        name: (make_room, partial(write, ours, model, max_shard_size=SHARD)),
    }
    rounds = run_rounds(contenders, ROUNDS)
    make_room()
    write(ours, model, max_shard_size=SHARD)
    assert len(weights(ours)) > 1
    return Section(
        f"durable save in shards of {SHARD}",
        rounds,
        staged.size,
        [
            Figure("of the raw floor", rounds.speed_ratio(name, FLOOR)),
            Figure("of save_pretrained + fsync", rounds.speed_ratio(name, beside)),
            Figure("MiB beyond the model", take, 64, at_most=True),
        ],
    )


def _fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def load(folder: Path, cold: bool) -> Section:
    """Every page of the weights is touched, by those too that would leave them on the disk."""
    home = folder / "ours"
    files = weights(home)

    def before() -> None:
        for file in files:
            (raw.make_cold if cold else raw.read_mapped_touched)(file)

    def load_theirs() -> object:
        model = models.from_pretrained(home)
        touch(parameter.detach() for parameter in model.parameters())
        return model

    name, beside = "load_model_folder, verified", "from_pretrained, touched"
    floors = {
        way: partial(lambda read: [read(file) for file in files], read)
        for way, read in raw.READS.items()
        if "mapped" in way
    }
    contenders: dict[str, Contender] = {way: (before, read) for way, read in floors.items()}
    contenders[beside] = (before, load_theirs)
    contenders[name] = (before, partial(load_model_folder, home))
    for each in (beside, name):
        contenders[each][1]()
    rounds = run_rounds(contenders, ROUNDS)
    fastest = rounds.fastest(list(floors))
    return Section(
        f"{'cold' if cold else 'warm'} load of a package in shards",
        rounds,
        size(files),
        [
            Figure(
                f"of the fastest raw way ({fastest.removeprefix('raw: ')})",
                rounds.speed_ratio(name, fastest),
            ),
            Figure("of from_pretrained", rounds.speed_ratio(name, beside)),
        ],
    )
