"""Every optimizer of torch goes on from a checkpoint with the same bits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import standfast
from standfast.errors import RefusedState, StateMismatch
from standfast.tenzor import Checkpoint, CheckpointMetadata
from tests.kit.cases import kept
from tests.kit.stores import same
from tests.tenzor.models import bits, new_model, saved_and_resumed, train

CLASSES = sorted(
    name
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and name not in ("Optimizer", "SparseAdam")
)


def groups(parameters: Any) -> optim.Optimizer:
    first, second = parameters
    return optim.AdamW(
        [{"params": [second], "lr": 0.1, "weight_decay": 0.0}, {"params": [first], "lr": 0.2}]
    )


VARIANTS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD with Nesterov's": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam with amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "Adam with a rate that is a tensor": lambda p: optim.Adam(p, lr=torch.tensor(0.01)),
    "AdamW with several groups": groups,
    "RMSprop, centered": lambda p: optim.RMSprop(p, centered=True, momentum=0.5),
    "LBFGS with a line search": lambda p: optim.LBFGS(p, line_search_fn="strong_wolfe"),
    **{name: getattr(optim, name) for name in CLASSES},
}


@pytest.mark.parametrize(
    "dtype", kept((torch.float32, torch.float64, torch.bfloat16), torch.float32)
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_optimizer_goes_on_with_the_same_bits(variant, dtype, tmp_path):
    make, path = VARIANTS[variant], tmp_path / "it.tenzor"
    model = new_model(dtype)
    optimizer = make(model.parameters())
    train(model, optimizer, range(3))
    new = new_model(dtype, seed=1)
    resumed = saved_and_resumed(path, model, optimizer, new, make)
    path.write_bytes(bytes(path.stat().st_size))  # which the state outlives
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())
    for each, its in ((model, optimizer), (new, resumed)):
        train(each, its, range(3, 6))
    assert bits(new.state_dict()) == bits(model.state_dict())
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


def test_sparse_adam_goes_on_with_the_same_bits(tmp_path):
    model, new = nn.Embedding(5, 3, sparse=True), nn.Embedding(5, 3, sparse=True)

    def step(model: nn.Embedding, optimizer: Any) -> None:
        optimizer.zero_grad()
        model(torch.tensor([1, 3])).pow(2).sum().backward()
        optimizer.step()

    optimizer = optim.SparseAdam(model.parameters())
    step(model, optimizer)
    resumed = saved_and_resumed(tmp_path / "it.tenzor", model, optimizer, new, optim.SparseAdam)
    step(model, optimizer)
    step(new, resumed)
    assert bits(new.state_dict()) == bits(model.state_dict())
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (VARIANTS["SGD with momentum"], {"v": "momentum_buffer"}),
        (optim.Adam, {"m": "exp_avg", "v_hat": "exp_avg_sq"}),
        (VARIANTS["Adam with a rate that is a tensor"], {"m": "exp_avg", "v_hat": "exp_avg_sq"}),
        (VARIANTS["RMSprop, centered"], {"v": "momentum_buffer", "square_avg": "square_avg"}),
    ],
)
def test_slots_have_the_names_of_the_original(make, slots, tmp_path):
    model = new_model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(1))
    Checkpoint.save(tmp_path / "it.tenzor", model, optimizer, CheckpointMetadata())
    tensors, names = standfast.load(tmp_path / "it.tenzor"), ["0.weight", "2.weight"]
    assert list(tensors)[:2] == names
    if len(slots) == 2 and "m" in slots:  # steps and rates are metadata
        assert list(tensors)[2:] == [f"optim/{name}/{slot}" for name in names for slot in slots]
    for i, name in enumerate(names):
        for slot, key in slots.items():
            expected = optimizer.state_dict()["state"][i][key].numpy()
            assert np.array_equal(tensors[f"optim/{name}/{slot}"], expected)


def test_parameters_are_named_by_the_mapping_that_shares_their_memory(tmp_path):
    model, path = new_model(), tmp_path / "it.tenzor"
    optimizer = VARIANTS["SGD with momentum"](model.parameters())
    train(model, optimizer, range(1))
    first = model.state_dict()["0.weight"]
    Checkpoint.save(path, {"first": first}, optimizer, CheckpointMetadata())
    assert list(standfast.load(path)) == ["first", "optim/first/v", "optim/param.1/v"]
    # Names that would meet are kept apart.
    weights = {"optim/param.0/v": torch.zeros(2), "param.1": first}
    Checkpoint.save(path, weights, optimizer, CheckpointMetadata())
    resumed = VARIANTS["SGD with momentum"](new_model().parameters())
    with Checkpoint.load(path) as loaded:
        loaded.load_weights({"optim/param.0/v": torch.ones(2), "param.1": torch.ones(5, 6)})
        loaded.resume_optimizer(resumed)
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


class Velocity:
    """An optimizer of a program that has only NumPy."""

    state: Any = None

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_an_optimizer_of_numpy_is_kept(tmp_path):
    optimizer, resumed = Velocity(), Velocity()
    optimizer.state = {"v": np.arange(3.0), "count": 7, "rates": (0.2, float("inf"))}
    resumed.state = {"v": np.zeros(3), "count": 0, "rates": (0.1, float("nan"))}
    Checkpoint.save(tmp_path / "it.tenzor", {"w": np.ones(3)}, optimizer, CheckpointMetadata())
    with Checkpoint.load(tmp_path / "it.tenzor") as loaded:
        loaded.resume_optimizer(resumed)
    assert same(resumed.state, optimizer.state)


PARAMETERS = [torch.zeros(5, 6, requires_grad=True), torch.zeros(9, requires_grad=True)]


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda model: optim.Adam(model.parameters()), r"SGD.*Adam"),
        (lambda model: optim.SGD(list(model.parameters())[:1]), r"\[2\].*\[1\]"),
        (lambda model: optim.SGD(PARAMETERS), r"2\.weight.*\[9\]"),
        (lambda model: optim.SGD([*model.parameters()][::-1]), r"'0\.weight'.*'2\.weight'"),
    ],
    ids=["class", "number", "shape", "order"],
)
def test_another_optimizer_is_refused_and_left_alone(make, told, tmp_path):
    model = new_model()
    optimizer = optim.SGD(model.parameters(), momentum=0.9)
    train(model, optimizer, range(1))
    Checkpoint.save(tmp_path / "it.tenzor", model, optimizer, CheckpointMetadata())
    other = make(model)
    before = bits(other.state_dict())
    with Checkpoint.load(tmp_path / "it.tenzor") as loaded:
        loaded.load_weights(model)
        with pytest.raises(StateMismatch, match=told):
            loaded.resume_optimizer(other)
    assert bits(other.state_dict()) == before


def test_without_an_optimizer_there_is_nothing_to_resume(tmp_path):
    model = new_model()
    with pytest.raises(RefusedState, match="state_dict"):
        Checkpoint.save(tmp_path / "it.tenzor", model, {"v": 1}, CheckpointMetadata())
    assert list(tmp_path.iterdir()) == []
    Checkpoint.save(tmp_path / "it.tenzor", model, None, CheckpointMetadata())
    with Checkpoint.load(tmp_path / "it.tenzor") as loaded, pytest.raises(StateMismatch):
        loaded.resume_optimizer(optim.SGD(model.parameters()))
