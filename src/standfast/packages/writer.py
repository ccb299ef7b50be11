"""What goes into a package, and how it is written: aside first, then into its place at once."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from standfast.errors import AlreadyExists, BadOption, StandfastError, StateMismatch
from standfast.files import disk
from standfast.files.atomic import as_write_failed
from standfast.files.folder_swap.swap import make_folders, replacing_folder
from standfast.files.lines import replace_bytes
from standfast.formats.metadata import from_json
from standfast.packages.documents import json_text
from standfast.packages.documents.manifest import Manifest, ModelSummary, digest_of, provenance
from standfast.packages.documents.names import (
    CONFIG,
    DATASET,
    DATASET_TEXT,
    GENERATION_INFO,
    INDEX,
    MANIFEST,
    MODEL,
    OWN_FILES,
    QUANTIZED,
    TOKENIZER,
    TOKENIZER_CONFIG,
    has_weights,
    is_shard,
    shard,
)
from standfast.packages.documents.records import DatasetInfo, GenerationInfo
from standfast.packages.documents.tokenizer import (
    check_vocabulary,
    generation_files,
    is_of_transformers,
    tokenizer_config,
    tokenizer_files,
    tokenizer_text,
)
from standfast.packages.model.config import MODEL_TYPE, Config, check_shapes, plain_names
from standfast.packages.model.contents import (
    as_config,
    check_agreement,
    config_of,
    is_gpt,
    tensors_of,
    write_tensors,
)
from standfast.packages.remote.folder import SAVES, Pointer, RemoteFolder, forget
from standfast.packages.remote.places import Folder, folder_aside, folder_at
from standfast.packages.weights import quantized
from standfast.packages.weights.weights import index_text, shard_size, split
from standfast.tensorfile.open import TensorFile
from standfast.tensors import Source

_OTHERS: Final = frozenset({"adapter_config.json", "merges.txt", "vocab.json"})
"""What Transformers would read with the new model, beside the files that we write as well."""


def own_files(folder: Folder) -> list[str]:
    """The files of the package in a folder: those that its manifest names, and last that itself.

    Where there is no sound manifest, none is ours, whatever the names are.
    """
    try:
        if isinstance(folder, RemoteFolder) and (pointer := folder.pointer()) is not None:
            return [*sorted(pointer.replaced), MANIFEST]
        manifest = Manifest.read(folder)
    except StandfastError:
        manifest = None
    return [] if manifest is None else [*sorted(manifest.files), MANIFEST]


def is_part(name: str) -> bool:
    """Whether a file of this name would be taken for a part of any package that it lies in."""
    return name in OWN_FILES or name in _OTHERS or is_shard(name)


MAX_SHARD_SIZE: Final = "5GB"
"""How large a file of weights grows before another one is begun."""
_SCHEMES: Final = ("int8",)


@dataclass(frozen=True)
class Contents:
    """All that a package consists of."""

    tensors: Mapping[str, Source]
    """The weights, under the names that the file will have for them."""
    config: Mapping[str, Any]
    """What `config.json` says."""
    files: Mapping[str, bytes]
    """All other files, by their names."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """What is known of the origin, besides the libraries and the program of this moment."""

    def __post_init__(self) -> None:
        """Raise StateMismatch for the weights of a GPT that no reader could build of this."""
        if not self.tensors:
            raise StateMismatch("there are no weights to save")
        if is_gpt(self.config):
            config = Config.of_dict(self.config)
            names = plain_names(self.tensors)
            specs = {plain: self.tensors[name].spec for plain, name in names.items()}
            check_shapes(specs, config)


def contents_of(
    model: Any,
    tokenizer: Any,
    config: Any = None,
    *,
    dataset: DatasetInfo | None = None,
    generation_info: GenerationInfo | None = None,
) -> Contents:
    """What a package of this model consists of; without a configuration, that of the model."""
    given = as_config(config) or config_of(model)
    if given is None:
        raise BadOption(
            f"a {type(model).__name__} does not say what it is: give a Config, or what its "
            "config.json says"
        )
    checked = _checked(given)
    check_agreement(config_of(model), checked)
    return Contents(
        tensors_of(model, checked),
        checked,
        {**files_of(tokenizer, checked, dataset, generation_info), **generation_files(model)},
    )


def files_of(
    tokenizer: Any,
    config: Mapping[str, Any],
    dataset: DatasetInfo | None = None,
    generation_info: GenerationInfo | None = None,
) -> dict[str, bytes]:
    """The small files of a package."""
    if is_of_transformers(tokenizer):
        files = tokenizer_files(tokenizer)
    else:
        text = tokenizer_text(tokenizer)
        files = {TOKENIZER: text, TOKENIZER_CONFIG: _json(tokenizer_config(config, text))}
    if is_gpt(config):
        check_vocabulary(files[TOKENIZER], Config.of_dict(config).vocab_size)
    for name, value, kind in (
        ("dataset", dataset, DatasetInfo),
        ("generation_info", generation_info, GenerationInfo),
    ):
        if value is not None and not isinstance(value, kind):
            raise BadOption(f"{name} is a {type(value).__name__}: give a {kind.__name__}")
    if dataset is not None:
        files[DATASET] = _json(dataset.as_dict(), DATASET)
        files[DATASET_TEXT] = dataset.text().encode()
    if generation_info is not None:
        files[GENERATION_INFO] = _json(generation_info.as_dict(), GENERATION_INFO)
    return files


def write_package(
    contents: Contents,
    folder: str | os.PathLike[str],
    *,
    max_shard_size: int | float | str = MAX_SHARD_SIZE,
    quantize: str | None = None,
) -> Manifest:
    """Write a package durably; a folder that is there is exchanged for it in one step."""
    if quantize is not None and quantize not in _SCHEMES:
        raise BadOption(f"quantize is {quantize!r}: expected one of {', '.join(_SCHEMES)}, or None")
    largest = shard_size(max_shard_size)
    config = _checked(contents.config)
    tensors = contents.tensors
    files = {**contents.files, CONFIG: _json(config, CONFIG)}
    home = folder_at(folder)

    def in_the_way(name: str) -> bool:
        return is_part(name) or name in files

    with _replacing(home, in_the_way) as aside:
        if quantize is None:
            _write_weights(aside, tensors, config, largest)
        else:
            report = _write_quantized(aside, tensors, config)
            files[GENERATION_INFO] = _with_report(files.get(GENERATION_INFO), report)
        for name, text in files.items():
            replace_bytes(aside / name, text, disk.LOCAL)
        manifest = Manifest(
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            files={path.name: digest_of(path) for path in sorted(aside.iterdir())},
            model=_summary(aside, tensors, config, quantize),
            provenance={**provenance(), **contents.provenance},
        )
        manifest.write(aside)
    return manifest


@contextmanager
def _replacing(home: Folder, in_the_way: Callable[[str], bool]) -> Iterator[Path]:
    """Give a folder to write a package into; on leaving, put it into its place."""
    if isinstance(home, RemoteFolder):
        with uploading(home, in_the_way) as aside:
            yield aside
        return
    with as_write_failed(home):
        make_folders(Path(os.path.abspath(home)).parent, disk.LOCAL)
    with replacing_folder(home, disk.LOCAL, own_files, in_the_way) as aside:
        yield aside


def _write_weights(
    aside: Path, tensors: Mapping[str, Source], config: Mapping[str, Any], largest: int
) -> None:
    specs = {name: source.spec for name, source in tensors.items()}
    shards = split(specs, largest)
    if len(shards) == 1:
        write_tensors(aside / MODEL, tensors, {"config": config})
        return
    for number, names in enumerate(shards, 1):
        written = {name: tensors[name] for name in names}
        write_tensors(aside / shard(number, len(shards)), written, {})
    replace_bytes(aside / INDEX, index_text(shards, specs), disk.LOCAL)


def _write_quantized(
    aside: Path, tensors: Mapping[str, Source], config: Mapping[str, Any]
) -> dict[str, Any]:
    """Write the weights quantized; returns how far they are from what was given."""
    smaller, scheme = quantized.quantized(tensors)
    write_tensors(aside / QUANTIZED, smaller, {"config": config, "quantization": scheme})
    return quantized.measure(tensors, smaller).as_dict()


def _with_report(text: bytes | None, report: dict[str, Any]) -> bytes:
    """The `generation_info.json` with the error that quantizing made."""
    if text is None:
        info = GenerationInfo()
    else:
        info = GenerationInfo.of_dict(from_json(text, GENERATION_INFO))
    return _json(replace(info, quantization=report).as_dict())


def _summary(
    aside: Path, tensors: Mapping[str, Source], config: Mapping[str, Any], quantize: str | None
) -> ModelSummary:
    specs = [source.spec for source in tensors.values()]
    sizes = Counter[str]()
    for spec in specs:
        sizes[spec.dtype] += spec.nbytes
    nbytes = sum(sizes.values())
    if quantize is not None:
        with TensorFile(aside / QUANTIZED) as file:
            nbytes = sum(file.spec(name).nbytes for name in file)
    return ModelSummary(
        type=str(config.get("model_type", MODEL_TYPE)),
        parameters=sum(spec.size for spec in specs),
        nbytes=nbytes,
        dtype=sizes.most_common(1)[0][0],
        quantization=quantize,
    )


def _checked(config: Mapping[str, Any]) -> dict[str, Any]:
    """What `config.json` will say; raises for a GPT that could not be built."""
    if not is_gpt(config):
        return dict(config)
    return Config.of_dict(config).as_dict()


def _json(value: Mapping[str, Any], name: str = "") -> bytes:
    """A JSON file; if it cannot be one, the error names it."""
    return json_text.encoded(value, name) + b"\n"


@contextmanager
def uploading(package: RemoteFolder, in_the_way: Callable[[str], bool]) -> Iterator[Path]:
    """Give a folder to write a package into; on leaving, upload it.

    It is uploaded into a folder of its own. Then a manifest that names this folder replaces the one
    before: this is the commit. Then all that the old one named is deleted, and what killed saves
    left. After the commit no process can replace the manifest that it had read before: the
    condition of its put does not hold. So every folder from before is of a save that is over.

    Of what is there, the files of the old package go and all others stay. Raises AlreadyExists
    before a byte is written for a file that is not ours and is `in_the_way`.
    """
    home = package.as_it_lies()
    home.check_conditions()
    home.look_again()
    old = own_files(home)
    for name in sorted(home.files):
        if name not in old and in_the_way(name):
            raise AlreadyExists(
                errno.EEXIST,
                f"{home / name} is there already, and of no package that was saved there: save to "
                "a new place",
            )
    if not old and home.folders:
        raise AlreadyExists(
            errno.EEXIST,
            f"{home} is a folder with others in it: a package there would hide them; save to a "
            "new place, such as one in it",
        )
    with folder_aside() as aside:
        yield aside
        _upload(home, aside, old)


def _upload(home: RemoteFolder, aside: Path, old: list[str]) -> None:
    names = sorted(path.name for path in aside.iterdir())
    names.sort(key=lambda name: not has_weights([name]))
    # Names out of a file become keys only if they are those of objects in the folder.
    replaced = sorted((home.files.keys() & set(old)) - {MANIFEST})
    folder, before = os.urandom(8).hex(), home.files.get(MANIFEST)
    uploaded = [f"{SAVES}/{folder}/{name}" for name in names]
    try:
        for name, target in zip(names, uploaded, strict=True):
            home.upload(target, aside / name)
        over = [*replaced, *(name for name in home.below(SAVES) if name not in uploaded)]
    except BaseException:
        forget(home, uploaded)
        raise
    text = Pointer(folder, tuple(replaced)).text()
    try:
        home.put(MANIFEST, text, create=before is None, match=before and before.tag)
    except AlreadyExists as error:
        forget(home, uploaded)
        raise AlreadyExists(
            errno.EEXIST,
            f"{home}: another program has saved there since: save to another place, or again",
        ) from error
    # The package is saved. What cannot be deleted now, the next save deletes.
    forget(home, over)
