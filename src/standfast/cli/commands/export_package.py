"""`standfast export --package`: a checkpoint as a folder that holds a whole model."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.display.output import count_text, print_json, say, size_text
from standfast.errors import AlreadyExists

if TYPE_CHECKING:
    from standfast.packages.documents.manifest import Manifest
    from standfast.packages.remote.places import Folder
    from standfast.store import Checkpoint


def export_package(
    checkpoint: Checkpoint,
    target: str | Path,
    *,
    part: str | None = None,
    config: str | Path | None = None,
    tokenizer: str | Path | None = None,
    max_shard_size: str | None = None,
    quantize: str | None = None,
    replace: bool = False,
    as_json: bool = False,
) -> None:
    """Write the package and print what it is."""
    from standfast.packages.remote.places import folder_at
    from standfast.packages.store import export
    from standfast.packages.writer import MAX_SHARD_SIZE

    folder = folder_at(target)
    if not replace and _is_taken(folder):
        raise AlreadyExists(errno.EEXIST, f"{folder} is there already: --yes replaces it")
    manifest = export(
        checkpoint,
        folder,
        part=_part_of(checkpoint) if part is None else part,
        config=config,
        tokenizer=tokenizer,
        max_shard_size=max_shard_size or MAX_SHARD_SIZE,
        quantize=quantize,
    )
    error = _measured_error(folder) if quantize else None
    if as_json:
        _print_json(checkpoint, folder, manifest, error)
    else:
        _print(checkpoint, folder, manifest, error)


def _is_taken(folder: Folder) -> bool:
    return os.path.lexists(folder) if isinstance(folder, Path) else bool(folder.files)


def _part_of(checkpoint: Checkpoint) -> str | None:
    """The part of the weights; None if no tensor of the state is in a part."""
    is_flat = all(part.key is None for part in checkpoint.head.parts)
    return None if is_flat else "model"


def _measured_error(folder: Folder) -> dict[str, Any]:
    """What the package itself says about its quantization."""
    from standfast.packages.documents import json_text
    from standfast.packages.documents.names import GENERATION_INFO

    measured: dict[str, Any] = json_text.read_object(folder / GENERATION_INFO)["quantization"]
    return measured


def _print(
    checkpoint: Checkpoint, folder: Folder, manifest: Manifest, error: dict[str, Any] | None
) -> None:
    model = manifest.model
    say(
        ("exported    ", "green"),
        f"{folder}: {checkpoint.ref}, {count_text(model.parameters, 'parameter')}, "
        f"{size_text(model.nbytes)}, each byte verified when it was read",
    )
    if error:
        say(
            ("quantized   ", "green"),
            f"{model.quantization}: {size_text(error['nbytes_after'])} for "
            f"{size_text(error['nbytes_before'])}; the largest error is "
            f"{error['largest_error']:.3g}, relative to the weights {error['relative_error']:.3g}",
        )
    for name, file in sorted(manifest.files.items()):
        say(f"            {folder / name}  {size_text(file.size)}")


def _print_json(
    checkpoint: Checkpoint, folder: Folder, manifest: Manifest, error: dict[str, Any] | None
) -> None:
    model = manifest.model
    print_json(
        {
            "ref": checkpoint.ref,
            "folder": str(folder),
            "parameters": model.parameters,
            "bytes": model.nbytes,
            "dtype": model.dtype,
            "quantization": error,
            "files": {name: file.size for name, file in sorted(manifest.files.items())},
        }
    )
