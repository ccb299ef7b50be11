"""Damaged safetensors files: the header, its tensors, its metadata, and Standfast's own keys."""

import json

from standfast import errors
from tests.formats.builders import chunks, cuts, texts, unchecked
from tests.formats.safetensors.builders import (
    DIGEST_LENGTH,
    entry,
    file_of,
    holding,
    member,
    objects,
    one_tensor,
    sealed_file,
    strings_file,
    tensor,
    typed_file,
    with_metadata,
)

TENSOR = tensor()
HEADER = objects(TENSOR)
file_of_each = texts(file_of, "text")
of_dtype_each = texts(lambda text: one_tensor(dtype=text), "dtype")
of_shape_each = texts(lambda text: one_tensor(shape=text), "shape")
of_offsets_each = texts(lambda text: one_tensor(offsets=text), "offsets")

TEXTS = {
    errors.TruncatedFile: {
        **cuts(bytes(7), 0, 1, 7),
        "header length alone": file_of("", length=2),
        "header length one beyond": file_of("{}", length=3),
        "header length at the limit in a short file": file_of("{}", length=100_000_000),
        "header length takes a space of data": file_of(HEADER, b" ", len(HEADER) + 1),
    },
    errors.BadHeader: {
        "header length zero": bytes(8),
        "header length zero, then data": bytes(8) + b"{}",
        "header length one short": file_of(HEADER, b"x", len(HEADER) - 1),
        "header length takes a data byte": file_of(HEADER, b"x", len(HEADER) + 1),
        **file_of_each(r"""
            []  "{}"  null  {  {"a  {}/**/  {"a\q":{}}  {"\u12":{}}  {1:{}}  {"é😀":1x}
        """),
        "header is a pickle": file_of(b"\x80\x04}."),
        "header starts with a byte order mark": file_of("\ufeff{}"),
        "header starts with a space": file_of(" {}"),
        "byte 0xff in a name": file_of(b'{"\xff":{}}'),
        "overlong NUL in a name": file_of(b'{"\xc0\x80":{}}'),
        "UTF-8 cut short": file_of(b'{"\xf0\x9f":{}}'),
        "surrogate as UTF-8": file_of('{"\ud800":{}}'),
        "UTF-16": file_of("{}".encode("utf-16-le")),
        "bad byte in the padding": file_of(HEADER.encode() + b"  \xa0", b"x"),
        "lone surrogate in a name": holding(tensor("\\ud800")),
        "surrogates in the wrong order in a name": holding(tensor("\\udc00\\ud800")),
        "JSON cut short": file_of(HEADER[:-1], b"x"),
        "NUL after the JSON": file_of(HEADER + "\0", b"x"),
        "object after the JSON": file_of(HEADER + "{}", b"x"),
        "comma at the end": file_of(f"{{{TENSOR},}}", b"x"),
        "comma at the start": file_of(f"{{,{TENSOR}}}", b"x"),
        "newline in a name": file_of('{"a\nb":{}}'),
        **of_shape_each("[01]  [+1]  [0x1]  [NaN]  [Infinity]"),
        "100,000 arrays in each other": file_of('{"a":' + "[" * 100_000),
        "100,000 objects in each other": file_of('{"a":' * 100_000),
        "integer of 5,000 digits": one_tensor(shape=f"[{'9' * 5000}]"),
    },
    errors.LimitExceeded: {
        "header length over the limit": file_of("{}", length=100_000_001),
        "header length of 64 ones": file_of("{}", length=2**64 - 1),
        "header length big-endian": len(HEADER).to_bytes(8, "big") + HEADER.encode() + b"x",
    },
    errors.TrailingBytes: {"two files end to end": file_of("{}") * 2},
    errors.UnknownDType: {"lone surrogate in a dtype": one_tensor(dtype='"\\ud800"')},
    errors.BadField: {"20 arrays in each other": file_of('{"a":' + "[" * 20 + "]" * 20 + "}")},
    errors.DuplicateKey: {
        "dtype twice": holding(tensor()[:-1] + ',"dtype":"U8"}'),
        "shape twice": holding(tensor()[:-1] + ',"shape":[1]}'),
        "data_offsets twice": holding(tensor()[:-1] + ',"data_offsets":[0,1]}'),
        "tensor twice": holding(TENSOR, TENSOR),
        "tensor twice, with other bytes": holding(TENSOR, tensor("a", offsets="[1,2]"), data=b"xy"),
        "tensor twice, once escaped": holding(TENSOR, tensor("\\u0061")),
        "tensor twice, once with an escaped slash": holding(tensor("a/b"), tensor("a\\/b")),
        "field twice, once escaped": file_of(
            '{"a":' + entry()[:-1] + ',"d\\u0074ype":"U8"}}', b"x"
        ),
        "unknown field twice": file_of('{"a":' + entry()[:-1] + ',"more":1,"more":1}}', b"x"),
    },
    ("b", errors.DuplicateKey): {
        "field twice in the second tensor": holding(
            TENSOR, member("b", entry(offsets="[1,2]")[:-1] + ',"shape":[1]}'), data=b"xy"
        )
    },
}

HUGE = 2**60
WIDE = 2**32
LONG = "n" * 70_000
DTYPE, SHAPE, OFFSETS = '"dtype":"U8"', '"shape":[1]', '"data_offsets":[0,1]'


def fields(*members: str) -> bytes:
    return holding(member("a", objects(*members)))


def empty(shape: str, dtype: str = '"U8"') -> bytes:
    return holding(tensor("a", dtype, shape, "[0,0]"), data=b"")


def two(first: str, second: str, data: bytes) -> bytes:
    """A file of the tensors `a` and `b` with these offsets, of as many bytes as they span."""
    members = []
    for name, offsets in (("a", first), ("b", second)):
        begin, end = map(int, offsets.split(","))
        members.append(tensor(name, shape=f"[{end - begin}]", offsets=f"[{offsets}]"))
    return file_of(objects(*members), data)


NUMBERS = {
    f"{text} in {place}": data
    for text in ("1.0", "1e0", "1e999", "-1", "true", '"1"', "null", "[1]", "{}")
    for place, data in {
        "a shape": one_tensor(shape=f"[{text}]"),
        "a shape, second": one_tensor(shape=f"[1,{text}]"),
        "an offset": one_tensor(offsets=f"[{text},1]"),
        "an end": one_tensor(offsets=f"[0,{text}]"),
    }.items()
} | {
    "minus zero in a shape": empty("[-0]"),
    "minus zero in a shape, second": empty("[0,-0]"),
    "minus zero in an offset": holding(tensor("a", shape="[0]", offsets="[-0,0]"), data=b""),
    "minus zero in an end": holding(tensor("a", shape="[0]", offsets="[0,-0]"), data=b""),
}

TENSORS = {
    errors.BadField: NUMBERS
    | {
        "dtype missing": fields(SHAPE, OFFSETS),
        "shape missing": fields(DTYPE, OFFSETS),
        "data_offsets missing": fields(DTYPE, SHAPE),
        "all fields missing": fields(),
        "field in capitals": fields('"Dtype":"U8"', SHAPE, OFFSETS),
        "unknown field": fields(DTYPE, SHAPE, OFFSETS, '"strides":[1]'),
        "unknown field that clears the screen": fields(DTYPE, SHAPE, OFFSETS, r'"\u001b[2J":1'),
        "wrong field of a tensor that clears the screen": holding(
            member(r"\u001b[2J", "1"), data=b""
        ),
        "entry is an array": file_of('{"a":["U8",[1],[0,1]]}', b"x"),
        "entry is null": file_of('{"a":null}'),
        **of_dtype_each('null  8  ["U8"]'),
        **of_shape_each('null  1  "1"  {"0":1}  {}'),
        **of_offsets_each("null  []  [0]  [0,1,1]"),
        "shape is an empty object, behind an escaped name": holding(tensor("\\u0061", shape="{}")),
        "entry is a list of its fields": file_of(
            '{"a":[["dtype","U8"],["shape",[1]],["data_offsets",[0,1]]]}', b"x"
        ),
        "wrong field in an entry whose name is escaped": holding(tensor("\\u0061", shape="[1.0]")),
        "wrong field in the last of several tensors": holding(
            *(tensor(f"t{i}", offsets=f"[{i},{i + 1}]") for i in range(9)),
            tensor("a", shape="[null]", offsets="[9,10]"),
            data=bytes(10),
        ),
        "65 dimensions": one_tensor(shape=str([1] * 65)),
        "a dimension of 2^60": one_tensor(shape=f"[{HUGE}]"),
        "a dimension of 2^64": one_tensor(shape=f"[{2**64}]"),
        "empty tensor, one dimension absurd": empty(f"[0,{2**59 + 1}]"),
        "offset of 2^63": one_tensor(offsets=f"[0,{2**63}]"),
        "offset of 2^64 + 1, which would wrap to 1": one_tensor(offsets=f"[0,{2**64 + 1}]"),
    },
    errors.UnknownDType: {
        **of_dtype_each(r'''"\u001b[2J"  "U7"  "u8"  ""  "U8 "  "uint8"'''),
        "dtype of no bits": one_tensor(dtype='"U0"', shape="[0]"),
        "unknown dtype of an empty tensor": holding(tensor("a", '"V8"', "[0]", "[0,0]"), data=b""),
        "long dtype": one_tensor(dtype='"' + "U" * 10_000 + '"'),
        "dtype that only other libraries have": holding(
            tensor("a", '"C128"', "[1]", "[0,16]"), data=bytes(16)
        ),
    },
    errors.SizeMismatch: {
        "elements beyond 2^64": one_tensor(shape=f"[{WIDE},{WIDE},{WIDE}]"),
        "elements of just 2^64": empty(f"[{WIDE},{WIDE}]"),
        "bytes of just 2^64": empty(f"[{WIDE},{WIDE // 8}]", '"I64"'),
        "elements of 2^64 + 1": empty(f"[{(2**64 + 1) // 274177},274177]"),
        "64 dimensions of 2^59": empty(str([2**59] * 64)),
        **of_shape_each("[0]  [2]"),
        "dtype too wide": one_tensor(dtype='"F64"'),
        "no elements and no zero": empty("[]"),
        "F4, half a byte": one_tensor(dtype='"F4"'),
        "F4, 12 bits": one_tensor(dtype='"F4"', shape="[3]"),
        "F4, 12 bits in two bytes": holding(tensor("a", '"F4"', "[3]", "[0,2]"), data=b"xy"),
        "F6, 6 bits": one_tensor(dtype='"F6_E2M3"'),
        "F6, 18 bits in three bytes": holding(
            tensor("a", '"F6_E3M2"', "[3]", "[0,3]"), data=b"xyz"
        ),
        "size mismatch of a tensor that is called as a metadata key": file_of(
            '{"__metadata__":{"a":"a"},' + tensor("a", shape="[2]") + "}", b"x"
        ),
        "begin after end": one_tensor(offsets="[1,0]"),
        "begin after end, by the right size": holding(
            tensor("a", shape="[2]", offsets="[2,0]"), data=b"xy"
        ),
    },
    errors.LimitExceeded: {
        "empty tensor, other dimensions absurd": empty(f"[0,{2**59},{WIDE}]"),
        "empty tensor, zero behind absurd dimensions": empty(f"[{2**59},{WIDE},0]"),
        "name of 70,000 bytes": holding(tensor(LONG)),
        "name of 70,000 bytes in 35,000 letters": lambda: holding(member("é" * 35_000, entry())),
        "name of 65,536 bytes": holding(member("n" * 65_536, entry())),
    },
    ("shape", errors.SizeMismatch): {
        "size mismatch of a tensor that is called shape": holding(
            tensor("a"), tensor("shape", shape="[2]", offsets="[1,2]"), data=b"xy"
        )
    },
    errors.BadRange: {
        "hole at the start": two("1,2", "2,3", b"xyz"),
        "hole, in the other order": two("2,3", "0,1", b"xyz"),
        "same range twice": two("0,2", "0,2", b"xy"),
        "long name before a hole": holding(
            member("n" * 60_000, entry(offsets="[1,2]")), data=b"xy"
        ),
    },
    ("b", errors.BadRange): {
        "hole between": two("0,1", "2,3", b"xyz"),
        "overlap by a byte": two("0,2", "1,3", b"xyz"),
        "range inside another": two("0,3", "1,2", b"xyz"),
        "empty range inside another": two("0,3", "1,1", b"xyz"),
        "empty range behind a hole": two("0,1", "2,2", b"xy"),
        "empty range far outside": two("0,1", "99,99", b"x"),
        "offset of 2^59 behind a hole": two("0,1", f"{2**59 - 1},{2**59}", b"x"),
    },
    errors.TrailingBytes: {
        "a byte trails": two("0,1", "1,2", b"xyz"),
        "a megabyte trails": two("0,1", "1,2", bytes(1 << 20)),
        "a byte trails and there is no tensor": file_of("{}", b"x"),
        "a byte trails and all tensors are empty": holding(
            tensor("a", shape="[0]", offsets="[0,0]")
        ),
    },
    ("b", errors.TruncatedFile): {
        "last byte missing": two("0,1", "1,2", b"x"),
        "a petabyte missing": two("0,1", f"1,{2**50}", b"x"),
    },
    errors.TruncatedFile: {
        "all data missing": two("0,1", "1,2", b""),
        "long name and truncated": holding(member("n" * 60_000, entry()), data=b""),
    },
    ("b", errors.BadField): {"offset over 2^59": two("0,1", f"{2**59},{2**59 + 1}", b"x")},
}

MEGABYTES = 1_000_000
MANY = 40_000


def _string(unit: str) -> bytes:
    """A file whose metadata is one string, of this unit again and again."""
    return with_metadata('{"key":"' + unit * (MEGABYTES // len(unit)) + '"}')


def _strings(unit: str) -> bytes:
    """A file of very many metadata strings, each with this unit in its key and its value."""
    return with_metadata("{" + ",".join(f'"{unit}{i}":"{unit}"' for i in range(MANY)) + "}")


def _empty_tensors(count: int, *more: str) -> bytes:
    members = (tensor(str(i), shape="[0]", offsets="[0,0]") for i in range(count))
    return holding(*members, *more, data=b"")


def _distinct_keys() -> str:
    return ",".join(f'"{i}":"0"' for i in range(MANY))


def _last_twice() -> str:
    return "{" + _distinct_keys() + f',"{MANY - 1}":"0"}}'


def _tensors_and_one_overflow() -> bytes:
    """Tensors that are right, and one last whose size fits no integer of the machine."""
    right = (tensor(str(i), offsets=f"[{i},{i + 1}]") for i in range(MANY // 4))
    return holding(*right, tensor("z", shape=f"[{2**59},{2**59}]"), data=bytes(MANY // 4))


def _many_typed() -> bytes:
    names = [str(i) for i in range(MANY // 4)]
    return strings_file(dict.fromkeys(names, "0") | {"standfast.json": json.dumps(names)})


LARGE = {
    None: {
        "string of quotes": lambda: _string('\\"'),
        "string of backslashes": lambda: _string("\\\\"),
        "string of backslashes and quotes": lambda: _string('\\\\\\"'),
        "string of braces": lambda: _string("}"),
        "string of escaped letters": lambda: _string("\\u0041"),
        "short strings": lambda: _strings(""),
        "short strings with braces": lambda: _strings("}"),
        "short strings with quotes": lambda: _strings('\\"'),
        "padding": lambda: file_of(HEADER.ljust(MEGABYTES), b"x"),
        "many typed keys": _many_typed,
        "very many empty tensors": lambda: _empty_tensors(MANY // 4),
    },
    errors.BadHeader: {
        "string without an end": lambda: file_of('{"__metadata__":{"key":"' + "x" * MEGABYTES),
        "string of quotes without an end": lambda: file_of(
            '{"__metadata__":{"key":"' + '\\"' * (MEGABYTES // 2)
        ),
        "brackets": lambda: file_of('{"a":' + "[" * MEGABYTES),
        "brackets, closed": lambda: file_of('{"a":' + "[" * MEGABYTES + "]" * MEGABYTES + "}"),
        "objects in each other": lambda: file_of('{"a":' * (MEGABYTES // 5)),
        "many digits of an integer": lambda: file_of('{"a":' + "1" * MEGABYTES + "}"),
        "bad byte at the end": lambda: file_of(b'{"' + b"n" * MEGABYTES + b'\xff":0}'),
    },
    errors.BadField: {
        "brackets in a typed value": lambda: typed_file("[" * MEGABYTES),
        "empty objects": lambda: file_of('{"a":[' + "{}," * (MEGABYTES // 10) + "0]}"),
        "many unknown fields": lambda: file_of('{"a":{' + _distinct_keys() + "}}"),
        "many dimensions": lambda: holding(tensor("a", shape="[" + "1," * MANY + "1]")),
        "many digits before a point": lambda: file_of('{"a":' + "1" * MEGABYTES + ".0}"),
        "many digits of an exponent": lambda: file_of('{"a":1e' + "1" * MEGABYTES + "}"),
        "long unknown field": lambda: holding(
            member("a", objects(member("n" * MEGABYTES, "1"))), data=b""
        ),
        "long metadata key with a number": lambda: with_metadata(
            "{" + member("n" * MEGABYTES, "1") + "}"
        ),
        "long list as a metadata value": lambda: with_metadata(
            '{"key":[' + "0," * (MEGABYTES // 2) + "0]}"
        ),
        "long key among the typed ones, missing": lambda: typed_file(
            "1", json.dumps(["n" * MEGABYTES])
        ),
    },
    errors.DuplicateKey: {
        "one key very often": lambda: file_of("{" + '"a":0,' * MANY + '"a":0}'),
        "many keys, the last one twice": lambda: file_of(_last_twice()),
        "many metadata keys, the last one twice": lambda: with_metadata(_last_twice()),
        "many keys in a typed value, the last one twice": lambda: typed_file(_last_twice()),
        "one typed key listed very often": lambda: typed_file(
            json.dumps([0] * MANY), json.dumps(["key"] * MANY)
        ),
        "long name twice": lambda: holding(*2 * [tensor("n" * MEGABYTES)]),
    },
    errors.SizeMismatch: {
        "many empty tensors, then a wrong one": lambda: _empty_tensors(
            MANY // 4, tensor("a", shape="[2]")
        ),
        "many tensors, then one whose size overflows": _tensors_and_one_overflow,
    },
    errors.LimitExceeded: {
        "long name": lambda: holding(tensor("n" * MEGABYTES)),
        "long name in escapes": lambda: holding(member("\\u0061" * (MEGABYTES // 6), entry())),
    },
    errors.UnknownDType: {
        "very long dtype": lambda: holding(tensor("a", '"' + "U" * MEGABYTES + '"'))
    },
}
"""Headers of megabytes, made to take a reader's time or memory."""


METADATA = member("__metadata__", '{"key":"value"}')
RIGHT, TAG = chunks(b"x"), "blake3:16777216:"
RIGHT_MEMBER = member("standfast.chunks", json.dumps(RIGHT))
SEALED = sealed_file(RIGHT_MEMBER)
DIGEST = SEALED.partition(b'"standfast.digest":"')[2][:DIGEST_LENGTH].decode()
DIGEST_MEMBER = member("standfast.digest", f'"{DIGEST}"')
ESCAPED = f"\\u{ord(DIGEST[0]):04x}{DIGEST[1:]}"


def chunked(text: str) -> bytes:
    """A sealed header in which `standfast.chunks` alone is wrong."""
    return sealed_file(member("standfast.chunks", json.dumps(text)))


def unsealed(*strings: str) -> bytes:
    """The same file, but with these members in its metadata."""
    return with_metadata(objects(*strings))


def digested(digits: str) -> bytes:
    return SEALED.replace(DIGEST.encode(), digits.encode())


listed_each = texts(lambda keys: typed_file("1", keys), "typed keys")
typed_file_each = texts(typed_file, "typed file")
with_metadata_each = texts(with_metadata, "with metadata")

STRINGS = {
    errors.BadField: {
        **with_metadata_each(r"""
            null  []  "text"  1  false  {"key":1}  {"key":null}  {"key":true}  {"key":[]}
            {"key":{}}  {"other":"text","key":1}
        """),
        "metadata is an entry": with_metadata(entry()),
        "metadata called by another case": with_metadata("{}").replace(b"meta", b"Meta"),
        "list of typed keys is empty text": typed_file("1", ""),
        **listed_each(r"""
            ["key"  key  "key"  {"key":1}  null  [1]  [["key"]]  ["key","other"]
            ["standfast.json"]
        """),
        "list of typed keys is nested deeply": typed_file("1", "[" * 100_000),
        "typed value is empty text": typed_file(""),
        **typed_file_each(r"""
            value  {"x":  1 2  NaN  [-Infinity]  1e999  {"x":[-1e999]}  "\ud800"  {"\ud800":1}
        """),
        "typed value is nested deeply": typed_file("[" * 100_000),
        "typed value is nested deeply, closed": typed_file("[" * 100_000 + "]" * 100_000),
        "typed value is objects in each other": typed_file('{"x":' * 100_000),
        "typed value has 5,000 digits": typed_file("9" * 5000),
        "typed value is no JSON, under a key that clears the screen": strings_file(
            {"\033[2J": "?", "standfast.json": '["\\u001b[2J"]'}
        ),
        "chunk digests are a number": sealed_file(member("standfast.chunks", "1")),
        "header digest is a number": unsealed('"standfast.digest":0', RIGHT_MEMBER),
    },
    errors.BadHeader: {
        "metadata value is NaN": with_metadata('{"key":NaN}'),
        "control character in metadata": with_metadata('{"key":"\n"}'),
        "lone surrogate in a metadata value": with_metadata('{"key":"\\ud800"}'),
        "lone surrogate in a metadata key": with_metadata('{"\\udfff":"value"}'),
        "metadata last, text behind the JSON": file_of(objects(TENSOR, METADATA) + "!", b"x"),
        "metadata first, nothing but a comma behind it": file_of("{" + METADATA + ",}"),
        "metadata first, cut behind it": file_of("{" + METADATA),
        "metadata first, cut inside it": file_of("{" + METADATA[:-3]),
    },
    errors.DuplicateKey: {
        "typed value has a key twice": typed_file('{"x":1,"x":1}'),
        "typed value has a key twice, deep inside": typed_file('[{"y":[{"x":1,"x":2}]}]'),
        "typed value has a key twice, once escaped": typed_file('{"x":1,"\\u0078":1}'),
        "metadata twice": holding(METADATA, METADATA, TENSOR),
        "metadata twice, first and last": holding(METADATA, TENSOR, METADATA),
        "metadata twice, once escaped": holding(
            METADATA, TENSOR, METADATA.replace("d", "\\u0064", 1)
        ),
        "metadata twice, once as a tensor": holding(METADATA, tensor("__metadata__")),
        "metadata key twice": with_metadata('{"key":"one","key":"two"}'),
        "metadata key twice, once escaped": with_metadata('{"key":"one","\\u006bey":"two"}'),
        "metadata key twice, metadata last": holding(
            TENSOR, member("__metadata__", '{"key":"one","key":"one"}')
        ),
        "metadata in the middle, the tensor before it again behind it": holding(
            TENSOR, METADATA, TENSOR
        ),
        "list of typed keys holds one twice": typed_file("1", '["key","key"]'),
        "chunk digests twice": sealed_file(RIGHT_MEMBER, RIGHT_MEMBER),
        "header digest twice": unsealed(DIGEST_MEMBER, DIGEST_MEMBER, RIGHT_MEMBER),
    },
    ("b", errors.UnknownDType): {
        "metadata in the middle, a wrong dtype behind it": holding(
            TENSOR, METADATA, tensor("b", '"?"', "[1]", "[1,2]"), data=b"xy"
        )
    },
    ("b", errors.BadField): {
        "metadata in the middle, a wrong shape behind it": holding(
            TENSOR, METADATA, tensor("b", '"U8"', "[-1]", "[1,2]"), data=b"xy"
        )
    },
    ("b", errors.BadRange): {
        "metadata in the middle, a hole behind it": holding(
            TENSOR, METADATA, tensor("b", '"U8"', "[1]", "[2,3]"), data=b"xyz"
        )
    },
    errors.TrailingBytes: {"metadata last, a byte trails": holding(TENSOR, METADATA, data=b"xy")},
    errors.SizeMismatch: {
        "metadata last, a wrong size before it": holding(tensor("a", shape="[2]"), METADATA)
    },
    unchecked(errors.BadField): {
        **{
            f"chunk digests {text!r}": chunked(text)
            for text in (
                *("", TAG, RIGHT.removeprefix(TAG), RIGHT.replace("b", "B", 1), RIGHT + "\n"),
                *(RIGHT[:-3] + "*" + RIGHT[-2:], RIGHT[:-3] + "é" + RIGHT[-2:], RIGHT + "AAAA"),
                *(RIGHT.rstrip("="), RIGHT[:-4], chunks(b"x", b"y")),
            )
        },
        "chunk digests of one tensor for two": sealed_file(
            RIGHT_MEMBER, entries=(TENSOR, tensor("b", offsets="[1,2]")), data=b"xy"
        ),
        "chunk digests missing": sealed_file(),
    },
    unchecked(errors.TooNew): {
        "chunk digests of another hash": chunked(RIGHT.replace("blake3", "sha256")),
        "chunk digests of other chunks": chunked(RIGHT.replace("16777216", "16777215")),
    },
    unchecked(errors.IndexMismatch): {
        "header digest missing": unsealed(RIGHT_MEMBER),
        "header digest empty": unsealed('"standfast.digest":""', RIGHT_MEMBER),
        "header digest of zeros": digested("0" * 64),
        "header digest of another file": unsealed(DIGEST_MEMBER, RIGHT_MEMBER, '"k":"v"'),
        "header digest without hex": digested("z" * 64),
        "header digest in capitals": digested(DIGEST.upper()),
        "header digest cut short": unsealed(
            DIGEST_MEMBER.replace(DIGEST, DIGEST[:-1]), RIGHT_MEMBER
        ),
        "header digest alone, and wrong": unsealed(f'"standfast.digest":"{"0" * 64}"'),
        "header digest in second place": unsealed(RIGHT_MEMBER, DIGEST_MEMBER),
        "header digest behind a user's key": unsealed('"k":"v"', DIGEST_MEMBER, RIGHT_MEMBER),
        "header digest behind a space": file_of(b"{ " + SEALED[9:-1], b"x"),
        "header digest in metadata that comes last": holding(
            TENSOR, member("__metadata__", objects(DIGEST_MEMBER, RIGHT_MEMBER))
        ),
        "header digest with its letters escaped": unsealed(
            DIGEST_MEMBER.replace(DIGEST, ESCAPED), RIGHT_MEMBER
        ),
        "padding added behind a sealed header": file_of(SEALED[8:-1] + b" ", b"x"),
        "metadata added to a sealed header": unsealed(DIGEST_MEMBER, RIGHT_MEMBER, '"k":""'),
        "tensor renamed in a sealed header": SEALED.replace(b'"a"', b'"b"'),
        "dtype changed in a sealed header": SEALED.replace(b'"U8"', b'"I8"'),
        "shape changed in a sealed header": file_of(SEALED[8:-1].replace(b"[1]", b"[1,1]"), b"x"),
    },
}

TABLES = (TEXTS, TENSORS, LARGE, STRINGS)
