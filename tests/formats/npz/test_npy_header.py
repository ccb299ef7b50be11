"""NumPy's .npy header: read as NumPy reads it, written byte for byte as NumPy writes it."""

from __future__ import annotations

import io
import random
import sys
import warnings
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.errors import (
    BadField,
    BadHeader,
    DuplicateKey,
    LimitExceeded,
    StandfastError,
    TruncatedFile,
    UnknownDType,
    UnsupportedDType,
    UnsupportedFile,
    UnsupportedShape,
)
from standfast.formats.npz.npy_header import (
    CODE_OF,
    MAX_HEADER,
    ArrayHeader,
    read_header,
    write_header,
)
from standfast.tensors import DTYPES, TensorSpec
from tests.formats.builders import Row
from tests.fuzz.limits import processor_limit

Array = np.ndarray[Any, Any]


def saved(array: Array, version: tuple[int, int] | None = None) -> bytes:
    target = io.BytesIO()
    np.lib.format.write_array(target, array, version)
    return target.getvalue()


def file_of(text: str | bytes, version: tuple[int, int] = (1, 0), end: bytes = b"\n") -> bytes:
    """A file whose header is this text."""
    body = (text if isinstance(text, bytes) else text.encode()) + end
    length = len(body).to_bytes(2 if version == (1, 0) else 4, "little")
    return b"\x93NUMPY" + bytes(version) + length + body


def header(descr: str = "'<f4'", order: str = "False", shape: str = "(3,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


def seen_by_numpy(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a header of Python 2
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        return np.lib.format.read_array_header_2_0(file)


shapes = st.lists(st.integers(0, 12), max_size=5).map(tuple)


@given(st.sampled_from(sorted(CODE_OF)), shapes)
@settings(max_examples=300, deadline=None)
def test_we_write_what_numpy_writes(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.zeros(shape, DTYPES[dtype].numpy)
    data = saved(array)
    own = write_header(TensorSpec(dtype, shape))
    assert own + array.tobytes() == data
    assert read_header(data) == ArrayHeader(dtype, shape, False, False, len(own))


@pytest.mark.parametrize("shape", [(10**n,) for n in range(18)] + [(1,) * 64, (7, 10**17)])
def test_each_length_of_text_is_padded_as_numpy_does(shape: tuple[int, ...]) -> None:
    target = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(target, fields)
    assert write_header(TensorSpec("float32", shape)) == target.getvalue()


@given(
    st.sampled_from(sorted(CODE_OF)),
    st.sampled_from("<>="),
    shapes,
    st.sampled_from([(1, 0), (2, 0), (3, 0)]),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_we_read_what_numpy_writes(
    dtype: str, order: str, shape: tuple[int, ...], version: tuple[int, int], fortran: bool
) -> None:
    array = np.zeros(shape, DTYPES[dtype].numpy.newbyteorder(order), "F" if fortran else "C")
    data = saved(array, version)
    found = read_header(data)
    assert (found.dtype, found.shape) == (dtype, shape)
    assert found.fortran_order == (fortran and not array.flags.c_contiguous)
    assert found.big_endian == (array.dtype.str[0] == ">")
    assert data[found.size :] == array.tobytes("A")


ODD_BUT_READ = {
    "no spaces": "{'descr':'<f4','fortran_order':False,'shape':(3,)}",
    "many spaces": "{ 'descr' :\t'<f4' , 'fortran_order' : False , 'shape' : ( 3 , ) , }",
    "lines": "{'descr': '<f4',\n 'fortran_order': False,\n 'shape': (3,)}",
    "space first": "  " + header(),
    "another order": "{'shape': (3,), 'descr': '<f4', 'fortran_order': False}",
    "double quotes": '{"descr": "<f4", "fortran_order": False, "shape": (3,)}',
    "Python 2": header(shape="(3L,)"),
    "Python 2 and a space": header(shape="(3 L,)"),
    "no byte order": header(descr="'f4'"),
    "its own byte order": header(descr="'=f4'"),
    "no matter which": header(descr="'|f4'"),
}


@pytest.mark.parametrize("name", ODD_BUT_READ)
def test_what_is_odd_is_read_as_numpy_reads_it(name: str) -> None:
    data = file_of(ODD_BUT_READ[name])
    found = read_header(data)
    assert (found.dtype, found.shape, found.fortran_order) == ("float32", (3,), False)
    assert seen_by_numpy(data) == ((3,), False, np.dtype("<f4"))


@pytest.mark.parametrize("name", ["uint8", "bool"])
def test_a_single_byte_has_no_order(name: str) -> None:
    assert not read_header(file_of(header(f"'>{CODE_OF[name]}'"))).big_endian


ROWS = (
    Row("no magic", b"\x93NUMPX\1\0", BadHeader),
    Row("a zip archive", b"PK\3\4" + bytes(100), BadHeader),
    Row("version 1.1", b"\x93NUMPY\1\1" + bytes(100), UnsupportedFile),
    Row("version 4.0", b"\x93NUMPY\4\0" + bytes(100), UnsupportedFile),
    Row("a long header", b"\x93NUMPY\2\0\0\0\1\0", LimitExceeded),
    Row("4 GiB of header", b"\x93NUMPY\2\0" + b"\xff" * 4, LimitExceeded),
    Row("not UTF-8", file_of(header("'\xff'").encode("latin-1"), (3, 0)), BadHeader),
    Row("no dict", file_of("('descr', )"), BadHeader),
    Row("a line break first", file_of("\n" + header()), BadHeader),
    Row("nothing", file_of(""), BadHeader),
    Row("an empty dict", file_of("{}"), BadField),
    Row("no end", file_of(header()[:-1]), BadHeader),
    Row("no comma", file_of("{'descr': '<f4' 'fortran_order': False}"), BadHeader),
    Row("two commas", file_of(header() + ","), BadHeader),
    Row("no colon", file_of("{'descr' '<f4'}"), BadHeader),
    Row("a set", file_of("{'descr'}"), BadHeader),
    Row("no quotes", file_of("{descr: '<f4'}"), BadHeader),
    Row("an open quote", file_of("{'descr: 1}"), BadHeader),
    Row("an escape", file_of(header(r"'\x3cf4'")), BadHeader),
    Row("an unknown key", file_of(header()[:-1] + "'more': 1}"), BadField),
    Row("a missing key", file_of("{'descr': '<f4', 'shape': ()}"), BadField),
    Row("a key twice", file_of(header()[:-1] + "'shape': ()}"), DuplicateKey),
    Row("a number as order", file_of(header(order="0")), BadField),
    Row("None as order", file_of(header(order="None")), BadField),
    Row("Truest", file_of(header(order="Truest")), BadField),
    Row("a list as shape", file_of(header(shape="[3]")), BadField),
    Row("a number as shape", file_of(header(shape="3")), BadField),
    Row("parentheses as shape", file_of(header(shape="(3)")), BadField),
    Row("a bare comma", file_of(header(shape="(,)")), BadField),
    Row("a negative dimension", file_of(header(shape="(-3,)")), BadField),
    Row("a boolean dimension", file_of(header(shape="(True,)")), BadField),
    Row("a float dimension", file_of(header(shape="(3.0,)")), BadHeader),
    Row("a leading zero", file_of(header(shape="(03,)")), BadField),
    Row("a hexadecimal one", file_of(header(shape="(0x3,)")), BadHeader),
    Row("a nested tuple", file_of(header(shape="((3,),)")), BadField),
    Row("an expression", file_of(header(shape="(3+4,)")), BadHeader),
    Row("Python 2 in version 3", file_of(header(shape="(3L,)"), (3, 0)), BadHeader),
    Row("65 dimensions", file_of(header(shape=f"({'1,' * 65})")), LimitExceeded),
    Row("2^59 rows", file_of(header(shape=f"({2**59},)")), LimitExceeded),
    Row("2^59 rows of nothing", file_of(header(shape=f"(0,{2**59})")), LimitExceeded),
    Row("60,000 digits", file_of(header(shape=f"({'9' * 60_000},)")), LimitExceeded),
    Row("2^116 bytes", file_of(header(shape=f"({2**57},{2**57})")), LimitExceeded),
    Row("2^62 and four bytes", file_of(header(shape=f"({2**30},0,{2**30 + 1})")), LimitExceeded),
    Row("objects", file_of(header("'|O'")), UnknownDType),
    Row("objects with a size", file_of(header("'O8'")), UnknownDType),
    Row("strings", file_of(header("'<U3'")), UnknownDType),
    Row("bytes", file_of(header("'|S3'")), UnknownDType),
    Row("void", file_of(header("'|V2'")), UnknownDType),
    Row("dates", file_of(header("'<M8[ns]'")), UnknownDType),
    Row("long doubles", file_of(header("'<f16'")), UnknownDType),
    Row("fields", file_of(header("[('a', '<f4')]")), UnknownDType),
    Row("a subarray", file_of(header("('<f4', (2,))")), UnknownDType),
    Row("no descr", file_of(header("None")), BadHeader),
    Row("an empty descr", file_of(header("''")), UnknownDType),
    Row("a long descr", file_of(header(f"'{'f' * 10_000}'")), UnknownDType),
    Row("control characters", file_of(header("'\x1b[2J'")), UnknownDType),
    Row("no newline", file_of(header(), end=b""), BadHeader),
    Row("no newline but spaces", file_of(header(), end=b"  "), BadHeader),
    Row("two newlines", file_of(header(), end=b"\n\n"), BadHeader),
    Row("a comment", file_of(header(), end=b" # more\n"), BadHeader),
    Row("a NUL as padding", file_of(header(), end=b"\0\n"), BadHeader),
)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_a_header_cut_anywhere_is_truncated(version: tuple[int, int]) -> None:
    data = saved(np.zeros((2, 3)), version)
    size = read_header(data).size
    assert read_header(data[:size]) == read_header(data)
    for length in range(size):
        with pytest.raises(TruncatedFile):
            read_header(data[:length])


def test_deep_nesting_is_refused_at_once() -> None:
    for text in ("(" * 60_000, "{" * 60_000, header(shape="(" * 60_000), header("[" * 60_000)):
        limit = sys.getrecursionlimit()
        with processor_limit(0.5), pytest.raises(StandfastError):
            read_header(file_of(text))
        assert sys.getrecursionlimit() == limit


def test_the_longest_header_is_read() -> None:
    text = header() + " " * (MAX_HEADER - 12 - len(header()) - 1)
    assert read_header(file_of(text, (2, 0))).size == MAX_HEADER
    with pytest.raises(LimitExceeded):
        read_header(file_of(text + " ", (2, 0)))


def test_what_we_read_after_random_damage_numpy_reads_too() -> None:
    random_source = random.Random(1)
    seeds = [saved(np.zeros(shape, "<f4")) for shape in ((), (3,), (2, 12), (0, 7))]
    seeds += [file_of(text) for text in ODD_BUT_READ.values()]
    accepted = 0
    for _ in range(10_000):
        data = bytearray(random_source.choice(seeds))
        for _ in range(random_source.randint(1, 2)):
            at = random_source.randrange(8, len(data))
            data[at] = random_source.choice(
                (random_source.randrange(256), *b"0123456789(),<>'L \n")
            )
        try:
            found = read_header(bytes(data))
        except StandfastError:
            continue
        accepted += 1
        shape, fortran_order, dtype = seen_by_numpy(bytes(data))
        assert (found.shape, found.fortran_order) == (shape, fortran_order)
        assert DTYPES[found.dtype].numpy == dtype.newbyteorder("=")
        assert found.big_endian == (dtype.str[0] == ">")
    assert accepted > 300


@pytest.mark.parametrize("dtype", sorted(DTYPES.keys() - CODE_OF.keys()))
def test_a_dtype_that_numpy_would_not_give_back_is_refused(dtype: str) -> None:
    with pytest.raises(UnsupportedDType, match=dtype):
        write_header(TensorSpec(dtype, (2,)))


@pytest.mark.parametrize(
    "dtype", [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
)
def test_numpy_itself_loses_these_dtypes(dtype: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        data = saved(np.zeros(2, dtype))
    with pytest.raises(UnknownDType):
        read_header(data)


@pytest.mark.parametrize("shape", [(1,) * 65, (2**59, 0), (2**40, 2**40)])
def test_a_shape_that_we_would_not_read_is_not_written(shape: tuple[int, ...]) -> None:
    with pytest.raises(UnsupportedShape):
        write_header(TensorSpec("float32", shape))
