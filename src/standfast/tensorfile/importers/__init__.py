"""Read a folder of checkpoints that torch, Transformers or Lightning wrote, whatever its layout."""

from __future__ import annotations

import os

from standfast.errors import UnknownFormat
from standfast.tensorfile.importers.contents import Folder as Folder
from standfast.tensorfile.importers.contents import Found as Found
from standfast.tensorfile.importers.contents import entries, shown
from standfast.tensorfile.importers.lightning import read_lightning
from standfast.tensorfile.importers.torch import read_torch
from standfast.tensorfile.importers.transformers import read_transformers
from standfast.tensorfile.importers.weightslab import Root as Root
from standfast.tensorfile.importers.weightslab import read_root as read_root
from standfast.tensorfile.importers.weightslab_experiment import Experiment as Experiment


def read_folder(path: str | os.PathLike[str], tensors_only: bool = True) -> Folder:
    """The checkpoints in a folder, by their steps; their tensors are read when asked for.

    Nothing in the files is ever run. Objects of other programs are left out and listed;
    `tensors_only=False` refuses files that hold any. Raises MissingFile if there is no folder,
    UnknownFormat if nothing in it looks like a checkpoint, UnsupportedFile if two files claim
    the same step, and the DamagedFile of the reader for a file that is not what was written.

    >>> for found in read_folder("runs/bert").found:
    ...     print(found.step, found.metrics, list(found.state()))
    """
    here = entries(path)
    ignored = []
    for read in (read_transformers, read_lightning, read_torch):
        folder = read(here, tensors_only)
        if folder.found:
            return folder
        ignored += folder.ignored
    reasons = "".join(f"; {shown(each.name)}: {reason}" for each, reason in ignored[:1])
    raise UnknownFormat(
        f"nothing in {shown(here.path)} looks like a checkpoint: expected folders checkpoint-N of "
        "Transformers, .ckpt files of Lightning, or files with one of the suffixes .pt .pth "
        f".safetensors .npz .tenzor .oxck (for .sunc: amr.Snapshot.import_files){reasons}"
    )
