"""Pickles that no writer of tensors writes, opcode by opcode, and how each has to be refused."""

from collections.abc import Callable, Mapping
from typing import Any

from standfast import errors
from tests.formats.builders import Table, unchecked
from tests.formats.torch.builders import (
    HOOKS,
    MARKER,
    SYSTEM,
    call,
    dict_of,
    get,
    integer,
    list_of,
    name,
    pickle_of,
    put,
    storage,
    tensor,
    text,
    texts,
    tuple_of,
)

MINUS_ONE = b"J\xff\xff\xff\xff"
DTYPE = call("numpy.dtype", text("f8"), b"\x89", b"\x88")
STATE = tuple_of(b"K\x03", text("<"), b"NNN", *2 * [MINUS_ONE], b"K\x00")
BYTES_8 = call("_codecs.encode", texts("\0" * 8, "latin1"))
ARRAY = call("numpy._core.multiarray._reconstruct", name("numpy.ndarray"), b"K\x00\x85", b"N")
HALF_COMPLEX = name("torch.complex32")
CONJUGATED = dict_of(text("conj"), b"\x88")
WIDE = integer(1 << 50)


def filled(shape: bytes, content: bytes = BYTES_8) -> bytes:
    return ARRAY + tuple_of(b"K\x01", shape, DTYPE + STATE + b"b", b"\x89", content) + b"b"


def with_dtype(dtype: bytes) -> bytes:
    return call("torch._utils._rebuild_tensor_v3", storage(), b"K\x00))\x89", HOOKS, dtype)


def laughs(rounds: int) -> Callable[[], bytes]:
    """A tuple of the last one twice, and again: each round doubles what a walk meets."""
    return lambda: b"N" + b"".join(put(i) + get(i) + b"\x86" for i in range(rounds))


def copied(function: str, *arguments: bytes, count: int = 2000) -> Callable[[], bytes]:
    """A call of a few bytes that copies a long value, again and again."""
    start = [name(function), put(0)]
    for i, each in enumerate(arguments, 1):
        start += [each, put(i)]
    again = get(0) + tuple_of(*(get(i) for i in range(1, len(arguments) + 1))) + b"R\x86"
    return lambda: b"".join(start) + b"\x86" * len(arguments) + count * again


MANY = 30_000
FEWER = 10_000
TEN_THOUSAND_KEYS = dict_of(*(text(str(i)) + b"N" for i in range(10_000)))

CODE = {
    "os.system": SYSTEM,
    "posix.system": call("posix.system", text(MARKER)),
    "eval": call("builtins.eval", text("1")),
    "eval of Python 2": call("__builtin__.eval", text("1")),
    "by the name on the stack": call(texts("os", "system") + b"\x93", text(MARKER)),
    "name out of the memo": dict_of(text("os"), put(0) + text("system") + put(1))
    + (text("x") + get(0) + get(1) + b"\x93" + text(MARKER) + b"\x85Rs"),
    "function out of the memo": dict_of(text("x"), name("os.system") + put(7))
    + (text("y") + get(7) + text(MARKER) + b"\x85Rs"),
    "in the state of a dictionary": HOOKS + dict_of(text("x"), SYSTEM) + b"b",
    "in the hooks of a tensor": tensor(size=SYSTEM),
    "as an item": dict_of(text("weight"), tensor(), text("x"), SYSTEM),
    "as the class of a storage": name("os.FloatStorage"),
    "getattr": call(call("builtins.getattr", name("os.path"), text("os")), text("x")),
    "attribute of a class of ours": b"ctorch\nTensor.map_\n",
    "function inside a known module": call("torch.load", text("x")),
    "dunder of a known name": texts("collections", "OrderedDict.__init__") + b"\x93",
    "copyreg": call("copyreg._reconstructor"),
    "new object": name("subprocess.Popen") + b")\x81",
    "new object with keywords": name("subprocess.Popen")
    + (b")" + dict_of(texts("args", MARKER)) + b"\x92"),
    "state of a new object": name("argparse.Namespace")
    + (b")\x81" + dict_of(text("__class__"), SYSTEM) + b"b"),
    "empty name": name(""),
    "name that steers a terminal": name("os.\x1b[2J"),
    "class inside a known call": call("numpy.core.multiarray._reconstruct", name("os.x"), b"NN"),
}
"""Opcodes that would run code."""

UNSUPPORTED = {
    **{
        path.rpartition(".")[2]: call(path, b"N")
        for path in (
            *(f"torch._utils._rebuild_{what}_tensor" for what in ("sparse", "nested")),
            "torch._utils._rebuild_qtensor",
            "torch._utils._rebuild_meta_tensor_no_storage",
            "torch._utils._rebuild_device_tensor_from_numpy",
            "torch.QInt8Storage",
        )
    },
    "storage as a value": storage(),
    "class as a value": name("torch.Size"),
    "call of a class that only stands for a default": call("builtins.list"),
    "conjugated view": call(
        *("torch._utils._rebuild_tensor_v2", storage(kind="ComplexFloatStorage")),
        *(b"K\x00K\x01\x85K\x01\x85\x89", HOOKS, CONJUGATED),
    ),
    "tensor of half a complex number": with_dtype(HALF_COMPLEX),
    "array of objects": call("numpy.dtype", text("O8"), b"\x89", b"\x88"),
    "other encodings": call("_codecs.encode", texts("x", "rot13")),
}

BAD = {
    **{f"opcode {byte!r}": byte + b"1\n" for byte in map(bytes, zip(b"PILFVgp"))},
    **{f"opcode {byte!r}": bytes([byte]) for byte in b"o02\x97\xff"},
    "opcode INST": b"ios\nsystem\n",
    "opcode OBJ with its mark": b"(" + b"K\x01" * 5 + b"No",
    "opcode EXT1": b"\x82\x01",
    "opcode EXT2": b"\x83\x01\x00",
    "opcode EXT4": b"\x84\x01\x00\x00\x00",
    "opcode STRING": b"S'x'\n",
    "opcode PROTO": b"\x80\x02",
    "memo that was never put": b"h\x05",
    "long memo that was never put": get(1 << 31),
    "memo of nothing": b"q\x00N",
    "empty stack": b"\x85",
    "call without arguments": HOOKS[:-2] + b"R",
    "tuple without a mark": b"Nt",
    "items without a mark": b"}Nu",
    "mark inside of a pair": b"N(\x86",
    "value below a mark": b"](Na",
    "mark that stays": b"N(",
    "marks": lambda: b"(" * MANY,
    "two values": b"NN",
    "no value": b"",
    "append to a number": b"K\x01Na",
    "append to a tuple": b")(NNe",
    "item of a list": b"]NNs",
    "member of a list": b"](N\x90",
    "key without a value": b"}(Nu",
    "state of a list": b"]Nb",
    "state of a tensor": tensor() + b"}b",
    "call of a text": text("os.system") + b")R",
    "arguments that are a list": HOOKS[:-2] + b"]R",
    "too many arguments": call("collections.OrderedDict", b"NNN"),
    "name of numbers": b"K\x01K\x02\x93",
    "text that is not UTF-8": b"X\x01\x00\x00\x00\xff",
    "half of a surrogate pair": text("\ud800"),
    "name that is not UTF-8": b"c\xff\nx\n",
    "negative length of an integer": b"\x8b\xff\xff\xff\xff",
    "tensor with a negative offset": tensor(offset=MINUS_ONE),
    "tensor with a negative length": tensor(size=b"K\x02" + MINUS_ONE + b"\x86"),
    "tensor with a negative stride": tensor(steps=b"K\x03" + MINUS_ONE + b"\x86"),
    "tensor with a true length": tensor(size=b"K\x02\x88\x86"),
    "tensor with a float for a stride": tensor(steps=b"K\x03G" + bytes(8) + b"\x86"),
    "tensor with a text for a shape": tensor(size=text("23")),
    "tensor with fewer strides": tensor(steps=b"K\x01\x85"),
    "tensor with a text for a storage": tensor(text("0")),
    **{
        f"storage key {key!r}": tensor(storage(key))
        for key in ("", "../0", "a/b", "0\0", "0 ", "٣", "x" * 65, ".")
    },
    "storage of a negative size": storage(count=MINUS_ONE),
    "storage of a true size": storage(count=b"\x88"),
    "storage of no class": tuple_of(texts("storage", "x", "0", "cpu"), b"K\x06") + b"Q",
    "persistent id that is text": text("storage") + b"Q",
    "persistent id of a module": storage().replace(text("storage"), text("module")),
    "storage that is a view": storage(count=b"K\x06" + tuple_of(text("0"), b"K\x00K\x01")),
    "storage of two sizes": list_of(tensor(), tensor(storage(count=b"K\x07"))),
    "storage of two dtypes": list_of(tensor(), tensor(storage(kind="IntStorage"))),
    "parameter of no tensor": call("torch._utils._rebuild_parameter", b"N\x89", HOOKS),
    "dtype that is text": with_dtype(text("float")),
    "list as a key": dict_of(b"]N"),
    "dictionary as a member": b"\x8f(}\x90",
    "tensor as a key": dict_of(tensor(), b"N"),
    "large integer as a key": dict_of(integer(1 << 70), b"N"),
    "large tuple as a key": dict_of(tuple_of(b"N" * 65), b"N"),
    "list in a key": dict_of(b"]\x85N"),
    "bytes beyond their encoding": call("_codecs.encode", texts("Ā", "latin1")),
    "complex of texts": call("builtins.complex", texts("1", "2")),
    "set of a text": call("builtins.set", text("ab")),
    "size of texts": call("torch.Size", tuple_of(text("1"))),
    "array of too few bytes": filled(b"K\x02\x85"),
    "array of a negative length": filled(MINUS_ONE + b"\x85"),
    "array twice": ARRAY
    + put(0)
    + 2 * (tuple_of(b"K\x01", b"K\x01\x85", DTYPE, b"\x89", BYTES_8) + b"b"),
    "state of a dtype": DTYPE + b")b",
    "dtype of another size": DTYPE + STATE[:-3] + b"K\x01tb",
    "dtype of an array": DTYPE
    + tuple_of(b"K\x03", text("<"), b"NN", filled(b"K\x01\x85"), *2 * [MINUS_ONE], b"K\x00")
    + b"b",
    "list in itself": b"]" + put(0) + get(0) + b"a",
    "dictionary in itself": b"}" + put(0) + text("a") + get(0) + b"s",
    "tuple in itself": b"]%b\x85%b\x85%b%b%ba\x86" % (*map(put, range(3)), get(0), get(1)),
    "metadata in itself": HOOKS + put(0) + dict_of(text("_metadata"), get(0)) + b"b",
    "two lists in each other": b"]%b]%b%ba%ba" % (put(0), put(1), get(0), put(2)),
}

LIMITS = {
    "expanded into petabytes": tensor(size=WIDE + b"\x85", steps=b"K\x00\x85"),
    "empty, of a shape that no array has": tensor(
        size=tuple_of(b"K\x00", WIDE, WIDE), steps=tuple_of(*3 * [b"K\x00"])
    ),
    "long shape": tensor(size=b"K\x02" + integer(1 << 60) + b"\x86"),
    "long stride": tensor(steps=b"K\x02" + integer(1 << 60) + b"\x86"),
    "long offset": tensor(offset=integer(1 << 600)),
    "long storage": storage(count=integer(1 << 600)),
    "65 dimensions": tensor(size=tuple_of(b"K\x01" * 65), steps=tuple_of(b"K\x01" * 65)),
    "array that no memory holds": filled(tuple_of(b"K\x00", WIDE, WIDE)),
    "billion laughs": laughs(60),
    "billion laughs, very often": laughs(100_000),
    "lists in each other": lambda: b"]" * MANY + b"a" * (MANY - 1),
    "tuples in each other": lambda: b")" + b"\x85" * MANY,
    "dictionaries in each other": lambda: (b"}" + text("k")) * FEWER + b"}" + b"s" * FEWER,
    "long integer": lambda: integer(1 << 8 * 65_536),
    "integer of 2 GiB": b"\x8b\xff\xff\xff\x7f",
    "long name": lambda: b"c" + b"x" * MANY + b"\nx\n",
    "long name on the stack": lambda: texts("x" * MANY, "x") + b"\x93",
    "bytes copied": copied("_codecs.encode", text("x" * 100_000), text("latin1")),
    "list copied": copied("builtins.set", list_of(b"K\x01" * 100_000)),
    "size copied": copied("torch.Size", tuple_of(b"K\x01" * 100_000)),
    "dictionary copied": copied("collections.Counter", TEN_THOUSAND_KEYS, count=20_000),
    "array copied": copied(
        "numpy._core.numeric._frombuffer",
        call("_codecs.encode", texts("x" * 80_000, "latin1")),
        *(DTYPE, integer(10_000) + b"\x85", text("C")),
    ),
}

OPCODES: Table = {
    unchecked(errors.RefusedPickle): CODE | UNSUPPORTED,
    errors.RefusedPickle: {"array without content": ARRAY},
    errors.BadPickle: BAD,
    errors.BadRange: {
        "storage too small: offset": tensor(offset=b"K\x01"),
        "storage too small: shape": tensor(size=b"K\x02K\x04\x86"),
        "storage too small: stride": tensor(steps=b"K\x04K\x01\x86"),
        "storage too small: storage": tensor(storage(count=b"K\x05")),
        "storage too small: no storage at all": tensor(storage(count=b"K\x00")),
        "storage too small: far offset": tensor(offset=WIDE),
    },
    errors.TruncatedFile: {
        "long text": b"X\xff\xff\xff\xffx",
        "long bytes": b"\x8e" + b"\xff" * 8,
        "long frame": b"\x95" + b"\xff" * 8,
        "name without an end": b"cos\nsystem",
    },
    errors.DuplicateKey: {
        "duplicate key": dict_of(text("a"), b"N", text("a"), b"N"),
        "duplicate key, one by one": b"}" + 2 * (text("a") + b"Ns"),
        "one and true": dict_of(b"K\x01N\x88N"),
        "one key very often": lambda: dict_of(FEWER * (text("k") + b"N")),
    },
    errors.LimitExceeded: LIMITS,
}

WHOLE: Table = {
    errors.BadPickle: {"protocol 0": b"(dp0\n."},
    errors.UnsupportedFile: {"protocol 1": b"\x80\x01N.", "protocol 6": b"\x80\x06N."},
    errors.TrailingBytes: {"bytes after the end": pickle_of(b"N") + b"N."},
    errors.TruncatedFile: {
        "no end": pickle_of(b"N")[:-1],
        "nothing": b"",
        "marks without an end": lambda: b"\x80\x02" + b"(" * MANY,
    },
}


def _pickle(opcodes: Any) -> Any:
    return (lambda: pickle_of(opcodes())) if callable(opcodes) else pickle_of(opcodes)


def _pickles(files: Mapping[str, Any]) -> dict[str, Any]:
    return {case: _pickle(opcodes) for case, opcodes in files.items()}


TABLES = ({refusal: _pickles(files) for refusal, files in OPCODES.items()}, WHOLE)
