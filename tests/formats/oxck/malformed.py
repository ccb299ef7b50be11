"""Damaged OXCK files: a table row for each way in which one can be wrong."""

from standfast import errors
from tests.formats.builders import chunks, cuts, each, texts, unchecked
from tests.formats.oxck.builders import file_of, floats, sealed_file, tensor

HUGE = 1 << 60
ONE = ("a", (1,), floats(1))
OWN = f'{{"standfast.chunks":"{chunks(floats(1))}","standfast.digest":"SEAL"}}'

MANY = 1_000_000

file_of_each = texts(file_of, "text")

METADATA = {
    errors.BadField: {
        **file_of_each(r"""
            metadata  []  {  }  {"a":"b"  {}x  {"a":1}  {"a":null,"b":"c"}  {"a":{"b":"c"}}
            {a:1}  {"a":"b",c}  {"a" "b"}  {"a","b"}  {"a"::"b"}  {:}  {"a":}  {"a"}  {"a}
            {"a":"b}  {"a":"b\"}  {"a":"b\}  {"a":"\x"}  {"a":"\u0041"}  {"\/":"a"}
            {"a":"b",\n}  {\"a":"b"}
        """),
        "a zero behind it": file_of("{}\0"),
        "a byte order mark": file_of("\ufeff{}"),
        "separators around": file_of("\x1c{}\x1f"),
        "not UTF-8": file_of(b'{"a":"\xff"}'),
        "a lone surrogate": file_of('{"\ud800":""}'.encode("utf-8", "surrogatepass")),
        "separators between": file_of('{"a":"b"\x1d"c":"d"}'),
    }
}

OURS = {
    errors.DuplicateKey: {"two tensors of one name": file_of("{}", tensor("a"), tensor("a"))},
    errors.BadField: {
        "typed metadata that is not there": file_of('{"standfast.json":"[\\"a\\"]"}'),
        "typed metadata that is no JSON": file_of('{"a":"x","standfast.json":"[\\"a\\"]"}'),
    },
    unchecked(errors.IndexMismatch): {
        "digest of zeros": file_of(OWN.replace("SEAL", "0" * 64), tensor(*ONE)),
        "chunks alone": sealed_file(f'{{"standfast.chunks":"{chunks(floats(1))}"}}', ONE),
        "the digest twice": sealed_file(OWN[:-1] + ',"standfast.digest":"' + "0" * 64 + '"}', ONE),
        "the digest behind a space": sealed_file(
            OWN.replace('"standfast.digest"', ' "standfast.digest"'), ONE
        ),
    },
    unchecked(errors.BadField): {
        "digest alone": sealed_file('{"standfast.digest":"SEAL"}', ONE),
        "chunks of nothing": sealed_file(
            f'{{"standfast.chunks":"{chunks()}","standfast.digest":"SEAL"}}', ONE
        ),
    },
}

ROWS = {
    errors.UnsupportedFile: each(file_of, version=[0, 2]),
    errors.TruncatedFile: {
        **cuts(file_of("{}", tensor("abc")), 4, 27, 29, 33, 35, 45, -1),
        **each(file_of, length=[200_000_000], count=[1, 2**64 - 1]),
        **{
            f"{n} elements": file_of("{}", tensor("x", (n,), b"", elements=n))
            for n in (2**40, HUGE, 2**63)
        },
    },
    errors.LimitExceeded: {
        **each(file_of, length=[2**32 - 1]),
        "a long name": file_of("{}", tensor("n" * 65_536)),
        "a name of 4 GiB": file_of("{}", tensor(name_length=2**32 - 1)),
        "65 dimensions": file_of("{}", tensor("x", (1,) * 65)),
        "2^32 - 1 dimensions": file_of("{}", tensor(rank=2**32 - 1)),
        "an empty tensor of 2^120 rows": file_of("{}", tensor("x", (HUGE, HUGE, 0), b"")),
    },
    errors.TrailingBytes: {
        "a byte behind the metadata": file_of() + b"x",
        "a tensor too many": file_of("{}", tensor("a"), tensor("b"), count=1),
    },
    errors.BadHeader: {
        "a name that is not UTF-8": file_of("{}", tensor(b"\xff")),
        "a name of a lone surrogate": file_of(
            "{}", tensor("\ud800".encode("utf-8", "surrogatepass"))
        ),
    },
    errors.SizeMismatch: {
        "too few elements": file_of("{}", tensor("x", (2, 3), floats(1, 2, 3, 4, 5))),
        "too many elements": file_of("{}", tensor("x", (0,), floats(1))),
        "a shape that is right modulo 2^64": file_of(
            "{}", tensor("x", (2**63, 2), b"", elements=0)
        ),
    },
    ("x", errors.SizeMismatch): {
        "a scalar of two elements": file_of("{}", tensor("x", (), floats(1, 2)))
    },
    errors.BadField: {
        "large: quotes": lambda: file_of('"' * MANY),
        "large: quotes in braces": lambda: file_of("{" + '"' * MANY + "}"),
        "large: backslashes": lambda: file_of('{"' + "\\" * MANY + "}"),
        "large: an odd number of backslashes": lambda: file_of('{"' + "\\" * (MANY + 1) + '"}'),
        "large: a string without an end": lambda: file_of('{"a":"' + "x" * MANY + "}"),
        "large: braces": lambda: file_of("{" * MANY + "}" * MANY),
        "large: nested objects": lambda: file_of('{"a":' * (MANY // 5) + "}" * (MANY // 5)),
        "large: spaces and text": lambda: file_of(" " * MANY + "x"),
        "large: commas and spaces and text": lambda: file_of("{" + ", " * (MANY // 2) + "x}"),
        "large: spaces before no colon": lambda: file_of('{"a"' + " " * MANY + "}"),
        "large: spaces around a colon": lambda: file_of(
            '{"a"' + " " * MANY + ":" + " " * MANY + "}"
        ),
        "large: colons": lambda: file_of('{"a"' + ":" * MANY + "}"),
        "large: an error at the end of many pairs": lambda: file_of(
            "{" + '"a":"b",' * (MANY // 8) + "x}"
        ),
    },
    None: {
        "large: a string of backslashes": lambda: file_of('{"a":"' + "\\" * MANY + '"}'),
        "large: a string of quotes": lambda: file_of('{"a":"' + '\\"' * (MANY // 2) + '"}'),
        "large: a long string": lambda: file_of('{"a":"' + "x" * MANY + '"}'),
        "large: spaces": lambda: file_of("{" + " " * MANY + "}"),
        "large: spaces around": lambda: file_of(" " * MANY + "{}" + " " * MANY),
        "large: commas": lambda: file_of("{" + "," * MANY + "}"),
        "large: one pair very often": lambda: file_of("{" + '"a":"b"' * (MANY // 7) + "}"),
        "large: an escape in every string": lambda: file_of(
            "{" + '"\\n":"\\t"' * (MANY // 9) + "}"
        ),
        "large: spaces of every length": lambda: file_of(
            "{" + "".join(f'"a":"b"{" " * i}' for i in range(2400)) + "}"
        ),
    },
}

TABLES = (ROWS, METADATA, OURS)

WITHOUT_MAGIC = {
    errors.TruncatedFile: {"nothing": b"", "four letters": b"NOPE"},
    errors.BadHeader: {"another magic": file_of(magic=b"OXCL")},
}
"""Files that only their suffix makes files of this format."""
