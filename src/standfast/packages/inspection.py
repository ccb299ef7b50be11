"""What can be said of a package at a glance: its weights are not read, only their headers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from standfast.errors import (
    BadField,
    DigestMismatch,
    MissingData,
    shortened,
)
from standfast.files.layout import Index
from standfast.formats.reader import Options
from standfast.formats.safetensors import file as safetensors
from standfast.packages.documents.json_text import named, read_object
from standfast.packages.documents.manifest import FileDigest, Manifest, ModelSummary, digest_of
from standfast.packages.documents.names import CONFIG, INDEX, MANIFEST, MODEL, TOKENIZER
from standfast.packages.model.architecture import plain_name
from standfast.packages.model.config import MODEL_TYPE
from standfast.packages.remote.places import Entries, Entry, File, Folder, opened
from standfast.packages.verify import check_size
from standfast.packages.weights.quantized_scheme import dequantized_specs
from standfast.packages.weights.weights import SCHEME, find_weights

SMALL: Final = 64 << 10
"""Bytes of the largest file that is read as a whole."""


def check_manifest(folder: Folder, entries: Entries, manifest: Manifest) -> None:
    """Raise a DamagedFile unless the files are those of the manifest, as far as a glance can tell.

    Files up to SMALL and the headers of the weights are compared by their digests, others by their
    sizes.
    """
    weights, places = _weights(folder, entries)
    manifest.check_names((CONFIG, TOKENIZER, *weights, *([INDEX] if places else [])))
    for name, expected in manifest.files.items():
        _check_file(name, entries.get(name), expected)


def summary_of(folder: Folder, entries: Entries) -> ModelSummary:
    """What the headers of the weights say, in a package without a manifest."""
    weights, places = _weights(folder, entries)
    kind = read_object(folder / CONFIG).get("model_type", MODEL_TYPE)
    if not isinstance(kind, str):
        raise BadField(f"{CONFIG}: model_type is {shortened(repr(kind))}: it must be a text")
    indices = {name: _index(folder / name) for name in weights}
    _check_places(indices, places)
    counts = Counter[str]()
    for index in indices.values():
        for name, dtype, shape in _tensors(index):
            if kind != MODEL_TYPE or plain_name(name) is not None:
                counts[dtype] += math.prod(shape)
    return ModelSummary(
        type=kind,
        parameters=counts.total(),
        nbytes=sum(int(index.sizes.sum()) for index in indices.values()),
        dtype=max(counts, key=lambda dtype: counts[dtype], default=""),
        quantization="int8" if any(map(_scheme, indices.values())) else None,
    )


def _weights(folder: Folder, entries: Entries) -> tuple[list[str], dict[str, str] | None]:
    """The files of the weights, and the index if there is one; raises MissingData.

    It is raised for any file without which there is no model.
    """
    for name in (CONFIG, TOKENIZER):
        if name not in entries:
            raise MissingData(f"{name} is missing")
    if MODEL in entries:
        return [MODEL], None
    paths, places = find_weights(folder)
    return [path.name for path in paths], places


def _index(path: File) -> Index:
    with closing(opened(path)) as file:
        return named(path, lambda: safetensors.read_index(file.read, file.size, Options()))


def _scheme(index: Index) -> Any:
    """How the tensors of a file were quantized; None if they were not."""
    return index.metadata.get(SCHEME)


def _tensors(index: Index) -> Iterable[tuple[str, str, Sequence[int]]]:
    """The names, dtypes and shapes of the tensors, as they were before they were quantized."""
    if _scheme(index) is None:
        return zip(index.rows, index.dtypes, index.shapes, strict=True)
    specs = {name: index.spec(row) for name, row in index.rows.items()}
    before = dequantized_specs(specs, _scheme(index))
    return [(name, spec.dtype, spec.shape) for name, spec in before.items()]


def _check_places(indices: Mapping[str, Index], places: Mapping[str, str] | None) -> None:
    for tensor, shard in (places or {}).items():
        if tensor not in indices[shard].rows:
            raise MissingData(
                f"{shard} lacks the tensor {shortened(tensor)!r}, which {INDEX} names"
            )


def _check_file(name: str, entry: Entry | None, expected: FileDigest) -> None:
    if entry is None:
        raise MissingData(f"{name} is missing, which {MANIFEST} names")
    try:
        size = entry.stat().st_size
    except FileNotFoundError:
        raise MissingData(f"{name} is a link to a file that is missing") from None
    check_size(name, size, expected)
    if (expected.of_header or size <= SMALL) and digest_of(entry.path) != expected:
        what = "its header is" if expected.of_header else "its bytes are"
        raise DigestMismatch(f"{name} is damaged: {what} not what was saved", ())
