"""Every optimizer of torch goes on from a checkpoint with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn, optim

import standfast
from standfast.errors import RefusedState, StateMismatch
from standfast.tenzor import Checkpoint, CheckpointMetadata
from tests.tenzor.models import bits, new_model, saved_and_resumed, train

CLASSES = sorted(
    name
    for name, kind in vars(optim).items()
    if isinstance(kind, type) and name not in ("Optimizer", "SparseAdam")
)
VARIANTS: dict[str, Callable[[Any], optim.Optimizer]] = {
    "SGD with momentum": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "SGD with Nesterov's": lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "Adam with amsgrad": lambda p: optim.Adam(p, amsgrad=True),
    "Adam with a rate that is a tensor": lambda p: optim.Adam(p, lr=torch.tensor(0.01)),
    "RMSprop, centered": lambda p: optim.RMSprop(p, centered=True, momentum=0.5),
    "LBFGS with a line search": lambda p: optim.LBFGS(p, line_search_fn="strong_wolfe"),
    **{name: getattr(optim, name) for name in CLASSES},
}


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float32,
        *(pytest.param(d, marks=pytest.mark.long) for d in (torch.float64, torch.bfloat16)),
    ],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_optimizer_goes_on_with_the_same_bits(
    variant: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    make = VARIANTS[variant]
    model = new_model(dtype)
    optimizer = make(model.parameters())
    train(model, optimizer, range(3))
    new = new_model(dtype, seed=1)
    resumed = saved_and_resumed(tmp_path / "it.tenzor", model, optimizer, new, make)
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())
    for each, its in ((model, optimizer), (new, resumed)):
        train(each, its, range(3, 6))
    assert bits(new.state_dict()) == bits(model.state_dict())
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


def test_sparse_adam_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    def made(seed: int) -> tuple[nn.Embedding, optim.Optimizer]:
        weights = torch.randn(5, 3, generator=torch.Generator().manual_seed(seed))
        model = nn.Embedding(5, 3, sparse=True, _weight=weights)
        return model, optim.SparseAdam(model.parameters())

    def step(model: nn.Embedding, optimizer: optim.Optimizer) -> None:
        optimizer.zero_grad()
        model(torch.tensor([1, 3])).pow(2).sum().backward()
        optimizer.step()

    (model, optimizer), (new, resumed) = made(0), made(1)
    step(model, optimizer)
    Checkpoint.save(tmp_path / "it.tenzor", model, optimizer, CheckpointMetadata())
    with Checkpoint.load(tmp_path / "it.tenzor") as loaded:
        loaded.load_weights(new)
        loaded.resume_optimizer(resumed)
    step(model, optimizer)
    step(new, resumed)
    assert bits(new.state_dict()) == bits(model.state_dict())
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


def _groups(parameters: Any) -> optim.Optimizer:
    first, second = parameters
    return optim.AdamW(
        [{"params": [second], "lr": 0.1, "weight_decay": 0.0}, {"params": [first], "lr": 0.2}]
    )


def test_several_groups_go_on_with_the_same_bits(tmp_path: Path) -> None:
    model, new = new_model(), new_model(seed=1)
    optimizer = _groups(model.parameters())
    train(model, optimizer, range(2))
    path = tmp_path / "it.tenzor"
    resumed = saved_and_resumed(path, model, optimizer, new, _groups)
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())
    assert "optim/2.weight/m" in standfast.load(path)


@pytest.mark.parametrize(
    ("make", "slots"),
    [
        (VARIANTS["SGD with momentum"], {"v": "momentum_buffer"}),
        (optim.Adam, {"m": "exp_avg", "v_hat": "exp_avg_sq"}),
        (VARIANTS["RMSprop, centered"], {"v": "momentum_buffer", "square_avg": "square_avg"}),
    ],
)
def test_slots_have_the_names_of_the_original(
    make: Callable[[Any], optim.Optimizer], slots: dict[str, str], tmp_path: Path
) -> None:
    model = new_model()
    optimizer = make(model.parameters())
    train(model, optimizer, range(1))
    Checkpoint.save(tmp_path / "it.tenzor", model, optimizer, CheckpointMetadata())
    tensors = standfast.load(tmp_path / "it.tenzor")
    assert list(tensors)[:2] == ["0.weight", "2.weight"]
    for i, name in enumerate(("0.weight", "2.weight")):
        for slot, key in slots.items():
            expected = optimizer.state_dict()["state"][i][key].numpy()
            assert np.array_equal(tensors[f"optim/{name}/{slot}"], expected)


def test_steps_and_rates_are_metadata_and_no_tensors(tmp_path: Path) -> None:
    model = new_model()
    optimizer = optim.Adam(model.parameters(), lr=torch.tensor(0.01))
    train(model, optimizer, range(1))
    Checkpoint.save(tmp_path / "it.tenzor", model, optimizer, CheckpointMetadata())
    names = ["0.weight", "2.weight"]
    slots = [f"optim/{name}/{slot}" for name in names for slot in ("m", "v_hat")]
    assert list(standfast.load(tmp_path / "it.tenzor")) == names + slots


def test_parameters_are_named_by_the_mapping_that_shares_their_memory(tmp_path: Path) -> None:
    model = new_model()
    optimizer = VARIANTS["SGD with momentum"](model.parameters())
    train(model, optimizer, range(1))
    weights = {"first": model.state_dict()["0.weight"]}
    Checkpoint.save(tmp_path / "it.tenzor", weights, optimizer, CheckpointMetadata())
    assert list(standfast.load(tmp_path / "it.tenzor")) == [
        "first",
        "optim/first/v",
        "optim/param.1/v",
    ]


def test_names_that_would_meet_are_kept_apart(tmp_path: Path) -> None:
    model = new_model()
    optimizer = VARIANTS["SGD with momentum"](model.parameters())
    train(model, optimizer, range(1))
    weights = {"optim/param.0/v": torch.zeros(2), "param.1": model.state_dict()["0.weight"]}
    path = tmp_path / "it.tenzor"
    Checkpoint.save(path, weights, optimizer, CheckpointMetadata())
    resumed = VARIANTS["SGD with momentum"](new_model().parameters())
    with Checkpoint.load(path) as loaded:
        loaded.load_weights({"optim/param.0/v": torch.ones(2), "param.1": torch.ones(5, 6)})
        loaded.resume_optimizer(resumed)
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


class Velocity:
    """An optimizer of a program that has only NumPy."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {"v": np.zeros(3), "count": 0, "rates": (0.1, float("nan"))}

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_an_optimizer_of_numpy_is_kept(tmp_path: Path) -> None:
    optimizer, resumed = Velocity(), Velocity()
    optimizer.state = {"v": np.arange(3.0), "count": 7, "rates": (0.2, float("inf"))}
    Checkpoint.save(tmp_path / "it.tenzor", {"w": np.ones(3)}, optimizer, CheckpointMetadata())
    with Checkpoint.load(tmp_path / "it.tenzor") as loaded:
        loaded.resume_optimizer(resumed)
    assert resumed.state["v"].tolist() == [0.0, 1.0, 2.0]
    assert (resumed.state["count"], resumed.state["rates"]) == (7, (0.2, float("inf")))


def test_state_outlives_the_file(tmp_path: Path) -> None:
    model, new, path = new_model(), new_model(), tmp_path / "it.tenzor"
    optimizer = optim.Adam(model.parameters())
    train(model, optimizer, range(1))
    resumed = saved_and_resumed(path, model, optimizer, new, optim.Adam)
    path.write_bytes(bytes(path.stat().st_size))
    assert bits(resumed.state_dict()) == bits(optimizer.state_dict())


def _other_shape(model: nn.Module) -> Any:
    return optim.SGD([torch.zeros(5, 6, requires_grad=True), torch.zeros(9, requires_grad=True)])


def _other_order(model: nn.Module) -> Any:
    return optim.SGD(list(model.parameters())[::-1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda model: optim.Adam(model.parameters()), "the state of SGD was saved, Adam is given"),
        (
            lambda model: optim.SGD(list(model.parameters())[:1]),
            r"groups of \[2\] parameters were saved, \[1\] are given",
        ),
        (_other_shape, r"2.weight: float32 \[4, 5\] was saved, float32 \[9\] is given"),
        (_other_order, "parameter 0: '0.weight' was saved, '2.weight' is given"),
    ],
)
def test_another_optimizer_is_refused_and_left_alone(
    make: Callable[[nn.Module], Any], message: str, tmp_path: Path
) -> None:
    model = new_model()
    optimizer = optim.SGD(model.parameters(), momentum=0.9)
    train(model, optimizer, range(1))
    Checkpoint.save(tmp_path / "it.tenzor", model, optimizer, CheckpointMetadata())
    other = make(model)
    before = bits(other.state_dict())
    with Checkpoint.load(tmp_path / "it.tenzor") as loaded:
        loaded.load_weights(model)
        with pytest.raises(StateMismatch, match=message):
            loaded.resume_optimizer(other)
    assert bits(other.state_dict()) == before


def test_without_an_optimizer_there_is_nothing_to_resume(tmp_path: Path) -> None:
    model = new_model()
    Checkpoint.save(tmp_path / "it.tenzor", model, None, CheckpointMetadata())
    with (
        Checkpoint.load(tmp_path / "it.tenzor") as loaded,
        pytest.raises(StateMismatch),
    ):
        loaded.resume_optimizer(optim.SGD(model.parameters()))


def test_what_is_no_optimizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RefusedState):
        Checkpoint.save(tmp_path / "it.tenzor", new_model(), {"v": 1}, CheckpointMetadata())
    assert list(tmp_path.iterdir()) == []
