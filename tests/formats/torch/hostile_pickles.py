"""Pickles that no writer of tensors writes, opcode by opcode, and how each has to be refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass

from standfast.errors import (
    BadPickle,
    BadRange,
    DuplicateKey,
    LimitExceeded,
    RefusedPickle,
    StandfastError,
    TrailingBytes,
    TruncatedFile,
    UnsupportedFile,
)

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


@dataclass(frozen=True)
class Case:
    """A pickle, the very class of its refusal, and what a reader of the tensors alone does."""

    name: str
    build: Callable[[], bytes] | bytes
    error: type[StandfastError]
    message: str = ""
    """A regular expression for the message."""
    opens: bool = False
    """Whether it opens with `tensors_only`; if not, it is refused by the same class then."""

    @property
    def data(self) -> bytes:
        return self.build if isinstance(self.build, bytes) else self.build()


def refused(case: str, what: str, *opcodes: bytes) -> Case:
    """Names something that is no data."""
    pattern = rf"^offset \d+: {what} is none of the names .* tensors_only=True leaves such"
    return Case(case, pickle_of(*opcodes), RefusedPickle, pattern, opens=True)


def bad(case: str, message: str, *opcodes: bytes) -> Case:
    return Case(case, pickle_of(*opcodes), BadPickle, message)


def limit(case: str, message: str, build: Callable[[], bytes] | bytes) -> Case:
    return Case(case, build, LimitExceeded, message)


RUNNING_CODE: tuple[Case, ...] = (
    refused("os.system", r"os\.system", SYSTEM),
    refused("posix.system", r"posix\.system", call(name("posix", "system"), text(MARKER))),
    refused("eval", r"builtins\.eval", call(name("builtins", "eval"), text("1"))),
    refused("eval of Python 2", r"builtins\.eval", call(name("__builtin__", "eval"), text("1"))),
    refused(
        "by the name on the stack", r"os\.system", call(stack_name("os", "system"), text(MARKER))
    ),
    refused(
        "name out of the memo",
        r"os\.system",
        dict_of(text("os"), put(0) + text("system") + put(1)),
        *(text("x"), get(0), get(1), b"\x93", text(MARKER), b"\x85Rs"),
    ),
    refused(
        "function out of the memo",
        r"os\.system",
        dict_of(text("x"), name("os", "system") + put(7)),
        *(text("y"), get(7), text(MARKER), b"\x85Rs"),
    ),
    refused("in the state of a dictionary", r"os\.system", HOOKS, dict_of(text("x"), SYSTEM), b"b"),
    refused("in the hooks of a tensor", r"os\.system", tensor(size=SYSTEM)),
    refused("as an item", r"os\.system", dict_of(text("weight"), tensor(), text("x"), SYSTEM)),
    refused("as the class of a storage", r"os\.FloatStorage", name("os", "FloatStorage")),
    refused(
        "getattr",
        r"builtins\.getattr",
        call(call(name("builtins", "getattr"), name("os", "path"), text("os")), text("x")),
    ),
    refused("attribute of a class of ours", r"torch\.Tensor\.map_", name("torch", "Tensor.map_")),
    refused(
        "function inside a known module", r"torch\.load", call(name("torch", "load"), text("x"))
    ),
    refused(
        "dunder of a known name",
        r"collections\.OrderedDict\.__init__",
        stack_name("collections", "OrderedDict.__init__"),
    ),
    refused("copyreg", r"copyreg\._reconstructor", call(name("copyreg", "_reconstructor"))),
    refused("new object", r"subprocess\.Popen", name("subprocess", "Popen"), b")\x81"),
    refused(
        "new object with keywords",
        r"subprocess\.Popen",
        *(name("subprocess", "Popen"), b")", dict_of(text("args"), text(MARKER)), b"\x92"),
    ),
    refused(
        "state of a new object",
        r"argparse\.Namespace",
        *(name("argparse", "Namespace"), b")\x81", dict_of(text("__class__"), SYSTEM), b"b"),
    ),
    refused("empty name", r"\.", name("", "")),
    refused("name that steers a terminal", r"os\.\\x1b\[2J", name("os", "\x1b[2J")),
    refused(
        "class inside a known call",
        r"os\.x",
        call(name("numpy.core.multiarray", "_reconstruct"), name("os", "x"), b"NN"),
    ),
)

UNSUPPORTED_NAMES: tuple[Case, ...] = tuple(
    Case(what, pickle_of(call(name(module, what), b"N")), RefusedPickle, f"{what}: {why}", True)
    for module, what, why in (
        ("torch._utils", "_rebuild_sparse_tensor", "a sparse tensor"),
        ("torch._utils", "_rebuild_qtensor", "a quantized tensor"),
        ("torch._utils", "_rebuild_nested_tensor", "a nested tensor"),
        ("torch._utils", "_rebuild_meta_tensor_no_storage", "a tensor on the meta device"),
        ("torch._utils", "_rebuild_device_tensor_from_numpy", "a tensor of another device"),
        ("torch", "QInt8Storage", "a quantized tensor"),
    )
)
UNSUPPORTED_VALUES: tuple[Case, ...] = (
    Case("storage as a value", pickle_of(storage()), RefusedPickle, r"torch\.FloatStorage", True),
    Case("class as a value", pickle_of(name("torch", "Size")), RefusedPickle, r"torch\.Size", True),
    Case(
        "call of a class that only stands for a default",
        pickle_of(call(name("builtins", "list"))),
        RefusedPickle,
        r"builtins\.list: a call",
        True,
    ),
    Case(
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
        "a conjugated or negated view",
        True,
    ),
    Case(
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
        r"a tensor of torch\.complex32",
        True,
    ),
    Case(
        "array of objects",
        pickle_of(call(name("numpy", "dtype"), text("O8"), b"\x89", b"\x88")),
        RefusedPickle,
        "the dtype 'O8'",
        True,
    ),
    Case(
        "other encodings",
        pickle_of(call(name("_codecs", "encode"), text("x"), text("rot13"))),
        RefusedPickle,
        "the encoding 'rot13'",
        True,
    ),
)

OPCODES: tuple[Case, ...] = (
    *(
        bad(f"opcode {label}", rf"^offset 2: the opcode .* \({label}\) is none", opcode)
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
    bad("opcode OBJ with its mark", r"^offset 14: .* \(OBJ\)", b"(" + b"K\x01" * 5 + b"N", b"o"),
    bad("memo that was never put", "never put there", b"h\x05"),
    bad("long memo that was never put", "never put there", get(1 << 31)),
    bad("memo of nothing", "more values than the stack has", b"q\x00N"),
    bad("empty stack", "more values than the stack has", b"\x85"),
    bad("call without arguments", "more values than the stack has", HOOKS[:-2], b"R"),
    bad("tuple without a mark", "more values than the stack has", b"Nt"),
    bad("items without a mark", "more values than the stack has", b"}Nu"),
    bad("mark inside of a pair", "more values than the stack has", b"N(\x86"),
    bad("value below a mark", "more values than the stack has", b"](Na"),
    bad("mark that stays", "one value must be left, found 1 and 1 marks", b"N("),
    bad("two values", "one value must be left, found 2", b"NN"),
    bad("no value", "one value must be left, found 0"),
    bad("append to a number", "appended to a value of type int", b"K\x01Na"),
    bad("append to a tuple", "appended to a value of type tuple", b")(NNe"),
    bad("item of a list", "set in a value of type list", b"]NNs"),
    bad("member of a list", r"added to a value of type list", b"](N\x90"),
    bad("key without a value", "a key without a value", b"}(Nu"),
    bad("state of a list", "takes none", b"]Nb"),
    bad("state of a tensor", "takes none", tensor(), b"}b"),
    bad("call of a text", "expected a function to call", text("os.system"), b")R"),
    bad("arguments that are a list", "not a tuple", HOOKS[:-2], b"]R"),
    bad("too many arguments", "3 arguments, expected 0 to 1", call(HOOKS[:-2], b"NNN")),
    bad("name of numbers", "not made of two texts", b"K\x01K\x02\x93"),
    bad("text that is not UTF-8", "not UTF-8", b"X\x01\x00\x00\x00\xff"),
    bad("half of a surrogate pair", "not UTF-8", text("\ud800")),
    bad("name that is not UTF-8", "not UTF-8", b"c\xff\nx\n"),
    bad("negative length of an integer", "an integer of -1 bytes", b"\x8b\xff\xff\xff\xff"),
    Case("protocol 1", b"\x80\x01N.", UnsupportedFile, "pickle protocol 1"),
    Case("protocol 6", b"\x80\x06N.", UnsupportedFile, "pickle protocol 6"),
    Case("protocol 0", b"(dp0\n.", BadPickle, "expected the opcode PROTO"),
    Case("bytes after the end", pickle_of(b"N") + b"N.", TrailingBytes, "2 bytes follow"),
    Case("no end", pickle_of(b"N")[:-1], TruncatedFile, "ends before its opcode STOP"),
    Case("nothing", b"", TruncatedFile),
    Case("long text", pickle_of(b"X\xff\xff\xff\xffx"), TruncatedFile, "before the end of a value"),
    Case("long bytes", pickle_of(b"\x8e" + b"\xff" * 8), TruncatedFile),
    Case("long frame", pickle_of(b"\x95" + b"\xff" * 8), TruncatedFile, "a frame of"),
    Case("name without an end", pickle_of(b"cos\nsystem"), TruncatedFile, "ends within a name"),
)


def float_tensor(**changes: bytes) -> bytes:
    return pickle_of(tensor(**changes))


TENSORS: tuple[Case, ...] = (
    *(
        Case(
            f"storage too small: {label}",
            float_tensor(**changes),
            BadRange,
            r"storage '0': a tensor whose storage is too small, for it reaches to byte \d",
        )
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
        bad(f"tensor with {label}", message, tensor(**changes))
        for label, message, changes in (
            ("a negative offset", "offset is a negative", {"offset": b"J\xff\xff\xff\xff"}),
            ("a negative length", "shape is a negative", {"size": b"K\x02J\xff\xff\xff\xff\x86"}),
            ("a negative stride", "stride is a negative", {"steps": b"K\x03J\xff\xff\xff\xff\x86"}),
            ("a true length", "shape is a value of type bool", {"size": b"K\x02\x88\x86"}),
            ("a float for a stride", "of type float", {"steps": b"K\x03G" + bytes(8) + b"\x86"}),
            ("a text for a shape", "found a value of type str", {"size": text("23")}),
            ("fewer strides", "2 dimensions and 1 strides", {"steps": b"K\x01\x85"}),
            ("a text for a storage", "expected a storage", {"stored": text("0")}),
        )
    ),
    *(
        bad(f"storage key {key!r}", "must be digits or letters", tensor(storage(key)))
        for key in ("", "../0", "a/b", "0\0", "0 ", "٣", "x" * 65, ".")
    ),
    bad("storage of a negative size", "must be a count", storage(count=b"J\xff\xff\xff\xff")),
    bad("storage of a true size", "must be a count", storage(count=b"\x88")),
    bad(
        "storage of no class",
        "expected a class of storages",
        tuple_of(text("storage"), text("x"), text("0"), text("cpu"), b"K\x06"),
        b"Q",
    ),
    bad("persistent id that is text", "a persistent id must be", text("storage"), b"Q"),
    bad(
        "persistent id of a module",
        "a persistent id must be",
        tuple_of(text("module"), name("torch", "Size"), text("0"), text("cpu"), b"K\x06"),
        b"Q",
    ),
    bad(
        "storage that is a view",
        "a view of another",
        tuple_of(
            text("storage"),
            name("torch", "FloatStorage"),
            text("0"),
            text("cpu"),
            b"K\x06",
            tuple_of(text("0"), b"K\x00K\x01"),
        ),
        b"Q",
    ),
    bad(
        "storage of two sizes",
        "bytes here, 24 where it first",
        list_of(tensor(), tensor(storage(count=b"K\x07"))),
    ),
    bad(
        "storage of two dtypes",
        "of int32 here, of float32 where",
        list_of(tensor(), tensor(storage(kind="IntStorage"))),
    ),
    bad(
        "parameter of no tensor",
        "expected a tensor",
        call(name("torch._utils", "_rebuild_parameter"), b"N\x89", HOOKS),
    ),
    bad(
        "dtype that is text",
        "expected a dtype",
        call(
            name("torch._utils", "_rebuild_tensor_v3"),
            storage(),
            b"K\x00))\x89",
            HOOKS,
            text("float"),
        ),
    ),
    limit(
        "expanded into petabytes",
        "over 2.34, out of a storage of 24",
        float_tensor(size=integer(1 << 50) + b"\x85", steps=b"K\x00\x85"),
    ),
    limit(
        "empty, of a shape that no array has",
        "no array can have",
        float_tensor(
            size=tuple_of(b"K\x00", *2 * [integer(1 << 50)]), steps=tuple_of(*3 * [b"K\x00"])
        ),
    ),
    limit(
        "long shape", "shape is over 2.58", float_tensor(size=b"K\x02" + integer(1 << 60) + b"\x86")
    ),
    limit(
        "long stride", "stride is over", float_tensor(steps=b"K\x02" + integer(1 << 60) + b"\x86")
    ),
    limit("long offset", "offset is over", float_tensor(offset=integer(1 << 600))),
    limit("long storage", "over 2.58 elements", pickle_of(storage(count=integer(1 << 600)))),
    limit(
        "65 dimensions",
        "over 64 dimensions",
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


VALUES: tuple[Case, ...] = (
    Case("key twice", pickle_of(dict_of(text("a"), b"N", text("a"), b"N")), DuplicateKey, "'a'"),
    Case("key twice, one by one", pickle_of(b"}", *2 * [text("a") + b"Ns"]), DuplicateKey, "'a'"),
    Case("one and true", pickle_of(dict_of(b"K\x01N\x88N")), DuplicateKey, "stands twice"),
    bad("list as a key", "type list in a key", dict_of(b"]N")),
    bad("dictionary as a member", "type dict in a key", b"\x8f(}\x90"),
    bad("tensor as a key", "type StoredTensor in a key", dict_of(tensor(), b"N")),
    bad("large integer as a key", "type int in a key", dict_of(integer(1 << 70), b"N")),
    bad("large tuple as a key", "type tuple in a key", dict_of(tuple_of(b"N" * 65), b"N")),
    bad("list in a key", "type list in a key", dict_of(b"]\x85N")),
    bad(
        "bytes that are none",
        "letter 0 of the text is no byte",
        call(name("_codecs", "encode"), text("Ā"), text("latin1")),
    ),
    bad(
        "complex of texts",
        "expected a value of type float",
        call(name("builtins", "complex"), text("1"), text("2")),
    ),
    bad(
        "set of a text", "expected a value of type list", call(name("builtins", "set"), text("ab"))
    ),
    bad(
        "size of texts",
        "expected a value of type int",
        call(name("torch", "Size"), tuple_of(text("1"))),
    ),
    bad("array of too few bytes", "does not take 8 bytes", filled(b"K\x02\x85")),
    bad("array of a negative length", "expected a length", filled(b"J\xff\xff\xff\xff\x85")),
    bad(
        "array twice",
        "content twice",
        ARRAY,
        put(0),
        *2 * [tuple_of(b"K\x01", b"K\x01\x85", DTYPE, b"\x89", BYTES_8) + b"b"],
    ),
    Case("array without content", pickle_of(ARRAY), RefusedPickle, "no plain numbers"),
    bad("state of a dtype", "a state that no writer gives", DTYPE, b")b"),
    bad("dtype of another size", "a state that no writer gives", DTYPE, STATE[:-3], b"K\x01tb"),
    bad(
        "dtype of an array",
        "a state that no writer gives",
        DTYPE,
        tuple_of(
            b"K\x03", text("<"), b"NN", filled(b"K\x01\x85"), *2 * [b"J\xff\xff\xff\xff"], b"K\x00"
        ),
        b"b",
    ),
    limit(
        "array that no memory holds",
        "no array can have",
        pickle_of(filled(tuple_of(b"K\x00", *2 * [integer(1 << 50)]))),
    ),
    bad("list in itself", "a list that holds itself", b"]", put(0), get(0), b"a"),
    bad("dictionary in itself", "a dict that holds itself", b"}", put(0), text("a"), get(0), b"s"),
    bad(
        "tuple in itself",
        "a (list|tuple) that holds itself",
        b"]",
        put(0),
        b"\x85",
        put(1),
        b"\x85",
        put(2),
        get(0),
        get(1),
        b"a\x86",
    ),
    bad(
        "metadata in itself",
        "a (OrderedDict|dict) that holds itself",
        HOOKS,
        put(0),
        dict_of(text("_metadata"), get(0)),
        b"b",
    ),
    bad(
        "two lists in each other",
        "a list that holds itself",
        b"]",
        put(0),
        b"]",
        put(1),
        get(0),
        b"a",
        put(2),
        b"a",
    ),
)


def laughs(rounds: int, opcode: bytes) -> bytes:
    """A tuple of the last one twice, and again: each round doubles what a walk meets."""
    return pickle_of(b"N", *((put(i) + get(i) + opcode) for i in range(rounds)))


def copied(make: bytes, use: bytes) -> bytes:
    """A long value, copied by a call of a few bytes, again and again."""
    return pickle_of(make, put(0), b"\x85", put(1), *(2000 * [use]), b"t")


MANY = 1_000_000
FEWER = 100_000

LARGE: tuple[Case, ...] = (
    limit("billion laughs", "meets over 10,000,000 values", lambda: laughs(60, b"\x86")),
    limit("billion laughs, very often", "", lambda: laughs(100_000, b"\x86")),
    limit(
        "lists in each other",
        "deeper than 500 levels",
        lambda: pickle_of(b"]" * MANY, b"a" * (MANY - 1)),
    ),
    limit(
        "tuples in each other", "deeper than 500 levels", lambda: pickle_of(b")", b"\x85" * MANY)
    ),
    limit(
        "dictionaries in each other",
        "deeper than 500",
        lambda: pickle_of((b"}" + text("k")) * FEWER, b"}", b"s" * FEWER),
    ),
    bad("marks", "one value must be left", b"(" * MANY),
    Case("marks without an end", b"\x80\x02" + b"(" * MANY, TruncatedFile),
    limit(
        "long integer", "an integer of 65,537 bytes", lambda: pickle_of(integer(1 << 8 * 65_536))
    ),
    limit("integer of 2 GiB", "an integer of 2,147,483,647", pickle_of(b"\x8b\xff\xff\xff\x7f")),
    limit(
        "long name", "a name of over 1000 bytes", lambda: pickle_of(b"c" + b"x" * MANY + b"\nx\n")
    ),
    limit(
        "long name on the stack",
        "a name of 1,000,001 letters",
        lambda: pickle_of(stack_name("x" * MANY, "x")),
    ),
    limit(
        "bytes copied",
        "again and again",
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
    limit(
        "list copied",
        "again and again",
        lambda: pickle_of(
            list_of(b"K\x01" * 100_000),
            b"\x85",
            put(0),
            name("builtins", "set"),
            put(1),
            b"\x86",
            *(2000 * [get(1) + get(0) + b"R\x86"]),
        ),
    ),
    limit(
        "dictionary copied",
        "again and again",
        lambda: pickle_of(
            dict_of(*(text(str(i)) + b"N" for i in range(10_000))),
            b"\x85",
            put(0),
            name("collections", "Counter"),
            put(1),
            b"\x86",
            *(20_000 * [get(1) + get(0) + b"R\x86"]),
        ),
    ),
    limit(
        "size copied",
        "again and again",
        lambda: pickle_of(
            tuple_of(b"K\x01" * 100_000),
            b"\x85",
            put(0),
            name("torch", "Size"),
            put(1),
            b"\x86",
            *(2000 * [get(1) + get(0) + b"R\x86"]),
        ),
    ),
    limit(
        "array copied",
        "again and again",
        lambda: pickle_of(
            call(name("_codecs", "encode"), text("x" * 80_000), text("latin1")),
            put(0),
            DTYPE,
            put(1),
            b"\x86",
            *(
                2000
                * [
                    call(
                        name("numpy._core.numeric", "_frombuffer"),
                        get(0),
                        get(1),
                        integer(10_000) + b"\x85",
                        text("C"),
                    )
                    + b"\x86"
                ]
            ),
        ),
    ),
    Case(
        "one key very often",
        lambda: pickle_of(dict_of(*(FEWER) * [text("k") + b"N"])),
        DuplicateKey,
    ),
)

CASES = (
    *RUNNING_CODE,
    *UNSUPPORTED_NAMES,
    *UNSUPPORTED_VALUES,
    *OPCODES,
    *TENSORS,
    *VALUES,
    *LARGE,
)
