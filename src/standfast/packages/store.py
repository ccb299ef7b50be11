"""Packages in a store: saved as a checkpoint of a run, exported from any checkpoint with weights.

What an earlier step holds of a package is not written again."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from standfast.errors import BadField, BadOption, RefNotFound, UnsupportedFile, shortened
from standfast.files.digests import CHUNK
from standfast.files.forms import LoadedSource
from standfast.packages.documents import json_text, names
from standfast.packages.documents.manifest import FORMAT, Manifest
from standfast.packages.model.contents import as_config, config_of, tensors_of
from standfast.packages.model.files import save_model_folder
from standfast.packages.writer import MAX_SHARD_SIZE, Contents, contents_of, files_of, write_package
from standfast.store import Checkpoint, Run, Store
from standfast.store.query.view import CheckpointView, run_of
from standfast.store.schema.names import MODELS, record_file
from standfast.store.schema.record import END
from standfast.store.tree import tree
from standfast.store.tree.tree import Ref
from standfast.tensors import ArraySource, Source, TensorSpec
from standfast.tensors.frameworks import unwrapped
from standfast.tensors.sources import Bytes

MODEL: Final = "model"
"""The part of the state that has the weights."""
PACKAGE: Final = "package"
"""The part that has all else."""
_FILES: Final = names.OWN_FILES - {
    names.MODEL,
    names.INDEX,
    names.QUANTIZED,
    names.CONFIG,
    names.MANIFEST,
}
"""The files of a package that are kept as they are; the others are made when it is exported."""


def save_to_store(
    run: Run,
    step: int,
    model: Any,
    tokenizer: Any,
    config: Any = None,
    *,
    dataset: Any = None,
    generation_info: Any = None,
    metrics: Mapping[str, Any] | None = None,
    epoch: int | None = None,
    best: bool = False,
    replace: bool = False,
) -> Checkpoint:
    """Commit a package as the checkpoint of a step, as `run.save` does.

    Weights and files that the store holds already are referred to, not written again.

    >>> save_to_store(run, 300, model, tokenizer, config, metrics={"loss": 2.5}, best=True)
    >>> standfast.packages.export(run.checkpoint("best"), "models/gpt")
    """
    contents = contents_of(
        model, tokenizer, config, dataset=dataset, generation_info=generation_info
    )
    weights = model if isinstance(model, Mapping) else unwrapped(model).state_dict()
    state = {
        MODEL: dict(weights),
        PACKAGE: {
            "format": FORMAT,
            "config": json.loads(json_text.text(contents.config)),
            "files": {name: np.frombuffer(text, np.uint8) for name, text in contents.files.items()},
        },
    }
    return run.save(step, state, metrics, epoch=epoch, best=best, replace=replace)


@dataclass(frozen=True)
class StoredPackage:
    """What a checkpoint of a package has besides the weights."""

    config: Mapping[str, Any]
    files: Mapping[str, bytes]


def stored_package(checkpoint: Checkpoint) -> StoredPackage | None:
    """What `save_to_store` put beside the weights; None if it is another kind of checkpoint."""
    record = checkpoint.record
    state = tree.decode(record.tree, len(record.names))
    package = state.get(PACKAGE) if isinstance(state, dict) else None
    if not isinstance(package, dict) or not _is_ours(package.get("format"), checkpoint):
        return None
    config, files = package.get("config"), package.get("files")
    if not isinstance(config, dict) or not isinstance(files, dict):
        raise BadField(f"{checkpoint.ref}: package should have a config and files")
    for name, value in files.items():
        if name not in _FILES or not isinstance(value, Ref):
            raise BadField(
                f"{checkpoint.ref}: package.files has {shortened(repr(name))}, which is no file "
                "of a package"
            )
    return StoredPackage(config, _read_files(checkpoint, files))


def _is_ours(format: Any, checkpoint: Checkpoint) -> bool:
    if format == FORMAT:
        return True
    if isinstance(format, str) and format.startswith(FORMAT.rstrip("1")):
        raise UnsupportedFile(
            f"{checkpoint.ref}: it is a {shortened(format)!r}, and this release reads {FORMAT!r}: "
            "install a newer Standfast"
        )
    return False


def _read_files(checkpoint: Checkpoint, files: Mapping[str, Ref]) -> dict[str, bytes]:
    specs, content = checkpoint.record.specs, {}
    with checkpoint.data(tensors=[ref.tensor for ref in files.values()]) as data:
        for name, ref in files.items():
            if specs[ref.tensor].dtype != "uint8":
                raise BadField(f"{checkpoint.ref}: package.files.{name} should be bytes")
            content[name] = data.array(ref.tensor).tobytes()
    return content


@dataclass(frozen=True)
class _Given:
    """What the caller says of a package; it goes before what the checkpoint says."""

    config: dict[str, Any] | None
    tokenizer: Any
    dataset: Any
    generation_info: Any


def export(
    ref_or_model: Any,
    folder: str | os.PathLike[str],
    *,
    store: Store | str | os.PathLike[str] | None = None,
    part: str | None = MODEL,
    config: Any = None,
    tokenizer: Any = None,
    dataset: Any = None,
    generation_info: Any = None,
    max_shard_size: int | float | str = MAX_SHARD_SIZE,
    quantize: str | None = None,
) -> Manifest:
    """Write a checkpoint of a store, or a model, as a package; returns its manifest.

    A checkpoint is given as such, or by what refers to it in `store`: `gpt@best`, `latest`, a
    tag. `part` is the one that has the weights, None if they are the state. `config` and
    `tokenizer`, which may be paths of files, say what the checkpoint does not. The weights are
    verified as they are read, and take little memory, whatever their size.

    >>> export("gpt@best", "models/gpt", store="experiments")
    >>> export(checkpoint, "models/gpt", config=config, tokenizer="tokenizer.json")
    """
    given = _Given(as_config(config), tokenizer, dataset, generation_info)
    if hasattr(ref_or_model, "state_dict") or isinstance(ref_or_model, Mapping):
        return save_model_folder(
            ref_or_model,
            _required(tokenizer, "the model comes without a tokenizer", "tokenizer"),
            _required(given.config or config_of(ref_or_model), "the model has none", "config"),
            folder,
            dataset,
            generation_info,
            max_shard_size=max_shard_size,
            quantize=quantize,
        )
    checkpoint = _checkpoint(ref_or_model, store)
    package = stored_package(checkpoint) or StoredPackage({}, {})
    says = given.config or dict(package.config) or None
    config = _required(says, f"{checkpoint.ref} does not say what its model is", "config")
    files = _files(checkpoint, config, package, given)
    with stored_weights(checkpoint, part) as sources:
        contents = Contents(
            tensors_of(sources, config), config, files, {"checkpoint": origin_of(checkpoint)}
        )
        return write_package(contents, folder, max_shard_size=max_shard_size, quantize=quantize)


def _checkpoint(ref: Any, store: Store | str | os.PathLike[str] | None) -> Checkpoint:
    if isinstance(ref, Checkpoint):
        return ref
    if not isinstance(ref, str):
        raise BadOption(
            f"a {type(ref).__name__} cannot be exported: give a checkpoint, what refers to one, "
            "or a model"
        )
    if store is None:
        raise BadOption(f"{ref!r} refers to a checkpoint of which store? Give store= its folder")
    return (store if isinstance(store, Store) else Store(store)).resolve(ref)


def _files(
    checkpoint: Checkpoint, config: dict[str, Any], package: StoredPackage, given: _Given
) -> dict[str, bytes]:
    """The files that are given, and of those that are not, what the checkpoint has."""
    kept = dict(package.files)
    for value, replaced in (
        (given.tokenizer, names.TOKENIZER_FILES),
        (given.dataset, (names.DATASET, names.DATASET_TEXT)),
        (given.generation_info, (names.GENERATION_INFO,)),
    ):
        if value is not None:
            kept = {name: text for name, text in kept.items() if name not in replaced}
    tokenizer = _required(
        kept.get(names.TOKENIZER, given.tokenizer),
        f"{checkpoint.ref} has no tokenizer",
        "tokenizer",
    )
    return {**files_of(tokenizer, config, given.dataset, given.generation_info), **kept}


def _required(value: Any, problem: str, argument: str) -> Any:
    if value is None:
        raise BadOption(f"{problem}, and a package has one: give {argument}=")
    return value


@contextmanager
def stored_weights(checkpoint: Checkpoint, part: str | None) -> Iterator[dict[str, Source]]:
    """The tensors of one part of a checkpoint, to be read within the `with`.

    `part=None` is for a state that is the weights themselves. A damaged tensor raises when it is
    read.
    """
    view = _view(checkpoint, part)
    held = threading.local()
    with view.reading(view):
        yield {name: _source(view, name, held) for name in view}


def _source(view: CheckpointView, name: str, held: threading.local) -> Source:
    spec, chunk = view.spec(name), view.chunks(name)
    if chunk is not None:
        return _ChunkedSource(spec, chunk, held)
    # A view of another tensor, such as a transposed one.
    return LoadedSource(spec, lambda: ArraySource(view[name], spec), held)


class _ChunkedSource:
    """A tensor whose chunks are read, each of them verified, when a thread comes to them."""

    sequential = True

    def __init__(
        self, spec: TensorSpec, chunk: Callable[[int], Bytes], held: threading.local
    ) -> None:
        self.spec = spec
        self._chunk = chunk
        self._held = held
        """The chunk that each thread is at: what is not mapped is read once for all of it."""

    def contiguous(self) -> Bytes | None:
        """They are not all there at once."""
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`."""
        done = 0
        while done < out.size:
            number, at = divmod(start + done, CHUNK)
            piece = self._read(number)[at : at + out.size - done]
            np.copyto(out[done : done + piece.size], piece)
            done += piece.size

    def _read(self, number: int) -> Bytes:
        if getattr(self._held, "place", None) != (self, number):
            self._held.place = self._held.chunk = None  # before the next one takes its memory
            self._held.chunk = self._chunk(number)
            self._held.place = self, number
        chunk: Bytes = self._held.chunk
        return chunk


def _view(checkpoint: Checkpoint, part: str | None) -> CheckpointView:
    try:
        return CheckpointView(checkpoint, part)
    except RefNotFound as error:
        is_flat = all(each.key is None for each in checkpoint.head.parts)
        advice = "part=None takes the state itself" if is_flat else "part= names the weights"
        raise RefNotFound(f"{error}: {advice}") from error


def origin_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """The checkpoint as JSON; metrics have the form of a record's, which has NaN too."""
    head = checkpoint.head
    origin = {
        "run": head.run,
        "step": head.step,
        "epoch": head.epoch,
        "sequence": head.sequence,
        "time": head.time,
        "metrics": tree.flatten(checkpoint.metrics)[0],
    }
    run = run_of(checkpoint)
    if run is not None:
        origin["name"] = run.name
        origin["store"] = _place(run.store)
        origin["record"] = _record_digest(run.store, checkpoint)
    return origin


def _place(store: Store) -> str:
    models = store.backend.path(MODELS)
    return str(Path(models).resolve().parent.parent) if models else store.place or store.url


def _record_digest(store: Store, checkpoint: Checkpoint) -> str:
    """BLAKE3 over the record, with which it ends."""
    text = store.backend.read(record_file(checkpoint.head.run, checkpoint.step))
    return text.rpartition(END)[2][:64].decode("ascii", "replace")
