"""`standfast ls` and `standfast show` in a root that weightslab wrote, which is only read."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from standfast.cli.commands.show.file import file_json, print_values, show_file
from standfast.cli.stores import takeover
from standfast.display.output import (
    age_text,
    on_terminal,
    print_json,
    print_table,
    say,
    size_text,
    time_text,
)
from standfast.errors import (
    AmbiguousRef,
    DamagedFile,
    FileError,
    RefNotFound,
    printable,
    shortened,
)
from standfast.store.schema.names import SHORTEST
from standfast.tensorfile.importers import Experiment, Root, read_root
from standfast.tensorfile.open import open

WRITER: Final = "weightslab"


@dataclass(frozen=True)
class _Weights:
    """A checkpoint of a root."""

    experiment: Experiment
    step: int
    is_latest: bool

    @property
    def path(self) -> Path:
        return self.experiment.checkpoints[self.step]

    @property
    def ref(self) -> str:
        return f"{self.experiment.hash}@{self.step}"

    def as_json(self) -> dict[str, Any]:
        """What is known without reading the file."""
        size, time = self.experiment.file_of(self.step)
        return {
            "ref": self.ref,
            "run": self.experiment.hash,
            "name": self.experiment.name,
            "step": self.step,
            "marks": ["latest"] if self.is_latest else [],
            "time": time,
            "writer": WRITER,
            "path": str(self.path),
            "bytes": size,
        }


def list_root(path: Path, run: str | None, *, number: int | None, as_json: bool) -> None:
    """Print the checkpoints of all experiments or of one, and who wrote them."""
    root = read_root(path)
    chosen = list(root.experiments.values()) if run is None else [_experiment(root, run)]
    every = [weights for experiment in chosen for weights in _newest_first(root, experiment)]
    listed = every[:number]
    if as_json:
        print_json([weights.as_json() for weights in listed])
        return
    for file, why in root.problems:
        say(("problem     ", "yellow"), printable(f"{file}: {why}"))
    if listed:
        when = "age" if on_terminal() else "saved"
        columns = ["run", "hash", "step", "size", when, "marks"]
        print_table(columns, [_row(each) for each in listed], right=f"step size {when}")
    else:
        say("no checkpoints yet")
    if len(every) > len(listed) and on_terminal():
        say((f"… and {len(every) - len(listed):,} older; --all lists them", "dim"))
    say((printable(f"written by {WRITER}, read only; {takeover(path)}"), "dim"))


def show_in_root(path: Path, ref: str, *, as_json: bool, every: bool, tensors_only: bool) -> None:
    """Print a checkpoint's place, its hyperparameters, and what its file holds."""
    weights = _resolve(read_root(path), ref)
    config, problem = _config(weights.experiment)
    if as_json:
        with open(weights.path, tensors_only=tensors_only) as file:
            content = file_json(weights.path, file)
        print_json({**weights.as_json(), "hyperparameters": config, **content})
        return
    experiment = weights.experiment
    say((printable(f"{experiment.name or experiment.hash}@{weights.step}"), "bold"))
    say(printable(f"written by {WRITER}, read only; {takeover(path)}"))
    facts: dict[str, Any] = {
        "run": experiment.hash,
        "created": experiment.created,
        "last used": experiment.last_used,
        "hyperparameters": config,
    }
    known = [(label, fact) for label, fact in facts.items() if fact is not None]
    print_values(known, every or not on_terminal())
    if problem:
        say((printable(f"  hyperparameters: {problem}"), "yellow"))
    say()
    show_file(weights.path, as_json=False, every=every, tensors_only=tensors_only)


def _row(weights: _Weights) -> list[str]:
    experiment = weights.experiment
    size, time = experiment.file_of(weights.step)
    return [
        printable(shortened(experiment.name or "—")),
        experiment.hash,
        str(weights.step),
        size_text(size),
        age_text(time) if on_terminal() else time_text(time),
        "latest" if weights.is_latest else "",
    ]


def _newest_first(root: Root, experiment: Experiment) -> list[_Weights]:
    steps = list(experiment.checkpoints)[::-1]
    latest = experiment is _latest(root)
    return [_Weights(experiment, step, latest and step == steps[0]) for step in steps]


def _latest(root: Root) -> Experiment | None:
    """The current experiment; if that has no checkpoint yet, the one before it."""
    current = [root.experiments[root.latest]] if root.latest else []
    every = [*current, *root.experiments.values()]
    return next((experiment for experiment in every if experiment.checkpoints), None)


def _config(experiment: Experiment) -> tuple[dict[str, Any] | None, str | None]:
    """The hyperparameters, or why they cannot be read: the weights can be shown without."""
    try:
        return experiment.config(), None
    except (FileError, DamagedFile) as error:
        return None, getattr(error, "strerror", None) or str(error)


def _resolve(root: Root, ref: str) -> _Weights:
    """The checkpoint that is meant: `latest`, HASH or NAME for its latest, HASH@STEP."""
    name, _, step = ref.partition("@")
    experiment = _latest(root) if ref == "latest" else _experiment(root, name)
    if experiment is None:
        raise RefNotFound(f"{root.path} has no checkpoint yet")
    newest_first = _newest_first(root, experiment)
    if not newest_first:
        raise RefNotFound(f"{experiment.hash} has no checkpoint")
    if step in ("", "latest"):
        return newest_first[0]
    for weights in newest_first:
        if str(weights.step) == step:
            return weights
    steps = ", ".join(map(str, list(experiment.checkpoints)[-8:]))
    raise RefNotFound(f"{experiment.hash} has no checkpoint of step {step}; it has {steps}")


def _experiment(root: Root, ref: str) -> Experiment:
    """The experiment that goes by a name or by the beginning of a hash."""
    prefix = ref.replace("_", "")
    every = root.experiments.values()
    found = [each for each in every if each.name == ref]
    if not found and len(prefix) >= SHORTEST:
        found = [each for each in every if each.hash.startswith(prefix)]
    if not found:
        raise RefNotFound(f"{root.path}: no experiment goes by {ref!r}")
    if len(found) > 1:
        hashes = ", ".join(each.hash for each in found[:5])
        raise AmbiguousRef(f"{len(found)} experiments go by {ref!r}: {hashes}; give more of a hash")
    return found[0]
