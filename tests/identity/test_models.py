"""The MODEL part: names, classes, shapes and dtypes count, weights do not."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from standfast.errors import UnstableValue
from standfast.identity import identify
from standfast.identity.models import canonical_model
from standfast.tensors import Packed, TensorSpec


def model_hash(model: Any) -> str | None:
    return identify(model=model).model


class Tied(nn.Module):
    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 3)
        self.head = nn.Linear(3, 4, bias=False)
        if tied:
            self.head.weight = self.embedding.weight


class Buffered(nn.Module):
    def __init__(self, name: str = "mean", size: int = 3) -> None:
        super().__init__()
        self.register_buffer(name, torch.zeros(size))


def test_another_initialisation_and_training_are_the_same_model():
    torch.manual_seed(0)
    first, second = nn.Linear(10, 20), nn.Linear(10, 20)
    assert not torch.equal(first.weight, second.weight)
    second.eval().requires_grad_(False)
    assert model_hash(first) == model_hash(second)


def test_whatever_makes_a_model_another_makes_another_hash():
    models = [
        nn.Linear(10, 20),
        nn.Linear(10, 30),
        nn.Linear(20, 10),
        nn.Linear(10, 20, bias=False),
        nn.Linear(10, 20, dtype=torch.float64),
        nn.Sequential(nn.Linear(10, 20)),
        nn.Sequential(nn.Linear(10, 20), nn.ReLU()),
        nn.Sequential(nn.Linear(10, 20), nn.GELU()),
        nn.ModuleDict({"a": nn.Linear(10, 20)}),
        nn.ModuleDict({"b": nn.Linear(10, 20)}),
        Tied(tied=True),
        Tied(tied=False),
        nn.BatchNorm1d(3),
        nn.BatchNorm1d(3, track_running_stats=False),
        Buffered(),
        Buffered("median"),
        Buffered(size=4),
    ]
    assert len(set(map(model_hash, models))) == len(models)


def test_a_description_names_modules_parameters_and_buffers():
    model = nn.Sequential(nn.BatchNorm1d(3))
    assert canonical_model(model) == canonical_model(
        {
            "modules": {"": nn.Sequential, "0": nn.BatchNorm1d},
            "parameters": {
                "0.weight": TensorSpec("float32", (3,)),
                "0.bias": TensorSpec("float32", (3,)),
            },
            "buffers": {
                "0.running_mean": TensorSpec("float32", (3,)),
                "0.running_var": TensorSpec("float32", (3,)),
                "0.num_batches_tracked": TensorSpec("int64", ()),
            },
        }
    )


def test_a_module_used_twice_is_told_from_two_modules():
    layer = nn.Linear(2, 2)
    shared = nn.Sequential(layer, layer)
    assert model_hash(shared) != model_hash(nn.Sequential(layer, nn.Linear(2, 2)))
    assert model_hash(shared) != model_hash(nn.Sequential(layer))


def test_an_empty_module_counts_and_a_missing_one_does_not():
    class Holder(nn.Module):
        def __init__(self, inner: nn.Module | None) -> None:
            super().__init__()
            self.register_module("inner", inner)

    assert model_hash(Holder(nn.Sequential())) != model_hash(Holder(None))


def test_a_module_that_holds_itself_and_a_deep_one_are_described():
    loop = nn.Module()
    loop.add_module("again", loop)
    deep = nn.Identity()
    for _ in range(2000):
        deep = nn.Sequential(deep)  # type: ignore[assignment]
    assert model_hash(loop) != model_hash(deep)


def test_a_model_without_memory_is_the_same_model():
    with torch.device("meta"):
        empty = nn.Linear(10, 20)
    assert model_hash(empty) == model_hash(nn.Linear(10, 20))
    assert model_hash(dict(empty.state_dict())) == model_hash(nn.Linear(10, 20).state_dict())


def test_several_models_are_one():
    pair = {"generator": nn.Linear(1, 2), "critic": nn.Linear(2, 1)}
    assert model_hash(pair) == model_hash({name: pair[name] for name in ("critic", "generator")})
    modules = [nn.ModuleDict(dict(each)) for each in (pair.items(), reversed(pair.items()))]
    assert model_hash(modules[0]) == model_hash(modules[1])
    assert model_hash(pair) != model_hash({**pair, "critic": nn.Linear(3, 1)})


def test_tensors_by_name_count_by_dtype_and_shape():
    spec = model_hash({"layer": {"weight": TensorSpec("float32", (2, 3))}})
    assert spec == model_hash({"layer": {"weight": np.ones((2, 3), np.float32)}})
    assert spec == model_hash({"layer": {"weight": torch.zeros(3, 2).T}})
    assert spec != model_hash({"layer": {"weight": np.ones((3, 2), np.float32)}})
    assert spec != model_hash({"layer": {"weight": np.ones((2, 3), np.float64)}})
    assert spec != model_hash({"layer": {"bias": np.ones((2, 3), np.float32)}})
    packed = Packed(np.zeros(1, np.uint8), "float4_e2m1fn", (2,))
    assert model_hash([packed]) == model_hash([TensorSpec("float4_e2m1fn", (2,))])


def compiled(model: nn.Module) -> Any:
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel])
def test_a_wrapped_model_is_the_model_inside(wrap):
    assert model_hash(wrap(nn.Linear(2, 3))) == model_hash(nn.Linear(2, 3))
    parts = nn.Sequential(wrap(nn.Linear(2, 3)))
    assert model_hash(parts) == model_hash(nn.Sequential(nn.Linear(2, 3)))


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_counts_by_the_names_of_its_classes():
    def scripted(size: int, last: type[nn.Module]) -> Any:
        return torch.jit.script(nn.Sequential(nn.Linear(2, size), last()))

    made = model_hash(scripted(3, nn.ReLU))
    assert made == model_hash(scripted(3, nn.ReLU))
    assert made != model_hash(scripted(3, nn.Tanh))
    assert made != model_hash(scripted(4, nn.ReLU))
    assert made != model_hash(nn.Sequential(nn.Linear(2, 3), nn.ReLU()))


def test_a_plain_value_may_stand_for_a_model():
    assert model_hash("gpt2") != model_hash("gpt3")
    assert model_hash({"layers": 3}) != model_hash({"layers": 4})


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (nn.Sequential(nn.LazyLinear(3)), r"^model.*0\.weight"),
        ({"x": object()}, r"^model\.x"),
        ({"x": np.array([object()])}, r"^model\.x"),
    ],
)
def test_what_cannot_be_described_is_refused(model, path):
    with pytest.raises(UnstableValue, match=path):
        identify(model=model)
