"""Torch tensors of every kind go in and come out as they were, or are refused by name."""

import io

import pytest
import torch
from torch._subclasses import FakeTensorMode

import standfast
from standfast.files.writer import write_stream
from standfast.formats.safetensors import file as safetensors
from standfast.formats.safetensors.file import CODE_OF
from standfast.torch import framework as adapter
from tests.kit.stores import same

DTYPES = [getattr(torch, name) for name in CODE_OF if hasattr(torch, name)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_layout_comes_back(dtype, tmp_path):
    base = torch.randint(0, 2, (6, 8, 10)).to(dtype)
    tensors = {
        "plain": base,
        "transposed": base.transpose(0, 2),
        "sliced": base[1:, ::3, 2:],
        "expanded": base[:1].expand(4, 8, 10),
        "scalar": base[0, 0, 0],
        "empty": base[:0],
    }
    path = tmp_path / "state.safetensors"
    standfast.save(path, tensors)
    loaded = standfast.load(path, framework="torch")
    assert same(loaded, tensors)
    loaded["plain"].zero_()  # they are writable and share no memory with each other or the file
    assert same(loaded["transposed"], tensors["transposed"])
    assert same(standfast.load(path, framework="torch"), tensors)


def test_lazy_conjugates_and_negatives_are_saved_as_what_they_mean(tmp_path):
    values = torch.randn(4, 3, dtype=torch.complex64)
    tensors = {"conjugate": values.conj(), "negative": values.conj().imag, "both": values.mH}
    assert tensors["negative"].is_neg()
    standfast.save(tmp_path / "state.safetensors", tensors)
    loaded = standfast.load(tmp_path / "state.safetensors", framework="torch")
    for name, tensor in tensors.items():
        assert torch.equal(loaded[name], tensor.resolve_conj().resolve_neg())


def test_a_model_and_its_parameters_go_in_as_they_are(tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))
    expected = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for state in (model.state_dict(), model.named_parameters()):
        standfast.save(tmp_path / "a.safetensors", state)
        loaded = standfast.load(tmp_path / "a.safetensors", framework="torch")
        assert same({name: loaded[name] for name in expected}, expected)


def _freed(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(0)
    return tensor


def _fake() -> torch.Tensor:
    with FakeTensorMode():
        return torch.ones(3)


PLAINLESS = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta device": lambda: torch.empty(3, device="meta"),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2)], layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "complex128": lambda: torch.ones(3, dtype=torch.complex128),
    "freed": lambda: _freed(torch.randn(3)),
    "65 dimensions": lambda: torch.zeros((1,) * 65),
    "lazy module": lambda: torch.nn.LazyLinear(2).weight,
    "complex32": lambda: torch.ones(3, dtype=torch.complex32),
    "fake": _fake,
}


@pytest.mark.parametrize("reason", PLAINLESS)
@pytest.mark.filterwarnings("ignore")
def test_what_has_no_plain_bytes_is_refused_by_name(reason, tmp_path):
    with pytest.raises(standfast.errors.RefusedTensor, match=r"layer\.weight"):
        standfast.save(tmp_path / "state.safetensors", {"layer.weight": PLAINLESS[reason]()})
    assert list(tmp_path.iterdir()) == []


def test_tensors_on_a_device_come_piece_by_piece_with_the_same_bytes():
    tensors = {
        "plain": torch.randn(300, 7),
        "transposed": torch.randn(64, 5000).bfloat16().T,
        "scalar": torch.tensor(3),
        "empty": torch.ones(0, 4),
    }
    direct, piecewise = io.BytesIO(), io.BytesIO()
    standfast.save(direct, tensors)
    sources = [adapter.DeviceSource(*adapter._spec_of(tensor), None) for tensor in tensors.values()]
    specs = [(name, source.spec) for name, source in zip(tensors, sources, strict=True)]
    write_stream(piecewise, safetensors.layout(specs, {}, True), sources)
    assert piecewise.getvalue() == direct.getvalue()
