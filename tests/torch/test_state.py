"""What a store asks of torch: kinds, memory, filling in place."""

from __future__ import annotations

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
def test_every_kind_comes_back_as_it_was(kind: str) -> None:
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


def test_what_was_computed_comes_back_without_its_history() -> None:
    assert kind_of(torch.randn(3, requires_grad=True) * 2) == "torch"


class Mine(torch.Tensor):
    pass


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(1).as_subclass(Mine), "Mine would come back as a plain tensor"),
        (torch.Size([1]), "Size is not a tensor"),
        (np.zeros((1, 1)).view(np.matrix), r"matrix .*numpy.asarray"),
        (3, "int is not a tensor"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_another_type_has_no_kind(value: Any, message: str) -> None:
    with pytest.raises(UnsupportedTensor, match=message):
        kind_of(value)


@pytest.mark.parametrize("kind", ["", "torch:", "torch:Buffer", "torch.nn", "os", "mx", "x" * 999])
def test_a_kind_that_nobody_has_is_refused(kind: str) -> None:
    with pytest.raises(UnknownFramework) as caught:
        tensor_of(np.zeros(2), TensorSpec("float64", (2,)), kind)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("kind", ["torch:grad", "torch:Parameter", "packed"])
def test_a_kind_that_cannot_be_is_refused(kind: str) -> None:
    with pytest.raises(BadField):
        tensor_of(np.zeros(2, np.int64), TensorSpec("int64", (2,)), kind)


def test_strides_that_torch_has_not_are_refused() -> None:
    backwards = np.arange(4.0)[::-1]
    with pytest.raises(UnsupportedTensor, match="strides"):
        tensor_of(backwards, TensorSpec("float64", (4,)), "torch")


def test_memory_is_counted_in_bytes() -> None:
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


def test_there_is_no_memory_where_values_do_not_lie() -> None:
    x = torch.randn(3, dtype=torch.complex64)
    freed = torch.randn(3)
    freed.untyped_storage().resize_(0)
    for value in (x.conj(), x.conj().imag, x[:0], freed, np.arange(3, dtype=">f4"), np.ones(0)):
        assert memory_of(value) is None


@pytest.mark.parametrize("way", [stretch_of, adapter._in_storage], ids=["CPU", "accelerator"])
def test_a_stretch_of_memory_outlives_the_tensor(way: Any) -> None:
    x = torch.arange(8, dtype=torch.int32)
    part = x[3:5]
    start = x.data_ptr() + 4
    source = way(part, start, start + 24)
    del x, part
    assert source.spec == TensorSpec("uint8", (24,))
    assert _array(source).view(np.int32).tolist() == [1, 2, 3, 4, 5, 6]


FILLED = {
    "plain": lambda: torch.zeros(3, 4),
    "transposed": lambda: torch.zeros(4, 3).T,
    "sliced": lambda: torch.zeros(6, 8)[::2, 1:5],
    "a leaf": lambda: torch.zeros(3, 4, requires_grad=True),
    "a parameter": lambda: torch.nn.Parameter(torch.zeros(3, 4)),
    "bfloat16": lambda: torch.zeros(3, 4, dtype=torch.bfloat16),
    "float8": lambda: torch.zeros(3, 4, dtype=torch.float8_e4m3fn),
    "bool": lambda: torch.zeros(3, 4, dtype=torch.bool),
    "uint16": lambda: torch.zeros(3, 4, dtype=torch.uint16),
    "complex": lambda: torch.zeros(3, 4, dtype=torch.complex128),
    "conjugated": lambda: torch.zeros(3, 4, dtype=torch.complex64).conj(),
    "NumPy": lambda: np.zeros((3, 4)),
    "NumPy, scattered": lambda: np.zeros((8, 6), np.float32)[1:5, ::-2].T,
    "NumPy, big-endian": lambda: np.zeros((3, 4), ">i4"),
    "packed": lambda: Packed(np.zeros(6, np.uint8), "float4_e2m1fn", (3, 4)),
}


@pytest.mark.parametrize("read_only", [False, True], ids=["writable", "read-only"])
@pytest.mark.parametrize("name", FILLED)
def test_tensors_are_filled_in_place(name: str, read_only: bool) -> None:
    value = FILLED[name]()
    spec = source_of(value).spec
    data = np.arange(spec.nbytes, dtype=np.uint8) % 2
    data.flags.writeable = not read_only
    fill(value, spec.view(data), spec)
    assert _array(source_of(value)).tobytes() == data.tobytes()
    assert getattr(value, "grad_fn", None) is None


def test_arrays_of_any_strides_fill_torch() -> None:
    value = torch.zeros(4, dtype=torch.float64)
    fill(value, np.arange(4.0)[::-1], TensorSpec("float64", (4,)))
    assert value.tolist() == [3, 2, 1, 0]


@pytest.mark.parametrize(
    "target",
    [
        torch.zeros(1, 2).expand(3, 2),
        torch.zeros(4).as_strided((3, 2), (1, 1)),
        np.lib.stride_tricks.as_strided(np.zeros(4, np.float32), (3, 2), (4, 4)),
    ],
    ids=["expanded", "sliding", "sliding array"],
)
def test_elements_that_share_memory_are_not_filled(target: Any) -> None:
    with pytest.raises(UnsupportedTensor, match="share memory"):
        fill(target, np.arange(6, dtype=np.float32).reshape(3, 2), TensorSpec("float32", (3, 2)))
    assert not target.any()


@pytest.mark.parametrize(
    "view",
    [
        lambda base: base.permute(2, 0, 1),
        lambda base: base[1:, ::2, 1:4],
        lambda base: base.diagonal(dim1=1, dim2=2),
        lambda base: base.diagonal(dim1=0, dim2=2),
        lambda base: base.unfold(2, 2, 2),
        lambda base: base[:1].expand(1, 5, 6),
        lambda base: base[:0].expand(0, 5, 6),
        lambda base: base[0, 0, 0].expand(1, 1),
        lambda base: torch.view_as_complex(base.reshape(4, 15, 2)).imag,
    ],
)
def test_views_whose_elements_are_their_own_are_filled(view: Any) -> None:
    target = view(torch.zeros(4, 5, 6))
    spec = source_of(target).spec
    values = np.arange(1, spec.size + 1, dtype=np.float32).reshape(spec.shape)
    fill(target, values, spec)
    assert target.numpy().tolist() == values.tolist()


def test_what_cannot_be_written_to_is_refused() -> None:
    spec = TensorSpec("float32", (2,))
    read_only = np.zeros(2, np.float32)
    read_only.flags.writeable = False
    with pytest.raises(UnsupportedTensor, match="read-only"):
        fill(read_only, np.ones(2, np.float32), spec)
    with pytest.raises(UnsupportedTensor, match="cannot be filled"):
        fill(torch.zeros(3), np.ones(2, np.float32), spec)
