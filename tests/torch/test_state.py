"""What a store asks of torch: kinds, memory, filling in place."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from standfast.errors import BadField, UnknownFramework, UnsupportedTensor
from standfast.tensors import (
    Packed,
    Source,
    TensorSpec,
    fill,
    kind_of,
    memory_of,
    source_of,
    stretch_of,
    tensor_of,
)
from standfast.torch import framework as adapter


def _array(source: Source) -> np.ndarray[Any, Any]:
    out = np.empty(source.spec.nbytes, np.uint8)
    source.copy_to(out, 0)
    return source.spec.view(out)


KINDS = {
    "torch": lambda: torch.randn(3),
    "torch:grad": lambda: torch.randn(3, requires_grad=True),
    "torch:Parameter": lambda: torch.nn.Parameter(torch.randn(3)),
    "torch:Parameter:frozen": lambda: torch.nn.Parameter(torch.arange(3), requires_grad=False),
    "numpy": lambda: np.arange(3),
    "packed": lambda: Packed(np.arange(3, dtype=np.uint8), "float6_e2m3fn", (4,)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_comes_back_as_it_was(kind):
    value = KINDS[kind]()
    assert kind_of(value) == kind
    source = source_of(value)
    array = _array(source)
    back = tensor_of(array, source.spec, kind)
    assert type(back) is type(value)
    assert kind_of(back) == kind
    assert source_of(back).spec == source.spec
    array[0] = 5
    assert _array(source_of(back))[0] == 5  # the memory is shared


class Mine(torch.Tensor):
    pass


@pytest.mark.parametrize(
    "value",
    [torch.ones(1).as_subclass(Mine), torch.Size([1]), np.zeros((1, 1)).view(np.matrix), 3],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_another_type_has_no_kind(value):
    with pytest.raises(UnsupportedTensor, match=type(value).__name__):
        kind_of(value)


def test_what_was_computed_is_a_plain_tensor():
    assert kind_of(torch.randn(3, requires_grad=True) * 2) == "torch"


@pytest.mark.parametrize("kind", ["", "torch:", "torch:Buffer", "torch.nn", "os", "mx", "x" * 999])
def test_an_unknown_kind_is_refused(kind):
    with pytest.raises(UnknownFramework) as caught:
        tensor_of(np.zeros(2), TensorSpec("float64", (2,)), kind)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", ["torch:grad", "torch:Parameter", "packed"])
def test_a_kind_that_cannot_be_is_refused(kind):
    with pytest.raises(BadField):
        tensor_of(np.zeros(2, np.int64), TensorSpec("int64", (2,)), kind)


def test_strides_that_torch_has_not_are_refused():
    backwards = np.arange(4.0)[::-1]
    with pytest.raises(UnsupportedTensor):
        tensor_of(backwards, TensorSpec("float64", (4,)), "torch")


def test_memory_is_counted_in_bytes():
    x = torch.arange(24, dtype=torch.int16).reshape(4, 6)
    memory = memory_of(x[1:3, ::2])
    assert memory is not None
    assert memory.address == x.data_ptr() + 12
    assert (memory.space, memory.itemsize) == ("cpu", 2)
    assert (memory.shape, memory.strides) == ((2, 3), (12, 4))
    assert memory.span() == (x.data_ptr() + 12, x.data_ptr() + 34)
    y = np.arange(5)
    backwards = memory_of(y[::-1])
    whole = memory_of(y)
    assert backwards is not None
    assert whole is not None
    assert backwards.span() == whole.span()
    assert backwards.address == whole.span()[1] - 8


def test_there_is_no_memory_where_values_do_not_lie():
    x = torch.randn(3, dtype=torch.complex64)
    freed = torch.randn(3)
    freed.untyped_storage().resize_(0)
    for value in (x.conj(), x.conj().imag, x[:0], freed, np.arange(3, dtype=">f4"), np.ones(0)):
        assert memory_of(value) is None


@pytest.mark.parametrize("way", [stretch_of, adapter._in_storage], ids=["CPU", "accelerator"])
def test_a_stretch_of_memory_outlives_the_tensor(way):
    x = torch.arange(8, dtype=torch.int32)
    part = x[3:5]
    start = x.data_ptr() + 4
    source = way(part, start, start + 24)
    del x, part
    assert source.spec == TensorSpec("uint8", (24,))
    assert _array(source).view(np.int32).tolist() == [1, 2, 3, 4, 5, 6]


FILLED: dict[str, Callable[[], Any]] = {
    "plain": lambda: torch.zeros(3, 4),
    "transposed": lambda: torch.zeros(4, 3).T,
    "sliced": lambda: torch.zeros(6, 8)[::2, 1:5],
    "a leaf": lambda: torch.zeros(3, 4, requires_grad=True),
    "a parameter": lambda: torch.nn.Parameter(torch.zeros(3, 4)),
    "conjugated": lambda: torch.zeros(3, 4, dtype=torch.complex64).conj(),
    **{
        name: partial(torch.zeros, 3, 4, dtype=getattr(torch, name))
        for name in ("bfloat16", "float8_e4m3fn", "bool", "uint16", "complex128")
    },
    "NumPy": lambda: np.zeros((3, 4)),
    "NumPy, scattered": lambda: np.zeros((8, 6), np.float32)[1:5, ::-2].T,
    "NumPy, big-endian": lambda: np.zeros((3, 4), ">i4"),
    "packed": lambda: Packed(np.zeros(6, np.uint8), "float4_e2m1fn", (3, 4)),
    "permuted": lambda: torch.zeros(4, 5, 6).permute(2, 0, 1),
    "diagonal": lambda: torch.zeros(4, 5, 6).diagonal(dim1=0, dim2=2),
    "inner diagonal": lambda: torch.zeros(4, 5, 6).diagonal(dim1=1, dim2=2),
    "unfolded": lambda: torch.zeros(4, 5, 6).unfold(2, 2, 2),
    "expanded by one": lambda: torch.zeros(4, 5, 6)[:1].expand(1, 5, 6),
    "expanded, empty": lambda: torch.zeros(4, 5, 6)[:0].expand(0, 5, 6),
    "expanded, one": lambda: torch.zeros(()).expand(1, 1),
    "imaginary": lambda: torch.view_as_complex(torch.zeros(4, 15, 2)).imag,
}


@pytest.mark.parametrize("name", FILLED)
def test_tensors_are_filled_in_place(name):
    for is_read_only in (False, True):
        value = FILLED[name]()
        spec = source_of(value).spec
        data = np.arange(spec.nbytes, dtype=np.uint8) % 2
        data.flags.writeable = not is_read_only
        fill(value, spec.view(data), spec)
        assert _array(source_of(value)).tobytes() == data.tobytes()
        assert getattr(value, "grad_fn", None) is None


@pytest.mark.parametrize(
    "target",
    [
        torch.zeros(1, 2).expand(3, 2),
        torch.zeros(4).as_strided((3, 2), (1, 1)),
        np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (3, 2), (4, 4)),
    ],
    ids=["expanded", "sliding", "sliding array"],
)
def test_elements_that_share_memory_are_not_filled(target):
    with pytest.raises(UnsupportedTensor):
        fill(target, np.arange(6, dtype=np.float32).reshape(3, 2), TensorSpec("float32", (3, 2)))
    assert not target.any()


def test_what_cannot_be_written_to_is_refused():
    spec = TensorSpec("float32", (2,))
    read_only = np.zeros(2, np.float32)
    read_only.flags.writeable = False
    for target in (read_only, torch.zeros(3)):
        with pytest.raises(UnsupportedTensor):
            fill(target, np.ones(2, np.float32), spec)
        assert not target.any()
