"""The headers of data files: records do not need them, other programs do."""

from __future__ import annotations

from io import BytesIO
from typing import Final

from holdfast.errors import IndexMismatch
from holdfast.files.digests import DIGEST
from holdfast.formats.seal import KEY
from holdfast.store import names
from holdfast.store.backend import Backend
from holdfast.store.record import DataFile
from holdfast.verbs.open import TensorFile

_SEAL_AT: Final = 8 + len(b'{"__metadata__":{"%b":"' % KEY.encode())


def seal_in(header: bytes) -> str:
    """The digest that a data file has of itself, out of its header."""
    return header[_SEAL_AT : _SEAL_AT + 2 * DIGEST].decode("ascii", "replace")


def check_header(backend: Backend, run: str, file: DataFile) -> None:
    """Check that a data file is a whole safetensors file, and the one that was written.

    Raises MissingFile, or a DamagedFile that says what is wrong.
    """
    path = f"{names.run_folder(run)}/{file.name}"
    head = backend.read(path, _SEAL_AT + 2 * DIGEST)
    with TensorFile(backend.path(path) or BytesIO(backend.read(path)), mapped=False):
        pass
    if seal_in(head) != file.digest or backend.size(path) != file.size:
        raise IndexMismatch(f"{path}: it is another file than the record speaks of")
