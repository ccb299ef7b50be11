"""`CheckpointManagerV2`: the experiments of a root, written and read."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Self

from standfast.errors import BadOption, NotAStore, NotOpen, RefNotFound, WriteFailed
from standfast.experiments.architectures import load_architecture, pickle_architecture
from standfast.experiments.recorder import Recorder, restore
from standfast.experiments.registry import watched
from standfast.experiments.store import StoredExperiments, as_step
from standfast.files.paths import check_local
from standfast.store import Store
from standfast.store.schema import names
from standfast.store.v3.foreign import is_foreign, read_only

_ORDERS: Final = ("created", "last_used")


_FOLDERS: Final = (
    "data",
    "logs",
    *(f"checkpoints/{name}" for name in (names.MODELS, names.SETTINGS, names.SAMPLES)),
)


def _make_folders(root: Path) -> None:
    """Make those that are not there; raises WriteFailed, unless it is a store that is only read."""
    was_there = (root / "checkpoints" / names.MODELS).is_dir()
    try:
        for folder in _FOLDERS:
            (root / folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not was_there:
            raise WriteFailed(
                error.errno, f"cannot make the folder {error.filename}: {error.strerror}"
            ) from error


class CheckpointManagerV2:
    """The experiments of a root, each with its checkpoints; a context manager.

    >>> with CheckpointManagerV2("experiments") as manager:
    ...     manager.update_experiment_hash(model_snapshot=model, hp_snapshot={"lr": 0.1})
    ...     manager.save_model_checkpoint(model, step=100)
    """

    def __init__(
        self, root_log_dir: str | os.PathLike[str], pickle_architectures: bool = False
    ) -> None:
        """The folders are made if they are not there; nothing is, in a root of weightslab's.

        With `pickle_architectures`, models are pickled beside the description of them.
        """
        check_local(root_log_dir)
        self.root_log_dir: Final = Path(root_log_dir).absolute()
        self.checkpoints_dir: Final = self.root_log_dir / "checkpoints"
        self.models_dir: Final = self.checkpoints_dir / names.MODELS
        self.hp_dir: Final = self.checkpoints_dir / names.SETTINGS
        self.data_checkpoint_dir: Final = self.checkpoints_dir / names.SAMPLES
        self.manifest_file: Final = self.checkpoints_dir / names.MANIFEST
        self.store: Final = Store(self.root_log_dir)
        """The store that the experiments are runs of."""
        self._is_foreign: Final = is_foreign(self.root_log_dir)
        self._recorder: Final = Recorder(self.store, pickle_architectures)
        self._experiments: Final = StoredExperiments(self.store)
        if not self._is_foreign:
            _make_folders(self.root_log_dir)

    @property
    def current_exp_hash(self) -> str | None:
        """The hash of the experiment as it is now, written or not; None before the first."""
        return self._recorder.current.hash if self._recorder.current else None

    # Writing

    def update_experiment_hash(
        self,
        model_snapshot: Any = None,
        hp_snapshot: Any = None,
        dfm_snapshot: Any = None,
        force: bool = False,
        dump_immediately: bool = False,
    ) -> tuple[str, bool, set[str]]:
        """Say what the experiment is from now on; what is not given stays as it was.

        Returns the hash, whether it is another than before, and which of 'hp', 'model' and
        'data' changed; `force` counts all of it as changed. Nothing is written until training
        goes on or a dump is asked for.
        """
        updated = self._writing().update(hp_snapshot, model_snapshot, dfm_snapshot, force)
        if dump_immediately:
            self._recorder.dump()
        return updated

    def has_pending_changes(self) -> tuple[bool, set[str]]:
        """Whether something waits to be written, and which of 'hp', 'model' and 'data'."""
        pending = self._recorder.pending()
        return bool(pending), pending

    def dump_pending_changes(self, force: bool = False, *, step: int | None = None) -> bool:
        """Write what is pending, or with `force` all again; whether there was anything to write.

        A new experiment has a parent if it continues a checkpoint: one that was loaded before, or
        the last of the experiment before if that had the same model object. One whose `step`, that
        of the training, is not after that checkpoint begins anew.
        """
        recorder = self._writing()
        if recorder.current is None and not force:
            return False
        return recorder.dump(force, step) is not None

    def save_model_checkpoint(
        self,
        model: Any = None,
        step: int | None = None,
        save_optimizer: bool = True,
        metadata: Mapping[str, Any] | None = None,
        force_dump_pending: bool = False,
        *,
        optimizer: Any = None,
        metrics: Mapping[str, Any] | None = None,
        best: bool = False,
    ) -> Path:
        """Write what is pending and then a checkpoint; returns its `.pt` file once it is committed.

        The model and the optimizer are those given, else that of the experiment, else the watched
        ones. Without a step it is the one after the last that was saved or loaded. A step that is
        there already is replaced.
        """
        recorder = self._writing()
        known = [model, recorder.current and recorder.current.model, watched.model]
        model = next((each for each in known if each is not None), None)
        if model is None:
            raise NotOpen("there is no model to save: give one, or watch(model=…) it")
        optimizer = watched.optimizer if optimizer is None else optimizer
        checkpoint = recorder.save(
            model,
            step,
            optimizer=optimizer if save_optimizer else None,
            metadata=metadata,
            metrics=metrics,
            best=best,
            force_dump=force_dump_pending,
        )
        return self._path(names.whole_file(checkpoint.head.run, checkpoint.step))

    def save_model_architecture(self, model: Any = None) -> Path:
        """Pickle the model with dill; returns the path. To load it will take trust in the file."""
        run = self._dumped(model_snapshot=model)
        assert self._recorder.current is not None
        model = self._recorder.current.model if model is None else model
        if model is None:
            raise NotOpen("the experiment has no model: give one to save_model_architecture")
        pickle_architecture(self.store, run, model)
        return self._path(names.architecture_file(run, ".pkl"))

    def save_config(self, config: Any = None) -> Path:
        """Write the hyperparameters, those given or those of the experiment; returns the path."""
        return self._path(names.config_file(self._dumped(hp_snapshot=config)))

    def save_data_snapshot(self, dfm_snapshot: Any = None) -> Path:
        """Write the data state, the one given or that of the experiment; returns the path."""
        return self._path(names.data_state_file(self._dumped(dfm_snapshot=dfm_snapshot)))

    def _dumped(self, **given: Any) -> str:
        """The hash of the experiment with what was given, which is written then."""
        self.update_experiment_hash(**given)
        self._recorder.dump(force=True)  # settings that do not count may be others too
        assert self._recorder.run is not None
        return self._recorder.run.hash

    # Loading

    def load_checkpoint(
        self,
        exp_hash: str | None = None,
        load_model: bool = False,
        load_weights: bool = True,
        load_config: bool = True,
        load_data: bool = True,
        target_step: int | None = None,
        *,
        trust_architecture: bool = False,
    ) -> dict[str, Any]:
        """What is asked for of an experiment, and in `loaded_components` what of it there is.

        The weights are the content of the checkpoint closest to `target_step`, a tie going to the
        higher, or of the latest; None if there is no checkpoint yet and no step is asked for. What
        cannot be read is raised. `load_model` unpickles the model, which runs code: only with
        `trust_architecture=True`.
        """
        found = self._find(exp_hash)
        loaded: dict[str, Any] = dict.fromkeys(("model", "weights", "config", "data_state"))
        if load_model:
            path = self._experiments.architecture(found)
            loaded["model"] = load_architecture(path, trust_architecture)
        if load_config:
            loaded["config"] = self._experiments.config(found)
        if load_data:
            loaded["data_state"] = self._experiments.data_state(found)
        if load_weights:
            target_step = None if target_step is None else as_step(target_step, "target_step")
            if target_step is not None or self._experiments.has_checkpoint(found):
                loaded["weights"], checkpoint = self._experiments.load(found, target_step)
                self._recorder.loaded(checkpoint)
        self._recorder.use(found)
        components = {key.removesuffix("_state") for key in loaded if loaded[key] is not None}
        return {**loaded, "loaded_components": components, "exp_hash": found}

    def load_latest_checkpoint(
        self,
        model: Any = None,
        load_optimizer: bool = True,
        exp_hash: str | None = None,
        *,
        optimizer: Any = None,
    ) -> dict[str, Any]:
        """The content of the latest checkpoint, put into the model and the optimizer.

        They are those given, else the watched ones. Raises StateMismatch if they refuse it.
        """
        found = self._find(exp_hash)
        loaded = self._experiments.load(found)
        model = watched.model if model is None else model
        optimizer = watched.optimizer if optimizer is None else optimizer
        restore(loaded, model, optimizer if load_optimizer else None)
        self._recorder.loaded(loaded.checkpoint, model)
        self._recorder.use(found)
        content: dict[str, Any] = loaded.content
        return content

    def load_config(self, exp_hash: str | None = None) -> Any:
        """The hyperparameters of an experiment; None if it has none."""
        return self._experiments.config(self._find(exp_hash))

    # Asking

    def get_latest_hash(self) -> str | None:
        """The experiment of the latest checkpoint; None if there is none."""
        return self._experiments.latest()

    def get_all_hashes(self, sort_by: str = "created") -> list[dict[str, str]]:
        """All experiments, newest first, by when they were 'created' or 'last_used'."""
        if sort_by not in _ORDERS:
            raise BadOption(f"sort_by is 'created' or 'last_used', not {sort_by!r}")
        entries = self._experiments.entries()
        if sort_by == "created":
            entries.sort(key=lambda entry: entry.created, reverse=True)
        return [entry.as_dict() for entry in entries]

    def get_hashes_by_component(
        self,
        hp_hash: str | None = None,
        model_hash: str | None = None,
        data_hash: str | None = None,
    ) -> list[str]:
        """The experiments that have all of the given parts, the one used last first."""
        wanted = {"hp_hash": hp_hash, "model_hash": model_hash, "data_hash": data_hash}
        return [
            entry.hash
            for entry in self._experiments.entries()
            if all(part in (None, entry.as_dict()[key]) for key, part in wanted.items())
        ]

    def list_experiment_hashes(self) -> list[str]:
        """All experiments, in the order of their hashes."""
        return sorted(entry.hash for entry in self._experiments.entries())

    def get_checkpoint_info(self, exp_hash: str | None = None) -> dict[str, Any]:
        """What there is to say about an experiment and its checkpoints: steps, metrics, sizes."""
        return self._experiments.info(self._find(exp_hash))

    def get_last_step(self) -> int:
        """The step that was saved or loaded last, else the latest of the experiment, else 0."""
        return self._recorder.last_step()

    def close(self) -> None:
        """Let other processes write into the experiment; the next save takes it again."""
        self._recorder.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<checkpoint manager of {str(self.root_log_dir)!r}>"

    def check_writable(self) -> None:
        """Raise NotAStore if weightslab wrote the root, which is only read then."""
        if self._is_foreign:
            raise NotAStore(errno.EROFS, read_only(self.root_log_dir))

    def _writing(self) -> Recorder:
        self.check_writable()
        return self._recorder

    def _find(self, exp_hash: str | None) -> str:
        """The whole hash; without one that of the current experiment, else of the latest."""
        if exp_hash is not None:
            return self._experiments.find(exp_hash)
        if self.current_exp_hash is not None:
            return self._experiments.find(self.current_exp_hash)
        found = self._experiments.latest()
        if found is None:
            raise RefNotFound(f"{self.root_log_dir} has no experiment with a checkpoint yet")
        return found

    def _path(self, name: str) -> Path:
        return self.checkpoints_dir / name
