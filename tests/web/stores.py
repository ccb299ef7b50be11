"""Stores to look at: one with everything, an empty one, a damaged, a hostile, a large one."""

import functools
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np

import standfast
import tests.examples  # noqa: F401  (its programs can be imported from here on)
from standfast import KeepBest, KeepLast, Store
from standfast.amr import OpenTopology, ScalarFrontend, Snapshot
from standfast.files.digests import CHUNK
from standfast.parallel import SingleRank
from standfast.policies import retention
from standfast.store.load.reading import read_record
from standfast.store.schema import names
from standfast.store.schema.marks import Note, change_marks
from standfast.store.schema.record import encode
from standfast.store.schema.run_file import encode as encode_run
from standfast.tensors import TensorSpec
from standfast.training.metrics import MetricsLog
from tests.packages.saved_packages import make_package

HP = {
    "lr": 3e-4,
    "layers": 2,
    "optimizer": {"name": "adamw", "betas": [0.9, 0.95], "weight_decay": 0.1},
    "seed": 2**63 - 1,
}
DATA = {"uids": list(range(400)), "discarded": [7], "tags": {5: ["hard"]}}
STEPS = 200

SENTINEL = "window.__pwned=1"
ATTACKS = (
    f"<script>{SENTINEL};alert(1)</script>",
    f'"><img src=x onerror="{SENTINEL};alert(1)">',
    f"</script><script>{SENTINEL}</script>",
    f"<svg/onload={SENTINEL}>",
    f"javascript:{SENTINEL}",
    f"{{{{constructor.constructor('{SENTINEL}')()}}}}",
    f"%3Cscript%3E{SENTINEL}%3C/script%3E",
    f"' onmouseover='{SENTINEL}' autofocus onfocus='{SENTINEL}",
)
"""Each would set the sentinel, or open a dialog, on a page that took text for HTML."""
ODDITIES = (
    "../../../etc/passwd",
    "exe.\u202egnp.model",  # read from right to left after the mark
    "a\x00b\x1b[31mred\x7f\r\nnew line",
    "🦀🇩🇪👩‍👩‍👧 emoji",
    "__proto__",
    "constructor",
    "z̸̡̢̛̹͓̦͓͉̥̲̈́̄a̵l̷g̶o̶" * 3,
    "W" * 200,
    "?q=1&page=2#part",
    " ",
)


def small(folder: Path) -> Store:
    """Four runs that came from each other, a simulation, a run without checkpoints, and files."""
    store = Store(folder)
    gpt = _trained(store, "gpt", HP, range(20, STEPS + 1, 20))
    gpt.set_retention(retention(KeepLast(2) | KeepBest(1, "loss"), None))
    gpt.checkpoint(100).tag("paper")
    gpt.checkpoint(100).note("The figures 2 and 3 are of this one.")
    gpt.checkpoint(200).note("Trained to the end.\nThe loss still falls.")
    gpt.set_monitor("loss", "min")
    gpt.mark_best()
    low = _trained(
        store, "low rate", {**HP, "lr": 1e-5}, range(120, 181, 20), parent=gpt.checkpoint(100)
    )
    low.checkpoint(180).tag("candidate")
    _trained(store, "wide", HP, range(120, 161, 40), width=96, parent=gpt.checkpoint(100))
    fewer = {**DATA, "uids": list(range(300))}
    _trained(store, "less data", HP, range(200, 221, 20), data=fewer, parent=low.checkpoint(180))
    snapshot = _simulated(store)
    store.run("not begun", hp={"lr": 5})
    _make_files(folder, snapshot)
    store.close()
    return store


def empty(folder: Path) -> Store:
    """A store in which there is nothing yet."""
    (folder / "checkpoints" / names.MODELS).mkdir(parents=True)
    return Store(folder)


def damaged(folder: Path) -> Store:
    """Run `gpt` with a record that is all but lost (40), a flipped byte (60), no data file (80), a
    record without its end (100) and an unfinished log; another run, whose own file is lost.
    """
    store = Store(folder)
    run = _trained(store, "gpt", HP, range(20, 121, 20))
    store.close()
    place = folder / "checkpoints" / names.MODELS / run.hash
    for step, end in ((40, 100), (100, -100)):
        record = place / f"{run.hash}_step_{step:06d}.json"
        record.write_bytes(record.read_bytes()[:end])
    flipped = _largest(place, 60)
    data = bytearray(flipped.read_bytes())
    data[-5] ^= 1
    flipped.write_bytes(data)
    _largest(place, 80).unlink()
    log = folder / "logs" / f"{run.hash}_metrics.jsonl"
    log.write_bytes(log.read_bytes() + b'{"step": 201, "met')
    lost = _trained(store, "lost its file", {"lr": 1}, range(20, 41, 20))
    store.close()
    (place.parent / lost.hash / f"{lost.hash}_run.json").write_bytes(b"{")
    return store


def hostile(folder: Path) -> Store:
    """What somebody would put into a store to hurt those who look at it.

    The names that the product refuses are written into the files by hand, under right digests.
    """
    store = Store(folder)
    texts = (*ATTACKS, *ODDITIES)
    state = {
        "model": {text: np.arange(12, dtype=np.float32).reshape(3, 4) for text in texts},
        f"<b>{SENTINEL}</b>": {"": np.ones(3), "plain": ATTACKS[0]},
    }
    settings = {text: texts[number - 1] for number, text in enumerate(texts)}
    parent = None
    for number, text in enumerate(texts):
        run = store.run(f"plain {number}", hp={"n": number, **settings}, parent=parent)
        metrics = {text: float(number), "loss": math.nan if number % 2 else -math.inf}
        with run:
            run.save(1, state, metrics)
            run.save(2, state, metrics, best=True)
        notes = [Note("2026-01-02T03:04:05.678901Z", each) for each in (text, "\n".join(texts))]
        marks = functools.partial(msgspec.structs.replace, tags=[text, *texts[:3]], notes=notes)
        change_marks(store.backend, run.checkpoint(2).head.place, marks)
        file = msgspec.structs.replace(
            run.file, name=text, trial=text, environment={text: text, "host": text}
        )
        _path(folder, names.run_file(run.hash)).write_bytes(encode_run(file))
        parent = run.checkpoint(2) if number % 3 == 0 else parent
    logged = MetricsLog(folder / "logs" / f"{run.hash}_metrics.jsonl")
    for step in range(1, 50):
        logged.add(step, None, {text: float(step) for text in texts})
    logged.append(logged.settle())
    files = folder / "files"
    files.mkdir()
    for text in texts:
        name = text.replace("/", "\u2215").replace("\x00", "")
        if name.strip():
            standfast.save(files / f"{name[:100]}.safetensors", state["model"])
            (files / name[:100]).mkdir()
    store.close()
    return store


def many(folder: Path) -> Store:
    """Four hundred runs of one checkpoint each."""
    return several(folder, 400)


def several(folder: Path, runs: int = 60) -> Store:
    """More runs than there are on a page."""
    store = Store(folder)
    for number in range(runs):
        metrics = {"loss": 1 / (1 + number)}
        run = store.run(f"run {number}", hp={"lr": number / 1000, "n": number})
        run.save(1, {"n": number}, metrics)
    store.close()
    return store


def huge(folder: Path) -> Store:
    """One tensor of a gigabyte, `model.weight`, whose 64 chunks are the same 16 MiB of the disk."""
    store = Store(folder)
    noise = np.random.default_rng(0).standard_normal(CHUNK // 4, np.float32)
    with store.run("huge") as run:
        run.save(1, {"model": {"weight": noise}})
        one = read_record(store.backend, run.hash, 1)
    large = replace(
        one,
        head=msgspec.structs.replace(one.head, nbytes=64 * CHUNK),
        specs=[TensorSpec("float32", (1 << 14, 1 << 14))],
        counts=one.counts * 64,
        files=np.repeat(one.files, 64),
        starts=np.repeat(one.starts, 64),
        sizes=np.repeat(one.sizes, 64),
        digests=one.digests * 64,
    )
    _path(folder, names.record_file(run.hash, 1)).write_bytes(encode(large))
    store.close()
    return store


PAGES = {
    "runs": "/",
    "run": "/runs/{gpt}",
    "runs-together": "/runs/{gpt}?with={low}",
    "lineage": "/lineage",
    "checkpoint": "/checkpoints/{gpt}/200",
    "snapshot": "/checkpoints/{heat}/60",
    "compare": "/compare?before={gpt}@100&after={low}@180",
    "storage": "/storage",
    "files": "/files",
    "file": "/files?path=weights.safetensors",
    "mesh": "/files?path=heat.sunc",
    "package": "/files?path=recipes",
}


def pages(store: Store) -> dict[str, str]:
    """Where each page of the dashboard is, for the store `small`, by what to call its pictures."""
    gpt, low, heat = (store.find_run(name).hash for name in ("gpt", "low rate", "heat"))
    return {name: path.format(gpt=gpt, low=low, heat=heat) for name, path in PAGES.items()}


@cache
def cached(builder: Callable[[Path], Store], folder: Path) -> Store:
    """A store that is made once for all tests, which only read it."""
    place = folder / builder.__name__
    shutil.rmtree(place, ignore_errors=True)
    return builder(place)


def _trained(
    store: Store,
    name: str,
    hp: Any,
    steps: range,
    *,
    width: int = 64,
    data: Any = DATA,
    parent: standfast.Checkpoint | None = None,
) -> standfast.Run:
    """A run with a log of every step, and checkpoints of some."""
    rng = np.random.default_rng(len(name))
    model = _model(rng, width)
    run = store.run(name, hp=hp, model=model, data=data, parent=parent)
    assert store.logs is not None
    store.logs.mkdir(exist_ok=True)
    log = MetricsLog(store.logs / f"{run.hash}_metrics.jsonl")
    with run:
        for step in range(parent.step + 1 if parent else 1, steps[-1] + 1):
            metrics = _metrics(step, rng)
            log.add(step, step // 50, metrics)
            if step in steps:
                model["blocks"][0]["attention.weight"] += np.float32(0.01)
                state = {"model": model, "optimizer": _optimizer(model, step), "step": step}
                run.save(step, state, metrics, epoch=step // 50)
    log.append(log.settle())
    return run


def _metrics(step: int, rng: np.random.Generator) -> dict[str, float]:
    noise = float(rng.normal(0, 0.02))
    return {
        "loss": 4 * math.exp(-step / 60) + 0.3 + noise,
        "validation/accuracy": 1 - math.exp(-step / 80) + noise / 4,
        "lr": 3e-4 * min(1, step / 20),
        "grad_norm": math.nan if step == 50 else 1 + abs(noise) * 30,
    }


def _model(rng: np.random.Generator, width: int) -> dict[str, Any]:
    """Tensors of many dtypes and shapes, the odd ones too."""

    def block() -> dict[str, Any]:
        return {
            "attention.weight": rng.standard_normal((width, 3 * width), np.float32),
            "mlp.weight": rng.standard_normal((width, 4 * width)).astype(ml_dtypes.bfloat16),
            "norm.bias": np.zeros(width, np.float16),
        }

    return {
        "embedding": rng.standard_normal((512, width), np.float32),
        "blocks": [block() for _ in range(2)],
        "kernel": rng.standard_normal((8, 3, 5, 5)),
        "mask": np.tri(width, dtype=bool),
        "positions": np.arange(width),
        "levels": rng.integers(0, 255, (16, 16), np.uint8),
        "phases": np.exp(1j * rng.standard_normal(100)).astype(np.complex64),
        "quantized": rng.standard_normal((16, 16)).astype(ml_dtypes.float8_e4m3fn),
        "scale": np.float32(0.125) * np.ones(()),
        "nothing": np.zeros((0, 4), np.float32),
        "broken": np.array([1.0, np.nan, np.inf, -np.inf, -0.0, 5e-324]),
    }


def _optimizer(model: dict[str, Any], step: int) -> dict[str, Any]:
    moment = np.zeros_like(model["embedding"])
    moment[: step % 512] = 0.5
    return {"state": {0: {"step": step, "exp_avg": moment}}, "lr": 3e-4}


def _simulated(store: Store) -> Snapshot:
    """The plate of `examples/heat.py`, which is refined where it is hot."""
    from heat import BLOCK, STEP, new_plate

    rng = np.random.default_rng(1)
    frontend = ScalarFrontend(2, BLOCK, OpenTopology(2, (1.0, 1.0)))
    plate = new_plate(frontend, SingleRank())
    run = store.run("heat", hp={"seed": 1})
    for step in range(1, 61):
        plate.advance(step, rng)
        if step % 30 == 0:
            saved = Snapshot.save(
                run,
                step,
                plate.tree,
                plate.arena,
                time=step * STEP,
                random={"sparks": rng},
                values={"refined": plate.refined},
            )
    run.close()
    return saved


def _make_files(folder: Path, snapshot: Snapshot) -> None:
    """Files of the formats, and a model package, beside the store."""
    files = folder / "files"
    (files / "more").mkdir(parents=True)
    rng = np.random.default_rng(2)
    tensors = {
        "weight": rng.standard_normal((64, 48), np.float32),
        "bias": np.zeros(64, np.float32),
    }
    snapshot.export(files / "heat.sunc")
    standfast.save(files / "weights.safetensors", tensors, metadata={"author": "tests"})
    standfast.save(files / "arrays.npz", tensors)
    standfast.save(files / "more" / "old.safetensors", {"weight": tensors["weight"]})
    (files / "more" / "cut.safetensors").write_bytes(b"\x40\0\0\0\0\0\0\0{")
    (files / "notes.txt").write_text("No tensors here.\n")
    make_package(files / "recipes")


def _path(folder: Path, name: str) -> Path:
    return folder / "checkpoints" / name


def _largest(place: Path, step: int) -> Path:
    """The largest data file that a step wrote."""
    found = place.glob(f"*_step_{step:06d}.*.safetensors")
    return max(found, key=lambda path: path.stat().st_size)
