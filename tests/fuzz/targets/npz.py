"""The npz format as a target, beside NumPy."""

import io
import re
import warnings
from typing import Any

import numpy as np

from standfast.errors import StandfastError
from standfast.files.layout import Index
from standfast.formats.npz import file as own_format
from standfast.formats.reader import Options
from tests.formats.builders import with_digest
from tests.fuzz.mutations import JSON_TOKENS, WHOLE, entry_part, fields, words
from tests.fuzz.properties import expected_array
from tests.fuzz.target import Outcome, Target, require

Array = np.ndarray[Any, Any]

STRICTER = (
    "BadArchive BadField BadHeader BadRange DuplicateKey IndexMismatch LimitExceeded "
    "SizeMismatch TooNew TrailingBytes TruncatedFile UnknownDType UnsupportedFile"
).split()
"""How we may refuse what NumPy opens.

It takes any archive that `zipfile` can make sense of, entries that are no arrays, headers with
anything that Python's literals allow, text and records for dtypes, and arrays that are followed
by more bytes; and it knows nothing of our entry and its seal.
"""

LOOSER = {
    r"contains pickled": "an empty archive that starts with a wide end record",
    r"Bad CRC-32": "checked when an array is taken, and not at all with verify=False",
    r"Header info length .* is large": "NumPy reads 10,000 letters of a header, we 65,536",
    r"maximum supported dimension|array is too big|Maximum allowed": "empty, with huge dimensions",
    r"Unable to allocate|MemoryError|Error -3|incomplete|Truncated|EOF|cannot reshape|"
    r"Failed to read all data": "compressed, and broken behind its header, which we find later",
    r"could not be encoded|No such file|no item named": "a name that zipfile changes",
    r"strings of length|File name in directory": "a name that zipfile reads another way",
}
"""Why NumPy may refuse what we open, by its message."""


def reseal(file: bytes) -> bytes:
    """The file with a seal that matches it again, if it has one."""
    return resealed_archive(file, own_format)


def resealed_archive(file: bytes, format: Any) -> bytes:
    """An archive with a seal that matches it again, if it ends in one."""
    if not re.search(rb"standfast\.digest:[0-9a-f]{64}\Z", file):
        return file
    try:
        options = Options(verify=False, tensors_only=True)
        index = format.read_index(lambda at, length: file[at : at + length], len(file), options)
    except StandfastError:
        return file
    others, at = b"", 0
    for start, size in sorted(zip(index.starts.tolist(), index.sizes.tolist(), strict=True)):
        if size:
            others += file[at:start]
            at = max(at, start + size)
    return with_digest(file, len(file) - 64, others + file[at:-64])


def check(data: bytes, outcome: Outcome, options: Options) -> None:
    """NumPy sees the same arrays, or refuses them for one of the reasons that are listed."""
    theirs = _library(data)
    if isinstance(outcome, Index):
        if isinstance(theirs, str):
            known = any(re.search(pattern, theirs) for pattern in LOOSER)
            require(known, f"we open what NumPy refuses: {theirs}")
        else:
            _check_same(data, outcome, theirs)
    elif not isinstance(theirs, str):
        kind = type(outcome).__name__
        require(kind in STRICTER, f"NumPy opens what is a {kind} to us")


def _library(data: bytes) -> dict[str, Any] | str:
    """What NumPy finds in the file, or why it refuses it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with np.load(io.BytesIO(data), allow_pickle=False) as archive:
                return {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile and NumPy raise whatever comes
        return f"{type(error).__name__}: {error}"


def _check_same(data: bytes, index: Index, theirs: dict[str, Any]) -> None:
    require(theirs.keys() == index.rows.keys(), "NumPy sees other names")
    for name, row in index.rows.items():
        array = theirs[name]
        expected = expected_array(data, index, row)
        if expected is None:
            continue  # NumPy does not look behind the last element, where we find it broken
        require(array.dtype.newbyteorder("=") == expected.dtype, "NumPy sees another dtype")
        require(array.shape == expected.shape, "NumPy sees another shape")
        same = np.ascontiguousarray(array).astype(expected.dtype).tobytes() == expected.tobytes()
        require(same, "NumPy sees other elements")


TARGET = Target(
    name="npz",
    suffix=".npz",
    parts=(
        WHOLE,
        entry_part("", fields, WHOLE.tokens),
        entry_part(".json", words, JSON_TOKENS),
        *2 * [entry_part(".npy", words, JSON_TOKENS)],
    ),
    reseal=reseal,
    check=check,
)
