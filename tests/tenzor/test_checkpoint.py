"""`standfast.tenzor.Checkpoint`: what is saved comes back, and what differs is named."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import nn, optim

import standfast
from standfast import errors
from standfast.formats.tenzor.file import checkpoint_metadata
from standfast.tenzor import Checkpoint, CheckpointMetadata, Trainer
from tests import GOLDEN
from tests.formats.tenzor.builders import lookup
from tests.kit.stores import flip
from tests.kit.strategies import same_bytes
from tests.tenzor.models import bits, new_model, train

FIRST = GOLDEN / "tenzor_checkpoint.tenzor"
METADATA = CheckpointMetadata(5, 4685, 0.198, 0.963, 3, 0.0087, "lenet", 1_700_000_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "epoch_5.tenzor"


class Masked(nn.Module):
    """Buffers of dtypes that the format has, and of some that it has not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("mask", torch.tensor([[True, False], [False, True]]))
        self.register_buffer("wave", torch.tensor([1 + 2j, 3j]))
        self.register_buffer("small", torch.tensor([0.5, -2.0]).to(torch.float8_e4m3fn))
        self.register_buffer("deep", torch.arange(64).reshape(2, 2, 2, 2, 2, 2))


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e-300, 1 / 3, -0.0, 1e39])
def test_every_number_comes_back(value, path):
    metadata = CheckpointMetadata(best_val_loss=value, best_val_acc=value, learning_rate=value)
    Checkpoint.save(path, {}, None, metadata)
    with Checkpoint.load(path) as loaded:
        assert bits(loaded.metadata.learning_rate) == bits(value)
        assert bits(loaded.metadata.best_val_loss) == bits(value)
    if value == 1e39:  # which is not a number of the original's dtype
        assert standfast.open(path).metadata["learning_rate"] is None


def test_metadata_may_be_a_dict_as_in_the_seed(path):
    scalars = {"epoch": np.int64(5), "best_val_acc": torch.tensor(0.5, requires_grad=True)}
    for given, expected in (
        (METADATA, METADATA),
        (vars_of(METADATA), METADATA),
        (scalars, CheckpointMetadata(epoch=5, best_val_acc=0.5)),
    ):
        Checkpoint.save(path, {"w": np.ones(2)}, None, given)
        with Checkpoint.load(path) as loaded:
            assert bits(vars_of(loaded.metadata)) == bits(vars_of(expected))


def vars_of(metadata: CheckpointMetadata) -> dict[str, Any]:
    return {name: getattr(metadata, name) for name in metadata.__slots__}


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        *((None, "NoneType"), ([("epoch", 5)], "list"), ({"epochs": 5}, "'epochs'")),
        *(({5: "epoch"}, "5"), ({"epoch": "five"}, "epoch.*'five'"), ({"epoch": 1.5}, "epoch")),
        *(({"epoch": 1 << 64}, "epoch"), ({"epoch": 10**5000}, "epoch")),
        *(({"global_step": -1}, "global_step"), ({"timestamp": -(1 << 63) - 1}, "timestamp")),
        *(({"best_val_loss": "low"}, "'low'"), ({"best_val_acc": torch.ones(2)}, "best_val_acc")),
        *(({"model_name": None}, "model_name"), ({"model_name": "\ud800"}, "model_name")),
    ],
)
def test_metadata_that_cannot_be_saved_is_refused(metadata, told, path):
    with pytest.raises(errors.RefusedMetadata, match=told):
        Checkpoint.save(path, {"w": np.ones(2)}, None, metadata)
    assert not path.exists()


def test_a_module_comes_back_with_its_buffers(path):
    model, new = Masked(), Masked()
    with torch.no_grad():
        model.norm(torch.randn(4, 3))
        for buffer in (new.mask, new.wave, new.small, new.deep):
            buffer.zero_()
    Checkpoint.save(path, model, None, METADATA)
    with Checkpoint.load(path) as loaded:
        loaded.load_weights(new)
    assert bits(new.state_dict()) == bits(model.state_dict())
    assert standfast.verify(path).tensors == 9
    assert "standfast/bytes/mask" in standfast.load(path)


def test_a_mapping_is_filled_in_place(path):
    saved = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.ones(3, ml_dtypes.bfloat16),
        "flags": np.array([True, False]),
        "scalar": np.array(3.5),
    }
    Checkpoint.save(path, saved, None, METADATA)
    mine = {name: np.zeros_like(array) for name, array in saved.items()}
    kept = dict(mine)
    with Checkpoint.load(path) as loaded:
        loaded.load_weights(mine)
    assert all(mine[name] is kept[name] for name in mine)
    assert all(same_bytes(mine[name], saved[name]) for name in saved)


def test_a_wrapped_module_has_the_names_of_the_one_it_wraps(path):
    model, new = new_model(seed=1), new_model(seed=2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    train(model, optimizer, range(1))
    Checkpoint.save(path, nn.DataParallel(model), optimizer, METADATA)
    assert "optim/0.weight/v" in standfast.load(path)
    assert lookup(path.read_bytes(), "0.weight") is not None, "as the original finds it"
    with Checkpoint.load(path) as loaded:
        loaded.load_weights(nn.DataParallel(new))
    assert bits(new.state_dict()) == bits(model.state_dict())


def test_all_that_differs_is_named_and_nothing_is_filled(path):
    Checkpoint.save(path, {"a": np.ones(2), "b": np.ones(3), "c": np.ones(4)}, None, METADATA)
    mine = {"a": np.zeros(2), "b": np.zeros(3, np.float32), "d": np.zeros(5)}
    with Checkpoint.load(path) as loaded:
        with pytest.raises(errors.StateMismatch, match=r"(?s)d.*c.*b.*float64.*float32"):
            loaded.load_weights(mine)
        assert not any(array.any() for array in mine.values())
        shared = {name: torch.zeros(size).double() for name, size in (("a", 2), ("c", 4))}
        shared["b"] = torch.zeros(1).double().expand(3)
        with pytest.raises(errors.StateMismatch, match=r"\bb\b"):  # whose elements share memory
            loaded.load_weights(shared)
        assert not shared["a"].any()
    with pytest.raises(errors.ClosedFile):
        loaded.load_weights({"a": np.zeros(2), "b": np.zeros(3), "c": np.zeros(4)})


def test_damage_is_found_before_anything_is_filled(path):
    Checkpoint.save(path, {"a": np.ones(2), "b": np.ones(3)}, None, METADATA)
    flip(path)
    mine = {"a": np.zeros(2), "b": np.zeros(3)}
    with Checkpoint.load(path) as loaded, pytest.raises(errors.DigestMismatch, match="'b'"):
        loaded.load_weights(mine)
    assert not mine["a"].any()


@pytest.mark.parametrize(
    ("weights", "extra", "error"),
    [
        *(({name: np.ones(2)}, None, errors.BadName) for name in ("a\ud800", 1, "n" * 65_536)),
        ({1: np.array([True])}, None, errors.BadName),
        ({"w": np.ones(2)}, {"\ud800": np.ones(2)}, errors.BadName),
        ([np.ones(2)], None, errors.UnsupportedTensor),
        ({"a": 1.5}, None, errors.UnsupportedTensor),
        ({"w": np.ones(2)}, [1], errors.RefusedState),
    ],
)
def test_what_no_file_can_have_is_refused_and_the_old_file_kept(weights, extra, error, path):
    Checkpoint.save(path, {"w": np.ones(2)}, None, METADATA)
    before = path.read_bytes()
    with pytest.raises(error):
        Checkpoint.save(path, weights, None, METADATA, extra=extra)
    assert path.read_bytes() == before
    Checkpoint.save(path, {"w": np.zeros(2)}, None, METADATA)
    assert standfast.load(path)["w"].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("order", [1, -1])
def test_a_weight_with_the_name_of_the_bytes_of_another_is_refused(order, path):
    weights = {"standfast/bytes/a": torch.ones(2), "a": torch.tensor([True, False])}
    with pytest.raises(errors.BadName, match=r"'standfast/bytes/a'.*'a'"):
        Checkpoint.save(path, dict([*weights.items()][::order]), None, METADATA)
    assert not path.exists()
    both = {name: torch.tensor([name == "a"]) for name in weights}  # whose bytes have two names
    extra = {"bytes": {"a": torch.ones(2)}}  # and a third one, which gives way
    Checkpoint.save(path, both, None, METADATA, extra=extra)
    with Checkpoint.load(path) as loaded:
        assert {*loaded.tensor_names()} > both.keys()
        assert bits({name: torch.tensor(loaded.tensor(name)) for name in both}) == bits(both)
        assert bits(loaded.extra) == bits(extra)


class Tied(nn.Module):
    """Two names for one parameter, and a third for a part of it."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(3))
        self.b = self.a
        self.register_buffer("part", self.a.detach()[1:])


BOTH = {"b": [1, 1, -1], "part": [1, -1]}
UNTIED = {"a": torch.ones(3), "b": torch.ones(3), "part": torch.ones(2)}


@pytest.mark.parametrize("changed", [{"b": [2, 2, 2]}, {"part": [1, 3]}, BOTH])
@pytest.mark.parametrize("is_module", [True, False])
def test_different_tensors_do_not_go_into_shared_memory(changed, is_module, path):
    changed = {name: torch.tensor(values).float() for name, values in changed.items()}
    Checkpoint.save(path, UNTIED | changed, None, METADATA)
    model, told = Tied(), r"'a'.*'b'.*'part'"
    with Checkpoint.load(path) as loaded, pytest.raises(errors.StateMismatch, match=told):
        loaded.load_weights(model if is_module else model.state_dict())
    assert not model.a.detach().any()


def test_equal_tensors_go_into_shared_memory(path):
    saved = {"a": torch.tensor([1.0, 2.0, 3.0]), "part": torch.tensor([2.0, 3.0])}
    Checkpoint.save(path, {**saved, "b": saved["a"].clone()}, None, METADATA)
    model = Tied()
    with Checkpoint.load(path) as loaded:
        assert loaded.load_weights(model).exact
    assert bits(model.state_dict()["b"]) == bits(saved["a"])
    # Two columns of one array lie between each other, and share nothing.
    array = np.zeros((3, 2), np.float32)
    with Checkpoint.load(path) as loaded:
        loaded.load_weights({"a": array[:, 0], "part": array[1:, 1]}, strict=False)
    assert array.tolist() == [[1, 0], [2, 2], [3, 3]]


def test_a_part_of_the_weights_is_filled_and_the_rest_reported(path):
    saved = new_model(seed=1)
    Checkpoint.save(path, saved, None, METADATA)
    mine: Any = nn.Sequential(nn.Linear(6, 5, bias=False), nn.Tanh(), nn.Linear(5, 7))
    last, array = bits(mine[2].state_dict()), {"0.weight": np.zeros((5, 6), np.float32)}
    with Checkpoint.load(path) as loaded:
        with pytest.raises(errors.StateMismatch):
            loaded.load_weights(mine)
        report = loaded.load_weights(mine, strict=False)
        assert loaded.load_weights(array, strict=False).unexpected == ["2.weight"]
    assert (report.loaded, report.missing) == (["0.weight"], ["2.bias"])
    assert [each.split(":")[0] for each in report.mismatched] == ["2.weight"]
    assert bits(mine[0].weight) == bits(saved[0].weight)  # type: ignore[index]
    assert bits(mine[2].state_dict()) == last
    assert array["0.weight"].any()


def test_single_tensors_are_listed_and_fetched(path):
    model = Masked()
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.norm(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    Checkpoint.save(path, model, optimizer, METADATA)
    slots = {"optim/norm.weight/v", "optim/norm.bias/v"}
    with Checkpoint.load(path) as loaded:
        assert set(loaded.tensor_names()) == {*model.state_dict(), *slots}
        found = {name: loaded.tensor(name) for name in loaded.tensor_names()}
        with pytest.raises(errors.TensorNotFound, match=r"epoch_5\.tenzor.*'norm'"):
            loaded.tensor("norm")
    assert found["mask"].tolist() == [[True, False], [False, True]]
    assert found["deep"].shape == (2, 2, 2, 2, 2, 2)
    assert found["small"].dtype == ml_dtypes.float8_e4m3fn


@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
def test_single_tensors_of_the_original_are_found_by_their_hashes():
    with Checkpoint.load(FIRST) as loaded:
        assert loaded.tensor_names()[0] == "0xc0713d87c613c5c3"
        expected = _original()["conv1_weight"]
        assert np.allclose(loaded.tensor("conv1_weight"), expected, atol=1e-6)
        assert same_bytes(loaded.tensor("0xc0713d87c613c5c3"), loaded.tensor("conv1_weight"))
        with pytest.raises(errors.StateMismatch, match=r"(?s)x.*0x"):
            loaded.load_weights({"conv1_weight": np.zeros((6, 1, 5, 5), "f4"), "x": np.ones(1)})


@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")
@pytest.mark.parametrize("name", ["\ud800", None, 5], ids=ascii)
@pytest.mark.parametrize("is_original", [False, True])
def test_a_name_that_no_file_can_have_is_in_none(name, is_original, path):
    Checkpoint.save(path, {"w": np.ones(2)}, None, METADATA)
    with Checkpoint.load(FIRST if is_original else path) as loaded:
        with pytest.raises(errors.TensorNotFound):
            loaded.tensor(name)
        assert loaded.load_weights({name: np.ones(2)}, strict=False).missing == [name]


def test_extra_comes_back_with_its_types(path):
    extra = {"random": {"words": np.arange(3), "gauss": None}, "at": (1, 2.5), 3: b"\0"}
    Checkpoint.save(path, {"w": np.ones(2)}, None, METADATA, extra=extra)
    with Checkpoint.load(path) as loaded:
        found = loaded.extra
        loaded.load_weights({"w": np.zeros(2)})
    assert found["random"]["words"].tolist() == [0, 1, 2]
    assert (found["at"], found[3], found["random"]["gauss"]) == ((1, 2.5), b"\0", None)
    assert "standfast/random/words" in standfast.load(path)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    standfast.save(tmp_path / "a.safetensors", {"w": np.ones(2)})
    standfast.save(tmp_path / "b.tenzor", {"w": np.ones(2)}, {"epoch": 3})
    for name, told in (("a.safetensors", r"a\.safetensors"), ("b.tenzor", "global_step")):
        with pytest.raises(errors.UnsupportedFile, match=told):
            Checkpoint.load(tmp_path / name)


def _original() -> dict[str, Any]:
    weight = (np.arange(150, dtype=np.float32) * 0.01 - 0.5).astype(np.float32)
    bias = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6], np.float32)
    return {"conv1_weight": weight.reshape(6, 1, 5, 5), "conv1_bias": bias}


class First(nn.Module):
    """A layer that calls its weights as the original does."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1_weight = nn.Parameter(torch.zeros(6, 1, 5, 5))
        self.conv1_bias = nn.Parameter(torch.zeros(6))


def test_a_checkpoint_of_the_original_is_loaded():
    model, rate, momentum = First(), METADATA.learning_rate, 0.9
    optimizer = optim.SGD(model.parameters(), lr=rate, momentum=momentum)
    with pytest.warns(errors.NotVerified):
        loaded = Checkpoint.load(FIRST)
    with loaded:
        assert (loaded.metadata, loaded.extra) == (METADATA, {})
        with pytest.raises(errors.StateMismatch, match="load_weights"):
            loaded.resume_optimizer(optimizer)
        loaded.load_weights(model)
        loaded.resume_optimizer(optimizer)
    assert optimizer.param_groups[0]["lr"] == rate
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    for name, array in _original().items():
        assert np.allclose(before[name], array, atol=1e-6)
        parameter = model.get_parameter(name)  # the file's v are its weights
        assert bits(optimizer.state[parameter]["momentum_buffer"]) == bits(
            before[name] / -np.float32(rate)
        )
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for name, array in _original().items():
        moved = (model.get_parameter(name) - before[name]).detach().numpy()
        assert np.allclose(moved, momentum * array, rtol=1e-5)


def save_as_original(path: Path, slots: dict[str, float], **changed: Any) -> nn.Module:
    """A checkpoint in the original's layout, with these slots of every weight of a model."""
    weights = new_model().state_dict()
    tensors = {
        f"optim/{name}/{slot}": torch.full_like(tensor, value)
        for name, tensor in weights.items()
        for slot, value in slots.items()
    }
    standfast.save(path, weights | tensors, checkpoint_metadata(**vars_of(METADATA) | changed))
    return new_model(seed=1)


MOMENTS = {"m": 0.25, "v_hat": 0.5}


@pytest.mark.parametrize("make", [optim.Adam, optim.AdamW], ids=lambda make: make.__name__)
def test_adam_goes_on_from_the_moments_of_the_original(make, path):
    model = save_as_original(path, MOMENTS)
    optimizer = make(model.parameters())
    with Checkpoint.load(path) as loaded:
        loaded.load_weights(model)
        loaded.resume_optimizer(optimizer)
    for parameter in model.parameters():
        state = optimizer.state[parameter]
        assert bits(state["exp_avg"]) == bits(torch.full_like(parameter, 0.25).detach())
        assert state["step"].item() == 4685
    train(model, optimizer, range(1))
    assert optimizer.state[next(model.parameters())]["step"].item() == 4686


NO_SLOTS: dict[str, float] = {}
momentum = partial(optim.SGD, momentum=0.9)


class Adam(optim.RMSprop):
    """An optimizer of another library, with the name of one of torch's and other options."""


@pytest.mark.parametrize(
    ("slots", "make", "told"),
    [
        ({"v": 1.0}, optim.Adam, r"(?s)0.weight/v\b.*0.weight/v_hat"),
        ({"v": 1.0}, optim.RMSprop, "RMSprop"),
        ({"v": 1.0}, optim.SGD, "2.weight/v.*momentum_buffer"),
        (MOMENTS, momentum, "0.weight/v"),
        (MOMENTS, partial(optim.Adam, amsgrad=True), "amsgrad"),
        (MOMENTS, optim.NAdam, "NAdam"),
        (MOMENTS, Adam, "Adam"),
        ({"m": 0.25}, optim.Adam, "2.weight/v_hat"),
        (NO_SLOTS, momentum, "0.weight/v"),
    ],
)
def test_the_originals_state_of_another_optimizer_is_refused(slots, make, told, path):
    model = save_as_original(path, slots)
    optimizer = make(model.parameters())
    before = bits(model.state_dict()), bits(optimizer.state_dict())
    with pytest.raises(errors.StateMismatch, match=told):
        Trainer(model=model, optimizer=optimizer).resume(path)
    assert (bits(model.state_dict()), bits(optimizer.state_dict())) == before
    with Checkpoint.load(path) as loaded:
        loaded.load_weights(model)
        with pytest.raises(errors.StateMismatch, match=told):
            loaded.resume_optimizer(optimizer)
    assert bits(optimizer.state_dict()) == before[1]


def test_velocity_needs_a_learning_rate_and_parameters_that_were_loaded(path):
    model = save_as_original(path, {"v": 1.0}, learning_rate=0.0)
    optimizer = momentum(model.parameters())
    with pytest.raises(errors.StateMismatch):
        Trainer(model=model, optimizer=optimizer).resume(path)
    assert not optimizer.state
    model = save_as_original(path, {"v": 1.0})
    more = momentum([*model.parameters(), nn.Parameter(torch.zeros(2))])
    with Checkpoint.load(path) as loaded:
        loaded.load_weights(model)
        with pytest.raises(errors.StateMismatch, match="2"):
            loaded.resume_optimizer(more)
    save_as_original(path, NO_SLOTS)
    plain = optim.SGD(model.parameters(), lr=0.1)
    Trainer(model=model, optimizer=plain).resume(path)
    assert not plain.state
