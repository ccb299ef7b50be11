"""The experiments of a root that weightslab wrote, which is read and never written to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from standfast.errors import AmbiguousRef, RefNotFound
from standfast.experiments.reader import Entry, Loaded, parts_of
from standfast.experiments.steps import closest_step
from standfast.tensorfile.importers.values import read_content
from standfast.tensorfile.importers.weightslab import Experiment, read_root


class ForeignExperiments:
    """The experiments of weightslab's manifest: see `reading.Experiments`."""

    def __init__(self, root: Path) -> None:
        self._path = root

    def entries(self) -> list[Entry]:
        """All of them, the one that was used last first."""
        return [
            Entry(each.hash, each.created or "", each.last_used or each.created or "")
            for each in read_root(self._path).experiments.values()
        ]

    def latest(self) -> str | None:
        """The one that the manifest calls the latest."""
        return read_root(self._path).latest

    def find(self, exp_hash: str) -> str:
        """The one whose hash begins so."""
        known = read_root(self._path).experiments
        prefix = exp_hash.replace("_", "")
        found = [each for each in known if prefix and each.startswith(prefix)]
        if not found:
            raise RefNotFound(f"{self._path} has no experiment {exp_hash!r}")
        if len(found) > 1:
            raise AmbiguousRef(
                f"{len(found)} experiments begin with {exp_hash!r}: {', '.join(found[:5])}"
            )
        return found[0]

    def config(self, exp_hash: str) -> Any:
        """Its hyperparameters; None if it has none."""
        return self._experiment(exp_hash).config()

    def data_state(self, exp_hash: str) -> Any:
        """Its samples; None if it has none."""
        return self._experiment(exp_hash).data_state()

    def architecture(self, exp_hash: str) -> Path:
        """Where its model would lie, pickled: with the weights, and by the name of their folder."""
        weights = next(iter(self._experiment(exp_hash).checkpoints.values()), None)
        folder = weights.parent if weights else self._path / "checkpoints" / "models" / exp_hash
        return folder / f"{folder.name}_architecture.pkl"

    def has_checkpoint(self, exp_hash: str) -> bool:
        """Whether it has a checkpoint."""
        return bool(self._experiment(exp_hash).checkpoints)

    def load(self, exp_hash: str, target_step: int | None = None) -> Loaded:
        """A checkpoint, read without running what is in it; nothing says whether it is intact."""
        files = self._experiment(exp_hash).checkpoints
        if not files:
            raise RefNotFound(f"experiment {exp_hash} has no checkpoint")
        step = max(files) if target_step is None else closest_step(files, target_step)
        return Loaded(read_content(files[step], tensors_only=False).tree, None)

    def info(self, exp_hash: str) -> dict[str, Any]:
        """What the manifest and the files' names say."""
        experiment = self._experiment(exp_hash)
        files = experiment.checkpoints
        sizes = {step: path.stat().st_size for step, path in files.items()}
        return {
            **parts_of(exp_hash),
            "name": experiment.name,
            "created": experiment.created,
            "last_used": experiment.last_used,
            "parent": None,
            "config": experiment.config(),
            "steps": list(files),
            "latest_step": max(files, default=None),
            "best_step": None,
            "nbytes": sum(sizes.values()),
            "checkpoints": [
                {"step": step, "time": None, "metrics": {}, "nbytes": sizes[step], "path": path}
                for step, path in files.items()
            ],
        }

    def _experiment(self, exp_hash: str) -> Experiment:
        return read_root(self._path).experiments[exp_hash]
