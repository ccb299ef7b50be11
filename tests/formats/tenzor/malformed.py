"""Damaged `.tenzor` files: a table row for each way in which one can be wrong."""

from typing import Any

from standfast import errors
from tests.formats.builders import chunks, cuts, each, texts, unchecked
from tests.formats.tenzor.builders import entry, file_of, fnv, own_text, reseal, trainer_text

B = fnv(b"b")


def sealed(names: str = '["a"]', of: str | None = None, more: str = "") -> bytes:
    """A file of ours that is wrong, and has the digest of what it is."""
    return reseal(file_of(own_text(names, of, more)))


def one(**changes: Any) -> bytes:
    """A file of one tensor, whose entry is changed."""
    return of(entry(**changes))


def of(*entries: bytes, data: bytes = b"x") -> bytes:
    return file_of(entries=entries, data=data)


MANY = 1_000_000
MOST = 2**32 - 1
WIDE = {"shape": (2**30, 2**30), "size": 2**60}
HALF = {"shape": (2**31, 2**31), "size": 2**62}

file_of_each = texts(file_of, "text")
sealed_each = texts(sealed, "sealed")

ROWS = {
    errors.TruncatedFile: {
        **cuts(file_of(), 8, 63, 4095),
        "metadata of 100 MiB": file_of(
            metadata_size=100 << 20, index_offset=64 + (100 << 20), data_offset=104_861_696
        ),
        "a million tensors": file_of(tensor_count=10**6, data_offset=48_001_024),
        "no data": file_of(data=b""),
        "2^60 bytes": one(**WIDE),
        "sizes that add up to 2^64": of(
            *(entry(name_hash=i, **HALF, offset=(i << 62) % 2**64) for i in range(4)), data=b""
        ),
    },
    errors.UnsupportedFile: each(file_of, version=[0, 2], flags=[1 << 31]),
    errors.BadField: {
        **each(file_of, padding=[1], reserved=[b"\0" * 19 + b"\1"]),
        **each(file_of, index_offset=[64, 80, 2**64 - 8], data_offset=[0, 8192]),
        "bytes behind the metadata": file_of()[:66] + b"x" + file_of()[67:],
        "bytes behind the index": file_of()[:4095] + b"xx",
        **each(one, "entry", ndim=[0, 6, 255], padding=[b"\0\1"], offset=[1]),
        "a dimension behind the last": one(ndim=1, shape=(1, 0, 7)),
        "a hole": of(entry(), entry(name_hash=B, offset=2), data=b"xxx"),
        "an overlap": of(entry(), entry(name_hash=B, offset=0)),
        "the wrong order": of(entry(offset=1), entry(name_hash=B), data=b"xx"),
        "an offset that is right in floating point": of(
            entry(**WIDE), entry(name_hash=B, offset=2**60 + 1)
        ),
        **file_of_each(r"""
            metadata  []  null  {"a":1  {"a":1,}  {}{}  {"a":"\ud800"}  {"a":NaN}  {"loss":inf}
            {"a":1e999}  {"standfast.names":["b"]}
        """),
        "a byte order mark": file_of("\ufeff{}"),
        "a zero behind it": file_of(b"{}\0"),
        "not UTF-8": file_of(b'{"a":"\xff"}'),
        "deep nesting": file_of('{"a":' + "[" * 200 + "]" * 200 + "}"),
        "a long integer": file_of('{"a":' + "9" * 5000 + "}"),
        "the trainer's text with digits of another script": file_of(
            trainer_text("inf").replace("5", "\u0663", 1)
        ),
        **sealed_each(r"""
            "a"  [1]  [["a"]]  []  ["a","b"]  ["a","a"]  ["\ud800"]  ["a"
        """),
        "names and a comma": sealed(more=","),
        "names and text": sealed(more=" x"),
        "names not UTF-8": sealed().replace(b'["a"]', b'["\xff"]'),
        "digest not UTF-8": file_of(own_text()).replace(b"0", b"\xff", 1),
        "large: quotes": lambda: file_of(b'"' * MANY),
        "large: quotes in braces": lambda: file_of(b"{" + b'"' * MANY + b"}"),
        "large: backslashes": lambda: file_of(b'{"' + b"\\" * MANY + b"}"),
        "large: a string without an end": lambda: file_of(b'{"a":"' + b"x" * MANY),
        "large: braces": lambda: file_of(b"{" * MANY + b"}" * MANY),
        "large: nested objects": lambda: file_of(b'{"a":' * (MANY // 5)),
        "large: commas": lambda: file_of(b"{" + b"," * MANY + b"}"),
        "large: digits": lambda: file_of(b'{"a":' + b"9" * MANY + b"}"),
        "large: the trainer's text, cut": lambda: file_of(trainer_text("inf", "x" * MANY)[:-1]),
        "large: the trainer's text, many ends": lambda: file_of(
            trainer_text("inf", '","timestamp":1' * (MANY // 15))[:-1]
        ),
        "large: digits of the trainer": lambda: file_of(trainer_text("9" * MANY + "x")),
        "large: names in brackets": lambda: sealed("[" * MANY),
        "large: names in brackets, closed": lambda: sealed("[" * MANY + "]" * MANY),
        "large: names and brackets": lambda: sealed('["a",' + "[" * MANY),
        "large: names of digits": lambda: sealed("[" + "9" * MANY + "]"),
        "large: one name very often": lambda: sealed("[" + '"a",' * (MANY // 4) + '"a"]'),
    },
    errors.LimitExceeded: {
        **each(file_of, tensor_count=[2**32 - 1], metadata_size=[2**32 - 1]),
        "a size that is right modulo 2^64": one(shape=(MOST,) * 5, size=MOST**5 % 2**64),
        "an empty tensor of 2^96 rows": of(entry(shape=(MOST, MOST, MOST, 0), size=0), data=b""),
        "a long name": sealed(f'["{"n" * 65_536}"]'),
        "a long name in bytes": sealed(f'["{"é" * 32_768}"]'),
        "large: a long name": lambda: sealed('["' + "n" * MANY + '"]'),
        "large: a name of escapes": lambda: sealed('["' + "\\u0041" * (MANY // 6) + '"]'),
    },
    errors.TrailingBytes: {"more data": file_of(data=b"xx"), "data without tensors": of()},
    errors.UnknownDType: each(one, dtype=[12, 255]),
    errors.SizeMismatch: {
        **each(one, size=[0, 2**64 - 1], dtype=[0]),
        "size 2": of(entry(size=2), data=b"xx"),
        "a scalar of no bytes": one(shape=(), size=0),
    },
    errors.DuplicateKey: {
        "one hash twice": of(entry(), entry(offset=1), data=b"xx"),
        "a key twice": file_of('{"a":1,"a":1}'),
        "a key twice, deeper": file_of('{"b":[{"a":1,"a":1}]}'),
        "names twice": sealed(more=',"standfast.names":["a"]'),
        "large: one key very often": lambda: file_of(b"{" + b'"a":1,' * (MANY // 6) + b'"a":1}'),
    },
    ("b", errors.BadField): {"another name": sealed('["b"]')},
    unchecked(errors.IndexMismatch): {
        "digest of zeros": file_of(own_text()),
        "digest in capitals": sealed()[:84] + sealed()[84:148].upper() + sealed()[148:],
        "digest a number": file_of('{"standfast.digest":1}'),
        "chunks alone": file_of(f'{{"standfast.chunks":"{chunks(b"x")}"}}'),
        "the digest in another place": file_of(own_text().replace("{", "{ ", 1)),
    },
    unchecked(errors.TooNew): {"chunks of another kind": sealed(of="md5:1:")},
    unchecked(errors.BadField): {
        "no chunks": sealed(of=chunks()),
        "two chunks": sealed(of=chunks(b"", b"")),
        "no base64": sealed(of=chunks(b"x") + "="),
    },
    None: {
        "large: a string of backslashes": lambda: file_of(b'{"a":"' + b"\\" * MANY + b'"}'),
        "large: a string of quotes": lambda: file_of(b'{"a":"' + b'\\"' * (MANY // 2) + b'"}'),
        "large: spaces": lambda: file_of(b"{" + b" " * MANY + b"}"),
        "large: spaces alone": lambda: file_of(b" " * MANY),
    },
}

WITHOUT_MAGIC = {
    errors.TruncatedFile: {"nothing": b""},
    errors.BadHeader: {"another magic": file_of(magic=b"TENZOR\0\1"), "letters": b"x" * 5000},
}
"""Files that only their suffix makes files of this format."""
