"""The headers of data files: records do not need them, other programs do."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import closing, contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final

from standfast.errors import (
    DamagedFile,
    FileError,
    IndexMismatch,
    MissingFile,
    StandfastError,
    TooNew,
    UnsupportedFile,
)
from standfast.files.digests import DIGEST
from standfast.files.input.ranges import SourceRanges
from standfast.formats.seal import KEY
from standfast.formats.torch import file as torch
from standfast.store.backends.backend import Backend
from standfast.store.schema import names
from standfast.store.schema.record import DataFile
from standfast.store.v3.torch_names import SUFFIX
from standfast.tensorfile.open import TensorFile

_SEAL_AT: Final = 8 + len(b'{"__metadata__":{"%b":"' % KEY.encode())


def seal_in(header: bytes) -> str:
    """The digest that a data file has of itself, out of its header."""
    return header[_SEAL_AT : _SEAL_AT + 2 * DIGEST].decode("ascii", "replace")


@contextmanager
def written_by_us(path: str) -> Iterator[None]:
    """Raise a DamagedFile for all that is wrong with a data file, whatever its reader calls it.

    A flipped bit can make a torch file look encrypted, or like one that runs code. Standfast
    writes neither.
    """
    try:
        yield
    except FileError:
        raise
    except (DamagedFile, TooNew) as error:
        if path not in str(error):
            error.args = (f"{path}: {error}", *error.args[1:])
        raise
    except StandfastError as error:
        raise IndexMismatch(f"{path}: it is not the file that was written ({error})") from error


def check_header(backend: Backend, run: str, file: DataFile) -> None:
    """Check that a data file is sound for other programs too, and the one that was written.

    Raises MissingFile, or a DamagedFile that says what is wrong.
    """
    path = f"{names.run_folder(run)}/{file.name}"
    if not file.digest:
        raise UnsupportedFile(
            f"{path}: another program wrote it and stored no digest, so that it cannot be verified"
        )
    with written_by_us(path):
        if file.name.endswith(SUFFIX):
            with closing(backend.open(path)) as opened:
                seal = torch.check(opened.read, opened.size)
        else:
            seal = seal_in(backend.read(path, _SEAL_AT + 2 * DIGEST))
            with TensorFile(_readable(backend, path), mapped=False):
                pass
    size = backend.size(path)
    if size is None:
        raise MissingFile(errno.ENOENT, f"{path} was deleted this moment")
    if seal != file.digest or size != file.size:
        raise IndexMismatch(f"{path}: it is another file than the record speaks of")


def _readable(backend: Backend, path: str) -> Path | SourceRanges | BytesIO:
    """A data file, of which no more is read than its header."""
    local = backend.path(path)
    if local is not None:
        return local
    opened = backend.open(path)
    return opened if isinstance(opened, SourceRanges) else BytesIO(backend.read(path))
