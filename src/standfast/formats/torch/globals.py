"""What the names in a torch pickle stand for: a table of builders, none of which runs foreign code.

A name out of a file is only ever looked up in the tables here. It is never imported, and what is
in no table is refused, or left out where the caller asked for the tensors only.
"""

from __future__ import annotations

import math
import re
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, cast

import numpy as np

from standfast.errors import (
    BadPickle,
    DuplicateKey,
    LimitExceeded,
    RefusedPickle,
    StandfastError,
    printable,
    shortened,
)
from standfast.formats.torch.tensors import refuse_conjugates, refuse_difference, tensor
from standfast.formats.torch.values import (
    CONSTANTS,
    FACTORIES,
    MAX_LENGTH,
    MAX_NAME,
    MAX_RANK,
    STORAGES,
    TENSOR_CLASSES,
    TORCH_DTYPES,
    UNSUPPORTED,
    WIDTH_OF,
    Storage,
    StoredTensor,
    Stub,
    kind_of,
    name_of,
    of_type,
    unexpected,
)

MAX_KEY_PARTS: Final = 64
NUMPY_DTYPES: Final = "b1|[iu][1248]|f[248]|c8|c16|[US][0-9]{1,6}"
"""The codes of numbers and of text; all else can hold, or be, an object of Python's."""


class Globals:
    """All that a pickle can name or call, and what has to be remembered between two calls."""

    def __init__(self, allowance: int, tensors_only: bool) -> None:
        """`allowance` bounds what the calls copy: a short pickle can name a long value often."""
        self.tensors_only = tensors_only
        self.unfinished: dict[int, np.ndarray[Any, Any]] = {}
        """Arrays that were announced, by their identity, and have no content yet."""
        self._allowance = allowance
        self._stubs: dict[tuple[str, str], Stub] = {}
        self._storages: dict[str, Storage] = {}
        self._unknown_keys = 0

    def find(self, module: str, name: str) -> Stub | str:
        """What a name stands for: text for a constant, a stub for what can be called."""
        if found := self._stubs.get((module, name)):
            return found
        if len(module) + len(name) > MAX_NAME:
            raise LimitExceeded(f"a name of {len(module) + len(name):,} letters, over {MAX_NAME}")
        what = f"{'builtins' if module == '__builtin__' else module}.{name}"
        if what in CONSTANTS:
            return what
        if what not in KNOWN and not self.tensors_only:
            raise RefusedPickle(_refusal(what))
        stub = self._stubs[module, name] = Stub(what)
        return stub

    def call(self, function: Any, arguments: Any) -> Any:
        """What a call gives: a value of ours, or a stub for one that is left out."""
        if type(function) is not Stub:
            raise BadPickle(f"expected a function to call, found {kind_of(function)}")
        if type(arguments) is not tuple:
            raise BadPickle(
                f"{name_of(function)}: its arguments are {kind_of(arguments)}, not a tuple"
            )
        try:
            least, most, build = CALLS.get(function.what, _NO_CALL)
            if not least <= len(arguments) <= most:
                raise BadPickle(f"{len(arguments)} arguments, expected {least} to {most}")
            return build(self, *arguments)
        except RefusedPickle as error:
            if not self.tensors_only:
                raise RefusedPickle(f"{name_of(function)}: {error}") from None
            return Stub(function.what)
        except StandfastError as error:
            raise type(error)(f"{name_of(function)}: {error}") from None

    def build(self, target: Any, state: Any) -> Any:
        """The value that was given its state: itself, unless it is left out."""
        if self.tensors_only and isinstance(target, Stub):
            return target
        if type(target) is np.ndarray:
            return self._fill_array(target, state)
        if type(target) is OrderedDict:
            _set_attributes(target, state)
        elif isinstance(target, np.dtype):
            _set_byte_order(target, state)
        else:
            raise BadPickle(f"{kind_of(target)} is given a state, and takes none")
        return target

    def put(self, target: dict[Any, Any], key: Any, value: Any) -> None:
        """One item into a dictionary, which may not have it yet."""
        if type(key) is not str:
            key = self.key(key)
        if key in target:
            shown = f" {shortened(key)!r}" if type(key) is str else ""
            raise DuplicateKey(f"the key{shown} stands twice in one dictionary")
        target[key] = value

    def key(self, value: Any) -> Any:
        """The value as a key of a dictionary or a member of a set: small, plain and hashable."""
        parts, unknown = [value], None
        for part in parts:  # which grows
            if type(part) is tuple and len(parts) + len(part) <= MAX_KEY_PARTS:
                parts += part
            elif isinstance(part, Stub):
                unknown = part
            elif not _is_plain_key(part):
                raise BadPickle(
                    f"{kind_of(part)} in a key: expected text, a number or a small tuple"
                )
        if unknown is None:
            return value
        if not self.tensors_only:
            raise RefusedPickle(f"{name_of(unknown)} in a key")
        # Numbered, for two of them would be one, and the value of the first be lost.
        self._unknown_keys += 1
        return Stub(f"{unknown.what}#{self._unknown_keys}")

    def storage(self, persistent_id: Any) -> Stub:
        """The storage behind torch's tuple ('storage', class, key, location, count)."""
        if (
            type(persistent_id) is not tuple
            or len(persistent_id) not in (5, 6)
            or type(persistent_id[0]) is not str
            or persistent_id[0] != "storage"
        ):
            raise BadPickle(
                "a persistent id must be the tuple ('storage', class, key, location, count)"
            )
        if len(persistent_id) == 6 and persistent_id[5] is not None:
            raise BadPickle("a storage that is a view of another, as torch before 0.4 wrote it")
        kind, key, count = persistent_id[1], persistent_id[2], persistent_id[4]
        if type(kind) is not Stub or kind.what not in STORAGES:
            if self.tensors_only and type(kind) is Stub:
                return kind
            raise BadPickle(f"expected a class of storages, found {kind_of(kind)}")
        if type(key) is not str or not 0 < len(key) <= 64 or not (key.isascii() and key.isalnum()):
            shown = repr(shortened(key)) if type(key) is str else kind_of(key)
            raise BadPickle(f"the key of a storage must be digits or letters, found {shown}")
        if type(count) is not int or count < 0:
            raise BadPickle(f"storage {key!r}: its size must be a count, found {kind_of(count)}")
        if count > MAX_LENGTH:
            raise LimitExceeded(f"storage {key!r}: over 2^58 elements")
        dtype = STORAGES[kind.what]
        nbytes = count * WIDTH_OF[dtype or "uint8"]
        storage = Storage(kind.what, key, nbytes, dtype)
        if (first := self._storages.setdefault(key, storage)) is not storage:
            refuse_difference(storage, first)
        return storage

    def _spend(self, amount: int) -> None:
        """Counts what is copied; raises if that is more than a writer ever makes a reader copy."""
        self._allowance -= amount
        if self._allowance < 0:
            raise LimitExceeded("the pickle has the same values copied again and again")

    # Tensors, from torch's arguments

    def _tensor_v1(self, storage: Any, offset: Any, size: Any, steps: Any) -> StoredTensor:
        return tensor(storage, offset, size, steps, None)

    def _tensor_v2(
        self, storage: Any, offset: Any, size: Any, steps: Any, *rest: Any
    ) -> StoredTensor:
        if len(rest) > 2:
            refuse_conjugates(rest[2])
        return tensor(storage, offset, size, steps, None)

    def _tensor_v3(
        self, storage: Any, offset: Any, size: Any, steps: Any, *rest: Any
    ) -> StoredTensor:
        dtype = rest[2]
        if type(dtype) is not str or dtype not in CONSTANTS:
            raise unexpected("a dtype", dtype)
        if dtype not in TORCH_DTYPES:
            raise RefusedPickle(f"a tensor of {dtype}, a dtype that Standfast does not have")
        if len(rest) > 3:
            refuse_conjugates(rest[3])
        return tensor(storage, offset, size, steps, TORCH_DTYPES[dtype])

    def _parameter(self, tensor: Any, *rest: Any) -> StoredTensor:
        if type(tensor) is not StoredTensor:
            raise unexpected("a tensor", tensor)
        return tensor

    def _from_type(self, rebuild: Any, kind: Any, arguments: Any, state: Any) -> Any:
        """A tensor that has attributes, which are dropped."""
        if type(rebuild) is not Stub or rebuild.what not in TENSOR_CALLS:
            raise unexpected("a function that makes a tensor", rebuild)
        if type(kind) is not Stub or kind.what not in TENSOR_CLASSES:
            raise unexpected("a class of tensors", kind)
        return self.call(rebuild, arguments)

    # Values of torch's and Python's

    def _size(self, size: Any) -> tuple[int, ...]:
        lengths: tuple[int, ...] = of_type(tuple, size)
        self._spend(len(lengths))
        for length in lengths:
            of_type(int, length)
        return lengths

    def _device(self, kind: Any, index: Any = None) -> str:
        self._spend(len(of_type(str, kind)))
        if index is None:
            return str(kind)
        if type(index) is not int or index.bit_length() > 32:
            raise unexpected("a small integer", index)
        return f"{kind}:{index}"

    def _layout(self, name: Any) -> Any:
        return of_type(str, name)

    def _bytes(self, text: Any, encoding: Any) -> bytes:
        """Protocol 2 has no bytes: it asks for text to be encoded."""
        if of_type(str, encoding) != "latin1":
            raise RefusedPickle(f"the encoding {shortened(encoding)!r}")
        self._spend(len(of_type(str, text)))
        try:
            return bytes(text, "latin1")
        except UnicodeEncodeError as error:
            raise BadPickle(f"letter {error.start} of the text is no byte") from None

    def _no_bytes(self) -> bytes:
        return b""

    def _bytearray(self, content: Any = b"") -> bytearray:
        self._spend(len(of_type(bytes, content)))
        return bytearray(content)

    def _complex(self, real: Any, imaginary: Any) -> complex:
        return complex(of_type(float, real), of_type(float, imaginary))

    def _set(self, members: Any) -> set[Any]:
        self._spend(len(of_type(list, members)))
        return {self.key(member) for member in members}

    def _frozenset(self, members: Any) -> frozenset[Any]:
        return frozenset(self._set(members))

    def _ordered_dict(self, *pairs: Any) -> OrderedDict[Any, Any]:
        ordered: OrderedDict[Any, Any] = OrderedDict()
        if pairs:  # only Python 2 gives them here
            self._spend(2 * len(of_type(list, pairs[0])))
            for pair in pairs[0]:
                if type(pair) not in (tuple, list) or len(pair) != 2:
                    raise unexpected("a pair", pair)
                self.put(ordered, *pair)
        return ordered

    def _default_dict(self, factory: Any = None) -> dict[Any, Any]:
        return {}

    def _counter(self, counts: Any) -> dict[Any, Any]:
        self._spend(2 * len(of_type(dict, counts)))
        return dict(counts)

    # NumPy's arrays and scalars

    def _numpy_dtype(self, code: Any, align: Any, copy: Any) -> np.dtype[Any]:
        if not re.fullmatch(NUMPY_DTYPES, of_type(str, code)):
            raise RefusedPickle(f"the dtype {shortened(code)!r}, which is none of plain numbers")
        # A copy, for the byte order comes later, and all of NumPy shares one float64.
        dtype: np.dtype[Any] = np.dtype(code, False, True)
        return dtype

    def _numpy_scalar(self, dtype: Any, content: Any) -> Any:
        return self._numpy_from_buffer(content, dtype, (), "C")[()]

    def _numpy_from_buffer(
        self, content: Any, dtype: Any, shape: Any, order: Any
    ) -> np.ndarray[Any, Any]:
        if type(order) is not str or order not in ("C", "F"):
            raise unexpected("an order of elements", order)
        self._check_array(content, dtype, shape)
        # NumPy takes the letters for one of its own types.
        array: np.ndarray[Any, Any] = np.ndarray(shape, dtype, bytes(content), order=order)  # type: ignore[arg-type]
        return array.copy("A")

    def _numpy_reconstruct(self, kind: Any, shape: Any, code: Any) -> np.ndarray[Any, Any]:
        if type(kind) is not Stub or kind.what != "numpy.ndarray":
            raise unexpected("numpy.ndarray", kind)
        array = np.ndarray((0,), np.int8)
        self.unfinished[id(array)] = array
        return array

    def _fill_array(self, array: np.ndarray[Any, Any], state: Any) -> Any:
        if id(array) not in self.unfinished:
            raise BadPickle("an array is given its content twice")
        if type(state) is not tuple or len(state) != 5 or type(state[3]) is not bool:
            raise BadPickle("the state of an array must be (1, shape, dtype, order, bytes)")
        _, shape, dtype, fortran, content = state
        try:
            self._check_array(content, dtype, shape)
        except RefusedPickle:
            if not self.tensors_only:
                raise
            return Stub("numpy.ndarray")  # and the array stays unfinished, should it turn up
        # NumPy's own way to fill an array that others refer to; it keeps the bytes, hence a copy.
        array.__setstate__((1, shape, dtype, fortran, bytes(memoryview(content))))
        del self.unfinished[id(array)]
        return array

    def _check_array(self, content: Any, dtype: Any, shape: Any) -> None:
        if not isinstance(dtype, np.dtype):
            raise unexpected("a dtype", dtype)
        if type(content) not in (bytes, bytearray):
            raise unexpected("bytes", content)
        if type(shape) is not tuple or len(shape) > MAX_RANK:
            raise unexpected("a shape", shape)
        for length in shape:
            if type(length) is not int or not 0 <= length <= MAX_LENGTH:
                raise unexpected("a length", length)
        if math.prod(filter(None, shape)) > MAX_LENGTH >> 20:  # text has up to 2^22 bytes
            raise LimitExceeded(f"no array can have the shape {list(shape)}")
        if math.prod(shape) * dtype.itemsize != len(content):
            raise BadPickle(
                f"an array of {dtype} and shape {list(shape)} does not take {len(content):,} bytes"
            )
        self._spend(len(content))


# Values that take a state


def _set_attributes(target: OrderedDict[Any, Any], state: Any) -> None:
    """The attributes of a state dict; of these torch reads `_metadata` alone."""
    if type(state) is not dict:
        raise BadPickle(f"collections.OrderedDict: its attributes are {kind_of(state)}")
    if "_metadata" in state:
        vars(target)["_metadata"] = state["_metadata"]


def _set_byte_order(dtype: np.dtype[Any], state: Any) -> None:
    """The byte order; NumPy repeats the sizes, which have to be those of the code."""
    sizes = {"U": (dtype.itemsize, 4, 8), "S": (dtype.itemsize, 1, 0)}.get(dtype.kind, (-1, -1, 0))
    kinds = [type(part) for part in state] if type(state) is tuple and len(state) == 8 else []
    # The kinds first: to compare two arrays is no question of yes or no.
    if kinds != [int, str, *3 * [type(None)], *3 * [int]] or state[5:] != sizes or state[0] != 3:
        raise BadPickle(f"numpy.dtype: a state that no writer gives to {dtype}")
    if state[1] not in ("<", ">", "|", "="):
        raise BadPickle(f"numpy.dtype: the byte order {shortened(state[1])!r}")
    cast(Any, dtype).__setstate__(state)


def _is_plain_key(value: Any) -> bool:
    if type(value) is int:
        return value.bit_length() <= 64
    if isinstance(value, np.generic):
        return value.nbytes <= 4 * MAX_NAME
    return value is None or type(value) in (str, float, bool, bytes, complex)


def _refusal(what: str) -> str:
    if what in UNSUPPORTED:
        return f"{what}: {UNSUPPORTED[what]}, which has no plain bytes"
    return (
        f"{shortened(printable(what))} is none of the names that stand for data, "
        "and nothing that a file names is ever called"
    )


def _no_call(_: Globals, *arguments: Any) -> Any:
    raise RefusedPickle("a call of it")


# The table of calls: the fewest and the most arguments, and who takes them.

_Call = tuple[int, int, Callable[..., Any]]
_NO_CALL: Final[_Call] = (0, sys.maxsize, _no_call)

TENSOR_CALLS: Final[dict[str, _Call]] = {
    "torch._utils._rebuild_tensor": (4, 4, Globals._tensor_v1),
    "torch._utils._rebuild_tensor_v2": (6, 7, Globals._tensor_v2),
    "torch._utils._rebuild_tensor_v3": (7, 8, Globals._tensor_v3),
    "torch._utils._rebuild_parameter": (3, 3, Globals._parameter),
    "torch._utils._rebuild_parameter_with_state": (4, 4, Globals._parameter),
}
CALLS: Final[dict[str, _Call]] = {
    **TENSOR_CALLS,
    "torch._tensor._rebuild_from_type": (4, 4, Globals._from_type),
    "torch._tensor._rebuild_from_type_v2": (4, 4, Globals._from_type),
    "torch.Size": (1, 1, Globals._size),
    "torch.device": (1, 2, Globals._device),
    "torch.serialization._get_layout": (1, 1, Globals._layout),
    "collections.OrderedDict": (0, 1, Globals._ordered_dict),
    "collections.defaultdict": (0, 1, Globals._default_dict),
    "collections.Counter": (1, 1, Globals._counter),
    "_codecs.encode": (2, 2, Globals._bytes),
    "builtins.bytes": (0, 0, Globals._no_bytes),
    "builtins.bytearray": (0, 1, Globals._bytearray),
    "builtins.complex": (2, 2, Globals._complex),
    "builtins.set": (1, 1, Globals._set),
    "builtins.frozenset": (1, 1, Globals._frozenset),
    "numpy.dtype": (3, 3, Globals._numpy_dtype),
}
for _core in ("numpy.core", "numpy._core"):
    CALLS[f"{_core}.multiarray.scalar"] = (2, 2, Globals._numpy_scalar)
    CALLS[f"{_core}.multiarray._reconstruct"] = (3, 3, Globals._numpy_reconstruct)
    CALLS[f"{_core}.numeric._frombuffer"] = (4, 4, Globals._numpy_from_buffer)

KNOWN: Final = {*CALLS, *STORAGES, *TENSOR_CLASSES, *FACTORIES, "numpy.ndarray"}
