"""Pickles that no writer of tensors writes, opcode by opcode, and how each has to be refused."""

from __future__ import annotations

import struct
from collections.abc import Callable

from standfast.errors import (
    BadPickle,
    BadRange,
    DuplicateKey,
    LimitExceeded,
    RefusedPickle,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)
from tests.formats.builders import Row

MARKER = "touch ran-by-a-pickle"
"""What each attack would run: it leaves a file in the folder of the test."""


# The opcodes of values


def pickle_of(*opcodes: bytes, protocol: int = 2) -> bytes:
    return bytes([0x80, protocol]) + b"".join(opcodes) + b"."


def text(value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    return b"X" + struct.pack("<I", len(encoded)) + encoded


def name(module: str, attribute: str) -> bytes:
    return f"c{module}\n{attribute}\n".encode()


def stack_name(module: str, attribute: str) -> bytes:
    return text(module) + text(attribute) + b"\x93"


def integer(value: int) -> bytes:
    data = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    if len(data) < 256:
        return b"\x8a" + bytes([len(data)]) + data
    return b"\x8b" + struct.pack("<i", len(data)) + data


def tuple_of(*opcodes: bytes) -> bytes:
    return b"(" + b"".join(opcodes) + b"t"


def list_of(*opcodes: bytes) -> bytes:
    return b"](" + b"".join(opcodes) + b"e"


def dict_of(*opcodes: bytes) -> bytes:
    return b"}(" + b"".join(opcodes) + b"u"


def call(function: bytes, *arguments: bytes) -> bytes:
    return function + tuple_of(*arguments) + b"R"


def put(index: int) -> bytes:
    return b"r" + struct.pack("<I", index)


def get(index: int) -> bytes:
    return b"j" + struct.pack("<I", index)


def storage(key: str = "0", count: bytes = b"K\x06", kind: str = "FloatStorage") -> bytes:
    """The storage of six floats, or of what is asked for."""
    return tuple_of(text("storage"), name("torch", kind), text(key), text("cpu"), count) + b"Q"


REBUILD = name("torch._utils", "_rebuild_tensor_v2")
HOOKS = name("collections", "OrderedDict") + b")R"


def tensor(
    stored: bytes | None = None,
    offset: bytes = b"K\x00",
    size: bytes = b"K\x02K\x03\x86",
    steps: bytes = b"K\x03K\x01\x86",
) -> bytes:
    """A tensor of 2 × 3 floats, or of what is asked for."""
    return call(
        REBUILD, storage() if stored is None else stored, offset, size, steps, b"\x89", HOOKS
    )


SYSTEM = call(name("os", "system"), text(MARKER))


# The cases


def refused(case: str, *opcodes: bytes) -> Row:
    """Names something that is no data."""
    return Row(case, pickle_of(*opcodes), RefusedPickle, opens=True)


def bad(case: str, *opcodes: bytes) -> Row:
    return Row(case, pickle_of(*opcodes), BadPickle)


def limit(case: str, build: Callable[[], bytes] | bytes) -> Row:
    return Row(case, build, LimitExceeded)


RUNNING_CODE: tuple[Row, ...] = (
    refused("os.system", SYSTEM),
    refused("posix.system", call(name("posix", "system"), text(MARKER))),
    refused("eval", call(name("builtins", "eval"), text("1"))),
    refused("eval of Python 2", call(name("__builtin__", "eval"), text("1"))),
    refused("by the name on the stack", call(stack_name("os", "system"), text(MARKER))),
    refused(
        "name out of the memo",
        dict_of(text("os"), put(0) + text("system") + put(1)),
        *(text("x"), get(0), get(1), b"\x93", text(MARKER), b"\x85Rs"),
    ),
    refused(
        "function out of the memo",
        dict_of(text("x"), name("os", "system") + put(7)),
        *(text("y"), get(7), text(MARKER), b"\x85Rs"),
    ),
    refused("in the state of a dictionary", HOOKS, dict_of(text("x"), SYSTEM), b"b"),
    refused("in the hooks of a tensor", tensor(size=SYSTEM)),
    refused("as an item", dict_of(text("weight"), tensor(), text("x"), SYSTEM)),
    refused("as the class of a storage", name("os", "FloatStorage")),
    refused(
        "getattr",
        call(call(name("builtins", "getattr"), name("os", "path"), text("os")), text("x")),
    ),
    refused("attribute of a class of ours", name("torch", "Tensor.map_")),
    refused("function inside a known module", call(name("torch", "load"), text("x"))),
    refused("dunder of a known name", stack_name("collections", "OrderedDict.__init__")),
    refused("copyreg", call(name("copyreg", "_reconstructor"))),
    refused("new object", name("subprocess", "Popen"), b")\x81"),
    refused(
        "new object with keywords",
        *(name("subprocess", "Popen"), b")", dict_of(text("args"), text(MARKER)), b"\x92"),
    ),
    refused(
        "state of a new object",
        *(name("argparse", "Namespace"), b")\x81", dict_of(text("__class__"), SYSTEM), b"b"),
    ),
    refused("empty name", name("", "")),
    refused("name that steers a terminal", name("os", "\x1b[2J")),
    refused(
        "class inside a known call",
        call(name("numpy.core.multiarray", "_reconstruct"), name("os", "x"), b"NN"),
    ),
)

UNSUPPORTED_NAMES: tuple[Row, ...] = tuple(
    Row(what, pickle_of(call(name(module, what), b"N")), RefusedPickle, opens=True)
    for module, what in (
        ("torch._utils", "_rebuild_sparse_tensor"),
        ("torch._utils", "_rebuild_qtensor"),
        ("torch._utils", "_rebuild_nested_tensor"),
        ("torch._utils", "_rebuild_meta_tensor_no_storage"),
        ("torch._utils", "_rebuild_device_tensor_from_numpy"),
        ("torch", "QInt8Storage"),
    )
)
UNSUPPORTED_VALUES: tuple[Row, ...] = (
    Row("storage as a value", pickle_of(storage()), RefusedPickle, opens=True),
    Row("class as a value", pickle_of(name("torch", "Size")), RefusedPickle, opens=True),
    Row(
        "call of a class that only stands for a default",
        pickle_of(call(name("builtins", "list"))),
        RefusedPickle,
        opens=True,
    ),
    Row(
        "conjugated view",
        pickle_of(
            call(
                REBUILD,
                storage(kind="ComplexFloatStorage"),
                b"K\x00K\x01\x85K\x01\x85\x89",
                HOOKS,
                dict_of(text("conj"), b"\x88"),
            )
        ),
        RefusedPickle,
        opens=True,
    ),
    Row(
        "tensor of half a complex number",
        pickle_of(
            call(
                name("torch._utils", "_rebuild_tensor_v3"),
                storage(),
                b"K\x00))\x89",
                HOOKS,
                name("torch", "complex32"),
            )
        ),
        RefusedPickle,
        opens=True,
    ),
    Row(
        "array of objects",
        pickle_of(call(name("numpy", "dtype"), text("O8"), b"\x89", b"\x88")),
        RefusedPickle,
        opens=True,
    ),
    Row(
        "other encodings",
        pickle_of(call(name("_codecs", "encode"), text("x"), text("rot13"))),
        RefusedPickle,
        opens=True,
    ),
)

OPCODES: tuple[Row, ...] = (
    *(
        bad(f"opcode {label}", opcode)
        for label, opcode in (
            ("INST", b"(ios\nsystem\n"[1:]),
            ("OBJ", b"o"),
            ("EXT1", b"\x82\x01"),
            ("EXT2", b"\x83\x01\x00"),
            ("EXT4", b"\x84\x01\x00\x00\x00"),
            ("PERSID", b"Pstorage\n"),
            ("INT", b"I1\n"),
            ("LONG", b"L1L\n"),
            ("FLOAT", b"F1\n"),
            ("STRING", b"S'x'\n"),
            ("UNICODE", b"Vx\n"),
            ("GET", b"g0\n"),
            ("PUT", b"p0\n"),
            ("POP", b"0"),
            ("DUP", b"2"),
            ("PROTO", b"\x80\x02"),
            ("NEXT_BUFFER", b"\x97"),
            ("which pickle does not have", b"\xff"),
        )
    ),
    bad("opcode OBJ with its mark", b"(" + b"K\x01" * 5 + b"N", b"o"),
    bad("memo that was never put", b"h\x05"),
    bad("long memo that was never put", get(1 << 31)),
    bad("memo of nothing", b"q\x00N"),
    bad("empty stack", b"\x85"),
    bad("call without arguments", HOOKS[:-2], b"R"),
    bad("tuple without a mark", b"Nt"),
    bad("items without a mark", b"}Nu"),
    bad("mark inside of a pair", b"N(\x86"),
    bad("value below a mark", b"](Na"),
    bad("mark that stays", b"N("),
    bad("two values", b"NN"),
    bad("no value"),
    bad("append to a number", b"K\x01Na"),
    bad("append to a tuple", b")(NNe"),
    bad("item of a list", b"]NNs"),
    bad("member of a list", b"](N\x90"),
    bad("key without a value", b"}(Nu"),
    bad("state of a list", b"]Nb"),
    bad("state of a tensor", tensor(), b"}b"),
    bad("call of a text", text("os.system"), b")R"),
    bad("arguments that are a list", HOOKS[:-2], b"]R"),
    bad("too many arguments", call(HOOKS[:-2], b"NNN")),
    bad("name of numbers", b"K\x01K\x02\x93"),
    bad("text that is not UTF-8", b"X\x01\x00\x00\x00\xff"),
    bad("half of a surrogate pair", text("\ud800")),
    bad("name that is not UTF-8", b"c\xff\nx\n"),
    bad("negative length of an integer", b"\x8b\xff\xff\xff\xff"),
    Row("protocol 1", b"\x80\x01N.", UnsupportedFile),
    Row("protocol 6", b"\x80\x06N.", UnsupportedFile),
    Row("protocol 0", b"(dp0\n.", BadPickle),
    Row("bytes after the end", pickle_of(b"N") + b"N.", TrailingBytes),
    Row("no end", pickle_of(b"N")[:-1], TruncatedFile),
    Row("nothing", b"", TruncatedFile),
    Row("long text", pickle_of(b"X\xff\xff\xff\xffx"), TruncatedFile),
    Row("long bytes", pickle_of(b"\x8e" + b"\xff" * 8), TruncatedFile),
    Row("long frame", pickle_of(b"\x95" + b"\xff" * 8), TruncatedFile),
    Row("name without an end", pickle_of(b"cos\nsystem"), TruncatedFile),
)


def float_tensor(**changes: bytes) -> bytes:
    return pickle_of(tensor(**changes))


TENSORS: tuple[Row, ...] = (
    *(
        Row(f"storage too small: {label}", float_tensor(**changes), BadRange)
        for label, changes in (
            ("offset", {"offset": b"K\x01"}),
            ("shape", {"size": b"K\x02K\x04\x86"}),
            ("stride", {"steps": b"K\x04K\x01\x86"}),
            ("storage", {"stored": storage(count=b"K\x05")}),
            ("no storage at all", {"stored": storage(count=b"K\x00")}),
            ("far offset", {"offset": integer(1 << 50)}),
        )
    ),
    *(
        bad(f"tensor with {label}", tensor(**changes))
        for label, changes in (
            ("a negative offset", {"offset": b"J\xff\xff\xff\xff"}),
            ("a negative length", {"size": b"K\x02J\xff\xff\xff\xff\x86"}),
            ("a negative stride", {"steps": b"K\x03J\xff\xff\xff\xff\x86"}),
            ("a true length", {"size": b"K\x02\x88\x86"}),
            ("a float for a stride", {"steps": b"K\x03G" + bytes(8) + b"\x86"}),
            ("a text for a shape", {"size": text("23")}),
            ("fewer strides", {"steps": b"K\x01\x85"}),
            ("a text for a storage", {"stored": text("0")}),
        )
    ),
    *(
        bad(f"storage key {key!r}", tensor(storage(key)))
        for key in ("", "../0", "a/b", "0\0", "0 ", "٣", "x" * 65, ".")
    ),
    bad("storage of a negative size", storage(count=b"J\xff\xff\xff\xff")),
    bad("storage of a true size", storage(count=b"\x88")),
    bad(
        "storage of no class",
        tuple_of(text("storage"), text("x"), text("0"), text("cpu"), b"K\x06"),
        b"Q",
    ),
    bad("persistent id that is text", text("storage"), b"Q"),
    bad(
        "persistent id of a module",
        tuple_of(text("module"), name("torch", "Size"), text("0"), text("cpu"), b"K\x06"),
        b"Q",
    ),
    bad(
        "storage that is a view",
        *(b"(", text("storage"), name("torch", "FloatStorage"), text("0"), text("cpu"), b"K\x06"),
        *(tuple_of(text("0"), b"K\x00K\x01"), b"tQ"),
    ),
    bad("storage of two sizes", list_of(tensor(), tensor(storage(count=b"K\x07")))),
    bad("storage of two dtypes", list_of(tensor(), tensor(storage(kind="IntStorage")))),
    bad(
        "parameter of no tensor", call(name("torch._utils", "_rebuild_parameter"), b"N\x89", HOOKS)
    ),
    bad(
        "dtype that is text",
        call(
            name("torch._utils", "_rebuild_tensor_v3"),
            storage(),
            b"K\x00))\x89",
            HOOKS,
            text("float"),
        ),
    ),
    limit(
        "expanded into petabytes", float_tensor(size=integer(1 << 50) + b"\x85", steps=b"K\x00\x85")
    ),
    limit(
        "empty, of a shape that no array has",
        float_tensor(
            size=tuple_of(b"K\x00", *2 * [integer(1 << 50)]), steps=tuple_of(*3 * [b"K\x00"])
        ),
    ),
    limit("long shape", float_tensor(size=b"K\x02" + integer(1 << 60) + b"\x86")),
    limit("long stride", float_tensor(steps=b"K\x02" + integer(1 << 60) + b"\x86")),
    limit("long offset", float_tensor(offset=integer(1 << 600))),
    limit("long storage", pickle_of(storage(count=integer(1 << 600)))),
    limit(
        "65 dimensions",
        float_tensor(size=tuple_of(*65 * [b"K\x01"]), steps=tuple_of(*65 * [b"K\x01"])),
    ),
)

DTYPE = call(name("numpy", "dtype"), text("f8"), b"\x89", b"\x88")
STATE = tuple_of(b"K\x03", text("<"), b"NNN", *2 * [b"J\xff\xff\xff\xff"], b"K\x00")
BYTES_8 = call(name("_codecs", "encode"), text("\0" * 8), text("latin1"))
ARRAY = call(
    name("numpy._core.multiarray", "_reconstruct"), name("numpy", "ndarray"), b"K\x00\x85", b"N"
)


def filled(shape: bytes, content: bytes = BYTES_8) -> bytes:
    return ARRAY + tuple_of(b"K\x01", shape, DTYPE + STATE + b"b", b"\x89", content) + b"b"


VALUES: tuple[Row, ...] = (
    Row("key twice", pickle_of(dict_of(text("a"), b"N", text("a"), b"N")), DuplicateKey),
    Row("key twice, one by one", pickle_of(b"}", *2 * [text("a") + b"Ns"]), DuplicateKey),
    Row("one and true", pickle_of(dict_of(b"K\x01N\x88N")), DuplicateKey),
    bad("list as a key", dict_of(b"]N")),
    bad("dictionary as a member", b"\x8f(}\x90"),
    bad("tensor as a key", dict_of(tensor(), b"N")),
    bad("large integer as a key", dict_of(integer(1 << 70), b"N")),
    bad("large tuple as a key", dict_of(tuple_of(b"N" * 65), b"N")),
    bad("list in a key", dict_of(b"]\x85N")),
    bad("bytes that are none", call(name("_codecs", "encode"), text("Ā"), text("latin1"))),
    bad("complex of texts", call(name("builtins", "complex"), text("1"), text("2"))),
    bad("set of a text", call(name("builtins", "set"), text("ab"))),
    bad("size of texts", call(name("torch", "Size"), tuple_of(text("1")))),
    bad("array of too few bytes", filled(b"K\x02\x85")),
    bad("array of a negative length", filled(b"J\xff\xff\xff\xff\x85")),
    bad(
        "array twice",
        ARRAY,
        put(0),
        *2 * [tuple_of(b"K\x01", b"K\x01\x85", DTYPE, b"\x89", BYTES_8) + b"b"],
    ),
    Row("array without content", pickle_of(ARRAY), RefusedPickle),
    bad("state of a dtype", DTYPE, b")b"),
    bad("dtype of another size", DTYPE, STATE[:-3], b"K\x01tb"),
    bad(
        "dtype of an array",
        DTYPE,
        tuple_of(
            b"K\x03", text("<"), b"NN", filled(b"K\x01\x85"), *2 * [b"J\xff\xff\xff\xff"], b"K\x00"
        ),
        b"b",
    ),
    limit(
        "array that no memory holds", pickle_of(filled(tuple_of(b"K\x00", *2 * [integer(1 << 50)])))
    ),
    bad("list in itself", b"]", put(0), get(0), b"a"),
    bad("dictionary in itself", b"}", put(0), text("a"), get(0), b"s"),
    bad(
        "tuple in itself", b"]", put(0), b"\x85", put(1), b"\x85", put(2), get(0), get(1), b"a\x86"
    ),
    bad("metadata in itself", HOOKS, put(0), dict_of(text("_metadata"), get(0)), b"b"),
    bad("two lists in each other", b"]", put(0), b"]", put(1), get(0), b"a", put(2), b"a"),
)


def laughs(rounds: int, opcode: bytes) -> bytes:
    """A tuple of the last one twice, and again: each round doubles what a walk meets."""
    return pickle_of(b"N", *((put(i) + get(i) + opcode) for i in range(rounds)))


def copied(function: bytes, value: bytes, count: int = 2000) -> Callable[[], bytes]:
    """A call of a few bytes that copies a long value, again and again."""
    start = (value, b"\x85", put(0), function, put(1), b"\x86")
    return lambda: pickle_of(*start, *(count * [get(1) + get(0) + b"R\x86"]))


MANY = 60_000
FEWER = 20_000

FROM_BUFFER = name("numpy._core.numeric", "_frombuffer")
LENGTH = integer(10_000) + b"\x85"
TEN_THOUSAND_KEYS = dict_of(*(text(str(i)) + b"N" for i in range(10_000)))

LARGE: tuple[Row, ...] = (
    limit("billion laughs", lambda: laughs(60, b"\x86")),
    limit("billion laughs, very often", lambda: laughs(100_000, b"\x86")),
    limit("lists in each other", lambda: pickle_of(b"]" * MANY, b"a" * (MANY - 1))),
    limit("tuples in each other", lambda: pickle_of(b")", b"\x85" * MANY)),
    limit(
        "dictionaries in each other",
        lambda: pickle_of((b"}" + text("k")) * FEWER, b"}", b"s" * FEWER),
    ),
    Row("marks", lambda: pickle_of(b"(" * MANY), BadPickle),
    Row("marks without an end", lambda: b"\x80\x02" + b"(" * MANY, TruncatedFile),
    limit("long integer", lambda: pickle_of(integer(1 << 8 * 65_536))),
    limit("integer of 2 GiB", pickle_of(b"\x8b\xff\xff\xff\x7f")),
    limit("long name", lambda: pickle_of(b"c" + b"x" * MANY + b"\nx\n")),
    limit("long name on the stack", lambda: pickle_of(stack_name("x" * MANY, "x"))),
    limit(
        "bytes copied",
        lambda: pickle_of(
            text("x" * 100_000),
            put(0),
            text("latin1"),
            put(1),
            name("_codecs", "encode"),
            put(2),
            b"\x87",
            *(2000 * [get(2) + get(0) + get(1) + b"\x86R\x86"]),
        ),
    ),
    limit("list copied", copied(name("builtins", "set"), list_of(b"K\x01" * 100_000))),
    limit("size copied", copied(name("torch", "Size"), tuple_of(b"K\x01" * 100_000))),
    limit("dictionary copied", copied(name("collections", "Counter"), TEN_THOUSAND_KEYS, 20_000)),
    limit(
        "array copied",
        lambda: pickle_of(
            call(name("_codecs", "encode"), text("x" * 80_000), text("latin1")),
            put(0),
            DTYPE,
            put(1),
            b"\x86",
            *(2000 * [call(FROM_BUFFER, get(0), get(1), LENGTH, text("C")) + b"\x86"]),
        ),
    ),
    Row(
        "one key very often",
        lambda: pickle_of(dict_of(*(FEWER) * [text("k") + b"N"])),
        DuplicateKey,
    ),
)

ROWS = (*RUNNING_CODE, *UNSUPPORTED_NAMES, *UNSUPPORTED_VALUES, *OPCODES, *TENSORS, *VALUES, *LARGE)
