"""NumPy's .npy header: read as NumPy reads it, written byte for byte as NumPy writes it."""

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

from standfast import errors
from standfast.formats.npz.npy_header import (
    CODE_OF,
    MAX_HEADER,
    ArrayHeader,
    read_header,
    write_header,
)
from standfast.tensors import DTYPES, TensorSpec
from tests.formats.builders import Array
from tests.formats.npz.malformed import fields, header_of
from tests.fuzz.limits import processor_limit


def saved(array: Array, version: tuple[int, int] | None = None) -> bytes:
    target = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        np.lib.format.write_array(target, array, version)
    return target.getvalue()


def seen_by_numpy(data: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about a header of Python 2
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        return np.lib.format.read_array_header_2_0(file)


shapes = st.lists(st.integers(0, 12), max_size=5).map(tuple)
VERSIONS = [(1, 0), (2, 0), (3, 0)]


@given(st.sampled_from(sorted(CODE_OF)), shapes)
@settings(max_examples=200, deadline=None)
def test_we_write_what_numpy_writes(dtype, shape):
    array = np.zeros(shape, DTYPES[dtype].numpy)
    data = saved(array)
    own = write_header(TensorSpec(dtype, shape))
    assert own + array.tobytes() == data
    assert read_header(data) == ArrayHeader(dtype, shape, False, False, len(own))


@pytest.mark.parametrize("shape", [(10**n,) for n in range(18)] + [(1,) * 64, (7, 10**17)])
def test_each_length_of_text_is_padded_as_numpy_does(shape):
    target = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(target, header)
    assert write_header(TensorSpec("float32", shape)) == target.getvalue()


@given(
    *(st.sampled_from(each) for each in (sorted(CODE_OF), "<>=", VERSIONS)), shapes, st.booleans()
)
@settings(max_examples=200, deadline=None)
def test_we_read_what_numpy_writes(dtype, order, version, shape, fortran):
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
    "space first": "  " + fields(),
    "another order": "{'shape': (3,), 'descr': '<f4', 'fortran_order': False}",
    "double quotes": '{"descr": "<f4", "fortran_order": False, "shape": (3,)}',
    "Python 2": fields(shape="(3L,)"),
    "Python 2 and a space": fields(shape="(3 L,)"),
    "no byte order": fields("'f4'"),
    "its own byte order": fields("'=f4'"),
    "no matter which": fields("'|f4'"),
}


@pytest.mark.parametrize("name", ODD_BUT_READ)
def test_what_is_odd_is_read_as_numpy_reads_it(name):
    data = header_of(ODD_BUT_READ[name])
    found = read_header(data)
    assert (found.dtype, found.shape, found.fortran_order) == ("float32", (3,), False)
    assert seen_by_numpy(data) == ((3,), False, np.dtype("<f4"))


def test_a_single_byte_has_no_order():
    for name in ("uint8", "bool"):
        assert not read_header(header_of(fields(f"'>{CODE_OF[name]}'"))).big_endian


@pytest.mark.parametrize("version", VERSIONS)
def test_a_header_cut_anywhere_is_truncated(version):
    data = saved(np.zeros((2, 3)), version)
    size = read_header(data).size
    assert read_header(data[:size]) == read_header(data)
    for length in range(size):
        with pytest.raises(errors.TruncatedFile):
            read_header(data[:length])


def test_deep_nesting_is_refused_at_once():
    for text in ("(" * 60_000, "{" * 60_000, fields(shape="(" * 60_000), fields("[" * 60_000)):
        limit = sys.getrecursionlimit()
        with processor_limit(0.5), pytest.raises(errors.StandfastError):
            read_header(header_of(text))
        assert sys.getrecursionlimit() == limit


def test_the_longest_header_is_read():
    text = fields() + " " * (MAX_HEADER - 12 - len(fields()) - 1)
    assert read_header(header_of(text, (2, 0))).size == MAX_HEADER
    with pytest.raises(errors.LimitExceeded):
        read_header(header_of(text + " ", (2, 0)))


def test_what_we_read_after_random_damage_numpy_reads_too():
    rng = random.Random(1)
    seeds = [saved(np.zeros(shape, "<f4")) for shape in ((), (3,), (2, 12), (0, 7))]
    seeds += [header_of(text) for text in ODD_BUT_READ.values()]
    accepted = 0
    for _ in range(5000):
        data = bytearray(rng.choice(seeds))
        for _ in range(rng.randint(1, 2)):
            at = rng.randrange(8, len(data))
            data[at] = rng.choice((rng.randrange(256), *b"0123456789(),<>'L \n"))
        try:
            found = read_header(bytes(data))
        except errors.StandfastError:
            continue
        accepted += 1
        shape, fortran_order, dtype = seen_by_numpy(bytes(data))
        assert (found.shape, found.fortran_order) == (shape, fortran_order)
        assert DTYPES[found.dtype].numpy == dtype.newbyteorder("=")
        assert found.big_endian == (dtype.str[0] == ">")
    assert accepted > 150


def test_a_dtype_that_numpy_would_not_give_back_is_refused():
    for dtype in DTYPES.keys() - CODE_OF.keys():
        with pytest.raises(errors.UnsupportedDType, match=dtype):
            write_header(TensorSpec(dtype, (2,)))
    for lost in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        with pytest.raises(errors.UnknownDType):
            read_header(saved(np.zeros(2, lost)))


@pytest.mark.parametrize("shape", [(1,) * 65, (2**59, 0), (2**40, 2**40)])
def test_a_shape_that_we_would_not_read_is_not_written(shape):
    with pytest.raises(errors.UnsupportedShape):
        write_header(TensorSpec("float32", shape))
