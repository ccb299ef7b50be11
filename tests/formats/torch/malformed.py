"""Damaged `.pt` files: around their pickle, and pickles that no writer of tensors writes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from standfast import errors
from tests.formats.builders import Row, Table, chunks, each, rows, unchecked
from tests.formats.torch.builders import (
    HOOKS,
    MARKER,
    ONE_TENSOR,
    SEAL,
    SIX,
    SYSTEM,
    call,
    deflated,
    dict_of,
    file_of,
    get,
    integer,
    list_of,
    name,
    own_entry,
    pickle_of,
    put,
    saved,
    sealed,
    storage,
    tensor,
    text,
    texts,
    tree_file,
    tuple_of,
)
from tests.formats.zip.builders import Piece, archive

LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
"""How a file of torch before 1.6 starts."""


def _shared(levels: int, width: int) -> bytes:
    """Lists of lists of lists, each of them once."""
    opcodes = list_of(*[b"N"] * width) + put(0)
    for i in range(levels):
        opcodes = list_of(opcodes, *[get(i)] * (width - 1)) + put(i + 1)
    return opcodes


def _around(row: Row) -> Callable[[], bytes] | bytes:
    def build() -> bytes:
        return file_of(pickle=row.content)

    return build if callable(row.data) else build()


ROWS = {
    ("w", errors.BadArchive): {"no storage": file_of(data=None)},
    ("w", errors.BadRange): {
        "storage too short": file_of(data=SIX[:-1]),
        "storage too long": file_of(data=SIX + b"\0"),
        "storage empty": file_of(data=b""),
    },
    ("w", errors.UnsupportedFile): {
        "storage compressed": file_of(deflated("archive/data/0", SIX), data=None)
    },
    errors.BadArchive: {
        "storage in a folder below": file_of(Piece(b"archive/x/data/0", SIX), data=None),
        "no pickle": file_of(pickle=None),
        "no folder": archive(Piece(b"data.pkl", ONE_TENSOR)),
        "two folders": file_of(Piece(b"other/data/1", SIX)),
        "an entry that is not listed": file_of(Piece(b"archive/x", b"x", listed=False)),
        "before 1.6, cut": LEGACY[:12],
        "a folder by its attributes": file_of(
            Piece(b"archive/data/0", SIX, central={"external": 16}), data=None
        ),
        "entry with another checksum": file_of(
            Piece(b"archive/standfast.json", own_entry(), local={"crc": 1}, central={"crc": 1})
        ),
    },
    errors.BadRange: {
        "tensor beyond its storage": tree_file(dict_of(text("w"), tensor(offset=b"K\x01"))),
        "beyond it by its strides": tree_file(dict_of(text("w"), tensor(steps=b"K\x04K\x01\x86"))),
        "something before it": b"x" + file_of(),
    },
    errors.BadPickle: {
        "storages that differ": tree_file(list_of(tensor(), tensor(storage(count=b"K\x07"))))
    },
    errors.DuplicateKey: {
        "duplicate entry": file_of(Piece(b"archive/data/0", SIX)),
        "two leaves of one path": tree_file(
            dict_of(text("a.b"), b"N", text("a"), dict_of(text("b"), b"N"))
        ),
        "duplicate key": sealed(b'{"metadata":{},"metadata":{}}'),
    },
    errors.UnsupportedFile: {
        "TorchScript": file_of(**{"constants.pkl": pickle_of(b")")}),
        "pickle compressed": file_of(deflated("archive/data.pkl", ONE_TENSOR), pickle=None),
        "before 1.6": LEGACY,
        "encrypted": archive(Piece(b"archive/data.pkl", ONE_TENSOR, flags=1)),
        "entry compressed": file_of(deflated("archive/standfast.json", own_entry())),
    },
    errors.TruncatedFile: {
        "empty file": b"",
        "cut": file_of()[:-1],
        "cut in half": file_of()[:200],
        "pickle empty": file_of(pickle=b""),
        "pickle cut": file_of(pickle=ONE_TENSOR[:-1]),
    },
    errors.TrailingBytes: {
        "trailing byte": file_of() + b"x",
        "trailing byte in the pickle": file_of(pickle=ONE_TENSOR + b"N"),
    },
    errors.BadField: {
        "byteorder empty": file_of(byteorder=b""),
        "byteorder middle": file_of(byteorder=b"middle"),
        "byteorder in capitals": file_of(byteorder=b"BIG"),
        "byteorder with a newline": file_of(byteorder=b"big\n"),
        "byteorder endless": file_of(byteorder=b"\x1b" * 5000),
        "entry is not JSON": sealed(b"{"),
        "entry is not an object": sealed(b"[]"),
        "entry is not UTF-8": sealed(b'{"\xff":1}'),
        "entry empty": sealed(b""),
        "no digests": sealed(own_entry(None)),
        "no metadata": sealed(own_entry(metadata=None)),
        "metadata a list": sealed(own_entry(metadata=[])),
        "metadata with a key of ours": sealed(own_entry(metadata={"standfast.x": 1})),
    },
    errors.LimitExceeded: {
        "an integer of 16,000 bits": tree_file(integer(1 << 16_000)),
        "101 levels": tree_file(b"]" * 102 + b"a" * 101),
        "a million leaves in 300 bytes": lambda: tree_file(_shared(5, 10)),
        "a million empty lists": lambda: tree_file(_shared(19, 2).replace(b"N", b"]")),
        "paths of gigabytes": lambda: tree_file(
            dict_of(text("k" * 100_000), list_of(*[b"N"] * 5000))
        ),
    },
    errors.RefusedPickle: {"code in the tree": tree_file(SYSTEM)},
    unchecked(errors.IndexMismatch): {
        "entry without a comment": file_of(own=own_entry()),
        "comment without an entry": file_of(comment=SEAL + b"0" * 64),
        "another comment": sealed(seal=b"standfast_digest:"),
        "comment cut": file_of(own=own_entry(), comment=SEAL),
        "comment altered": sealed()[:-1] + (b"0" if sealed()[-1:] != b"0" else b"1"),
        "comment in capitals": sealed()[:-64] + sealed()[-64:].upper(),
        "name altered": saved().replace(b"X\1\0\0\0w", b"X\1\0\0\0v"),
        "metadata altered": sealed(version=b"4\n")[:-64] + b"0" * 64,
    },
    unchecked(errors.BadField): {
        "digests of two tensors": sealed(own_entry(chunks(SIX, SIX))),
        "digests of none": sealed(own_entry(chunks())),
        "digests that are a number": sealed(own_entry(3)),
        "digests of another kind": sealed(own_entry("sha256:")),
        "digests that are not base64": sealed(own_entry("blake3:16777216:a")),
    },
}


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
    for i, argument in enumerate(arguments, 1):
        start += [argument, put(i)]
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
    **{f"opcode {o!r}": o for o in (b"ios\nsystem\n", b"S'x'\n", b"(" + b"K\x01" * 5 + b"No")},
    **{f"opcode {o!r}": o for o in (b"\x82\1", b"\x83\1\0", b"\x84\1\0\0\0", b"\x80\2")},
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
    # Negative numbers, true, a float, a text, and fewer strides than dimensions.
    **each(tensor, offset=[MINUS_ONE], stored=[text("0")]),
    **each(tensor, size=[b"K\x02" + MINUS_ONE + b"\x86", b"K\x02\x88\x86", text("23")]),
    **each(tensor, steps=[b"K\3" + MINUS_ONE + b"\x86", b"K\3G" + bytes(8) + b"\x86", b"K\1\x85"]),
    **{
        f"storage key {key!r}": tensor(storage(key))
        for key in ("", "../0", "a/b", "0\0", "0 ", "٣", "x" * 65, ".")
    },
    **each(storage, "storage", count=[MINUS_ONE, b"\x88"]),
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
        **each(tensor, offset=[b"K\x01", WIDE], size=[b"K\2K\4\x86"], steps=[b"K\4K\1\x86"]),
        **each(tensor, stored=[storage(count=b"K\x05"), storage(count=b"K\x00")]),
    },
    errors.TruncatedFile: {
        **{f"long {o!r}": o + b"\xff" * 8 for o in (b"X", b"\x8e", b"\x95")},
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


PICKLE_TABLES = ({refusal: _pickles(files) for refusal, files in OPCODES.items()}, WHOLE)
PICKLES = tuple(replace(row, data=_around(row)) for row in rows(*PICKLE_TABLES))
"""Hostile pickles, each in a file of its own."""
