"""The torch format as a target, beside `torch.load(weights_only=True)`."""

import io
import re
import warnings
from typing import Any

import numpy as np
import torch

from standfast.errors import StandfastError
from standfast.files.layout import Index
from standfast.formats.reader import Options
from standfast.formats.torch import file as own_format
from tests.fuzz.mutations import JSON_TOKENS, OPCODES, WHOLE, entry_part, fields, opcodes, words
from tests.fuzz.properties import LARGEST_ARRAY, open_stream
from tests.fuzz.target import Outcome, Target, require
from tests.fuzz.targets.npz import resealed_archive

STRICTER = (
    "BadArchive BadField BadPickle BadRange DuplicateKey IndexMismatch LimitExceeded "
    "RefusedPickle TooNew TrailingBytes TruncatedFile UnsupportedFile"
).split()
"""How we may refuse what torch opens.

Its zip reader takes bytes that belong to nothing, compressed entries and entries in any folder;
its unpickler goes on where a key stands twice, takes any storage that is long enough, keeps
values on its stack at the end, and knows quantized and sparse tensors.
"""

LOOSER = {
    r"Unsupported (global|class)|not an allowed global": "plain names that torch does not know",
    r"Unsupported operand": "opcodes for sets and bytes, and protocols 3 to 5",
    r"Can only (REDUCE|build|SETITEM|append|create)": "calls of what torch has no value for",
    r"pickle protocol": "torch reads protocol 2 alone",
    r"data location|device (type|string)|not compiled|expected string or": "a device, passed over",
    r"can require gradients|requires_grad'? must be": "whether a gradient is wanted, passed over",
    r"hasRecord|the version|file with version|stoull": "the entry version, which we do not read",
    r"UnicodeDecodeError|invalid literal for int": "other entries, such as .storage_alignment",
}
"""Why torch may refuse what we open, by its message."""

UNTYPED = (torch.uint16, torch.uint32, torch.uint64)
"""torch keeps them in storages without a type, and does not swap those of a big-endian file."""


def reseal(file: bytes) -> bytes:
    """The file with a seal that matches it again, if it has one."""
    return resealed_archive(file, own_format)


def check(data: bytes, outcome: Outcome, options: Options) -> None:
    """torch builds the same tree, or refuses it for one of the reasons that are listed."""
    theirs = _library(data)
    if isinstance(outcome, Index):
        if isinstance(theirs, StandfastError):
            known = any(re.search(pattern, str(theirs)) for pattern in LOOSER)
            require(known or options.tensors_only, f"we open what torch refuses: {theirs}")
        elif not options.tensors_only and theirs is not None:
            with open_stream(data, Options(verify=False)) as file:
                _check_same(file.tree(), theirs)
    elif not isinstance(theirs, StandfastError):
        strict = type(outcome).__name__ in STRICTER
        require(strict, f"torch opens what is a {type(outcome).__name__} to us")


def _library(data: bytes) -> Any:
    """The tree that torch builds of the file, or an error that says why it does not."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return torch.load(io.BytesIO(data), weights_only=True)
    except Exception as error:  # torch raises whatever comes
        return StandfastError(f"{type(error).__name__}: {error}")


def _check_same(ours: Any, theirs: Any) -> None:
    """Two trees, side by side."""
    todo = [(ours, theirs)]
    while todo:
        one, other = todo.pop()
        if isinstance(other, torch.Tensor):
            _check_tensor(one, other)
        elif isinstance(other, torch.dtype | torch.device | torch.layout):
            require(one == str(other), f"torch has {other}, not {one!r:.80}")
        elif isinstance(other, dict):
            require(list(map(_key, one)) == list(map(_key, other)), "torch has other keys")
            todo += zip(one.values(), other.values(), strict=True)
        elif isinstance(other, list | tuple):
            require(len(one) == len(other), "torch has a list of another length")
            todo += zip(one, other, strict=True)
        elif isinstance(other, set | frozenset):
            require(len(one) == len(other), "torch has a set of another size")
        else:
            same = type(one) is type(other) and (one == other or one != one)
            require(same, f"torch has {other!r:.80}, not {one!r:.80}")


def _key(key: Any) -> Any:
    if isinstance(key, tuple):
        return tuple(map(_key, key))
    return str(key) if isinstance(key, torch.dtype | torch.device) or key != key else key


def _check_tensor(array: Any, tensor: torch.Tensor) -> None:
    require(isinstance(array, np.ndarray), "torch has a tensor there")
    if tensor.numel() > LARGEST_ARRAY:
        return
    tensor = tensor.detach()
    if tensor.dtype == torch.bool:
        tensor = tensor.view(torch.uint8)  # a copy would make each of them 0 or 1
    bits = torch.empty(tensor.numel(), dtype=tensor.dtype)
    bits.copy_(tensor.reshape(-1))
    theirs = bits.view(torch.uint8).numpy().tobytes()
    same = array.tobytes() == theirs
    if tensor.dtype in UNTYPED:
        same |= array.byteswap().tobytes() == theirs
    require(same, "torch has other elements")
    if tensor.dtype != torch.float4_e2m1fn_x2:
        require(array.shape == tuple(tensor.shape), "torch has another shape")


TARGET = Target(
    name="torch",
    suffix=".pt",
    parts=(
        WHOLE,
        entry_part("", fields, WHOLE.tokens),
        entry_part(".json", words, JSON_TOKENS),
        *4 * [entry_part("/data.pkl", opcodes, OPCODES)],
        entry_part("/byteorder", fields, [b"little", b"big", b"Little", b"\n"]),
    ),
    reseal=reseal,
    check=check,
    has_objects=True,
)
