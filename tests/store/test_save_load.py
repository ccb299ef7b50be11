"""A state that was saved comes back the same, in every bit, and belongs to whoever loaded it."""

import random
import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import standfast
from standfast import Packed, Run, TensorSpec, errors
from standfast.tensors import DTYPES
from tests.kit.stores import MIB, chunks, data_files, data_path, folder, random_bytes, same
from tests.kit.strategies import PACKED_DTYPES, WHOLE_BYTE_DTYPES, arrays, packed


def _round_trip(run: Run, state: Any) -> Any:
    """The state as another process would load it."""
    run.save(1, state, replace=True)
    return standfast.Store(Path(run._store.url).parent).open_run(run.hash).load(1)


class Net(torch.nn.Module):
    """A model with parameters, a frozen one, buffers, and a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = torch.nn.Parameter(torch.ones(()), requires_grad=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x: torch.Tensor = self.head(self.norm(self.embedding(tokens))) * self.scale
        return x


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "amsgrad": lambda p: torch.optim.AdamW(p, lr=1e-3, betas=(0.8, 0.99), amsgrad=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.1),
    "lbfgs": lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=3, history_size=3),
}


def _train(net: Net, optimizer: torch.optim.Optimizer, steps: int) -> None:
    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        tokens = torch.randint(0, 20, (16,))
        loss = torch.nn.functional.cross_entropy(net(tokens), tokens)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_training_goes_on_bit_for_bit_from_what_was_loaded(run, name):
    torch.manual_seed(1)
    net = Net()
    optimizer = OPTIMIZERS[name]([p for p in net.parameters() if p.requires_grad])
    _train(net, optimizer, 2)
    model, drawn = net.state_dict(), torch.get_rng_state()
    state = {"model": model, "optimizer": optimizer.state_dict(), "random": drawn}
    loaded = _round_trip(run, state)
    assert same(loaded, state)
    assert (type(loaded["model"]), loaded["model"]._metadata) == (OrderedDict, model._metadata)
    _train(net, optimizer, 2)

    again = Net()
    other = OPTIMIZERS[name]([p for p in again.parameters() if p.requires_grad])
    again.load_state_dict(loaded["model"])
    other.load_state_dict(loaded["optimizer"])
    torch.set_rng_state(loaded["random"])
    _train(again, other, 2)
    assert same(again.state_dict(), net.state_dict())


def test_states_of_generators_schedulers_and_scalers_come_back(run):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1, momentum=0.9)
    schedulers = [
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10),
        torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10),
        torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer),
    ]
    state = {
        "schedulers": [
            {key: value for key, value in scheduler.state_dict().items() if not callable(value)}
            for scheduler in schedulers
        ],
        "scaler": torch.amp.GradScaler("cpu", 1024.0).state_dict(),
        "python": random.getstate(),
        "numpy": np.random.get_state(),
        "generator": np.random.default_rng(5).bit_generator.state,
        "torch": torch.Generator().manual_seed(3).get_state(),
    }
    assert same(_round_trip(run, state), state)


def _array(dtype: str, shape: tuple[int, ...] = (3, 5)) -> Any:
    data = random_bytes(TensorSpec(dtype, shape).nbytes, seed=hash(dtype) % 1000)
    if dtype == "bool":
        data &= 1
    return data.view(DTYPES[dtype].numpy).reshape(shape)


@pytest.mark.parametrize("dtype", WHOLE_BYTE_DTYPES)
def test_every_dtype_comes_back_to_numpy_and_torch(run, dtype):
    state = {"x": _array(dtype), "scalar": _array(dtype, ()), "none": _array(dtype, (0, 3))}
    if hasattr(torch, dtype):
        data = torch.from_numpy(_array(dtype).reshape(-1).view(np.uint8).copy())
        state["torch"] = data.view(getattr(torch, dtype)).reshape(3, 5)
        state |= {"torch scalar": state["torch"][0, 0].clone(), "empty": state["torch"][:0].clone()}
    assert same(_round_trip(run, state), state)
    tensors = run.checkpoint().tensors
    assert {tensors[name] for name in ("x", "torch") if name in state} == {
        TensorSpec(dtype, (3, 5))
    }


@pytest.mark.parametrize("dtype", PACKED_DTYPES)
def test_packed_tensors_come_back(run, dtype):
    spec = TensorSpec(dtype, (2, 8))
    state = {"x": Packed(random_bytes(spec.nbytes).reshape(spec.array_shape), dtype, spec.shape)}
    assert same(_round_trip(run, state), state)
    assert run.checkpoint().tensors["x"] == spec


def test_pairs_of_float4_of_torch_come_back(run):
    x = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    loaded = _round_trip(run, {"x": x})["x"]
    assert loaded.dtype == x.dtype
    assert torch.equal(loaded.view(torch.uint8), x.view(torch.uint8))


def test_complex128_is_bytes_in_the_file_and_itself_in_the_record(run):
    state = {"x": np.array([[1 - 2j, 3j]] * 3)}
    assert same(_round_trip(run, state), state)
    assert run.checkpoint().tensors["x"] == TensorSpec("complex128", (3, 2))
    with standfast.open(data_path(run, 1)) as file:
        assert file.spec("x") == TensorSpec("uint8", (3, 2, 16))
        assert file["x"].tobytes() == state["x"].tobytes()


def test_arrays_come_back_whatever_their_strides_and_byte_order(run):
    x = np.arange(24.0).reshape(4, 6)
    for array in (
        *(x.T, x.reshape(-1)[::-2], np.broadcast_to(np.arange(3.0), (4, 3))),
        *(np.asfortranarray(x.reshape(2, 3, 4)), x.astype(">f4"), x.astype(">i8")[:, ::2]),
    ):
        assert same(_round_trip(run, {"x": array})["x"], np.ascontiguousarray(array))


def test_anything_may_be_the_whole_state(run):
    states: list[Any] = [
        *(np.arange(3), torch.arange(3.0), [np.arange(3), 1, "x"], (torch.ones(2), None)),
        *({}, [], 5, {0: np.arange(2), None: {True: np.arange(3)}}),
        np.array([1.5, -0.0, np.nan], ml_dtypes.bfloat16),
    ]
    for state in states:
        assert same(_round_trip(run, state), state)


leaves = (
    arrays(WHOLE_BYTE_DTYPES)
    | packed()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.none()
    | st.lists(st.integers(0, 9), max_size=4).map(lambda n: torch.tensor(n, dtype=torch.bfloat16))
)
keys = st.text(max_size=6) | st.integers(-3, 3) | st.sampled_from(["model", "a.b", "a", "b"])
states = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=4),
    max_leaves=10,
)


def _in_order(state: Any) -> Any:
    """The state with its arrays in C order, as they come back."""
    if isinstance(state, dict):
        return {key: _in_order(member) for key, member in state.items()}
    if isinstance(state, list):
        return [_in_order(member) for member in state]
    return np.array(state, order="C") if isinstance(state, np.ndarray) else state


@pytest.mark.guarantee("G4")
@given(state=states)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_every_tree_with_tensors_comes_back(run, state):
    loaded = _round_trip(run, state)
    assert same(_in_order(loaded), _in_order(state))
    assert run.checkpoint(1).verify().nbytes == run.checkpoint(1).nbytes


def test_what_was_loaded_can_be_changed_without_harm_to_the_store_and_outlives_it(run):
    state = {"numpy": np.zeros(100_000), "torch": torch.zeros(100_000), "small": np.zeros(3)}
    run.save(1, state)
    for tensor in run.load(1).values():
        tensor += 1
    loaded = run.load(1)
    run.checkpoint(1).verify()
    for path in folder(run).iterdir():
        path.unlink()
    assert same(loaded, state)


def test_equal_tensors_and_chunks_come_back_separate(run):
    a = np.arange(MIB // 4, dtype=np.int32)
    twins = {"a": a, "b": a.copy(), "model": {"c": torch.from_numpy(a.copy())}}
    run.save(1, {**twins, "x": chunks(1, 1)})
    loaded = run.load(1)
    loaded["a"] += 1
    loaded["model"]["c"] += 2
    assert same(loaded["b"], a)
    loaded["x"][0] ^= 1
    assert loaded["x"][0] != loaded["x"][loaded["x"].size // 2]


@pytest.mark.guarantee("G4")
def test_tied_tensors_change_together(run):
    weight = torch.arange(50_000.0)
    base = np.arange(60.0).reshape(6, 10)
    state = {"a": weight, "b": weight, "row": weight[10:20], "numpy": base, "part": base[2:4, ::3]}
    run.save(1, state)
    loaded = run.load(1)
    assert same(loaded, state | {"part": base[2:4, ::3]})
    loaded["a"] += 1
    loaded["numpy"] *= 2
    assert torch.equal(loaded["b"], weight + 1)
    assert torch.equal(loaded["row"], weight[10:20] + 1)
    assert np.array_equal(loaded["part"], base[2:4, ::3] * 2)


def test_a_parameter_that_is_tied_comes_back_as_one_object(run):
    net = Net()
    loaded = _round_trip(run, dict(net.named_parameters(remove_duplicate=False)))
    assert loaded["head.weight"] is loaded["embedding.weight"]
    assert loaded["head.weight"].requires_grad
    assert not loaded["scale"].requires_grad
    assert type(loaded["scale"]) is torch.nn.Parameter


def test_what_was_loaded_can_be_saved_again(run):
    state = {"model": {"w": torch.randn(300, 300), "b": torch.randn(4)}, "x": chunks(1, 2)}
    run.save(1, state)
    loaded = run.load(1)
    loaded["model"]["w"] += 1
    run.save(2, loaded)
    run.save(3, run.load(2))
    state["model"]["w"] += 1
    assert same(run.load(3), state)


def test_loaded_tensors_are_aligned_as_torch_aligns_its_own(run):
    """Vector code sums up in another order where memory is aligned in another way."""
    state = {f"x{i}": torch.randn(1001 + i) for i in range(16)}
    run.save(1, state)
    for each in (state, *(run.checkpoint(1).state(mapped=mapped) for mapped in (True, False))):
        assert {tensor.data_ptr() % 64 for tensor in each.values()} == {0}


def test_a_tensor_may_be_called_what_a_stretch_of_another_is(run):
    names = [f"w{text}" for text in (" from byte 16,777,216", "[0:16777216]", "~2")]
    state = {"w": chunks(5, 5, 6)} | {name: random_bytes(100, i) for i, name in enumerate(names)}
    run.save(1, state)
    assert same(run.load(1), state)
    run.checkpoint(1).verify()


def test_a_checkpoint_says_what_it_is(run):
    state = {"model": {"w": np.ones((2, 3), np.float32)}, "step": 7}
    metrics = {"loss": 0.25, "nan": float("nan"), "count": 3, "numpy": 0.5, "torch": 2.0}
    given = metrics | {"numpy": np.float32(0.5), "torch": torch.tensor(2.0)}
    saved = run.save(100, state, metrics=given, epoch=2, best=True)
    for checkpoint in (saved, run.checkpoint(100)):
        assert (checkpoint.step, checkpoint.epoch, checkpoint.sequence) == (100, 2, 1)
        assert checkpoint.nbytes == 24
        assert checkpoint.run.hash == run.hash
        assert checkpoint.ref == f"{run.hash}@100"
        assert dict(checkpoint.tensors) == {"model.w": TensorSpec("float32", (2, 3))}
        assert same(checkpoint.metrics, metrics)
        assert checkpoint.parent is None
        assert same(checkpoint.state(), state)
        assert checkpoint.state(mapped=False)["model"]["w"].flags.writeable


def test_steps_may_be_large_and_of_numpy(run):
    for step in (0, 999_999, 1_000_000, 2**53 - 1, np.int64(5)):
        run.save(step, {"step": int(step)})
        assert run.load(int(step)) == {"step": step}


def test_what_cannot_be_saved_is_refused_by_its_path(run):
    for step in (-1, 2**53, True, 1.0, "1", None):
        with pytest.raises(errors.BadLabel):
            run.save(step, {})
    for metrics in ({"x": "high"}, {"x": None}, {"x": [1]}, {1: 1.0}, {"x": torch.zeros(3)}, [1]):
        with pytest.raises(errors.RefusedState):
            run.save(1, {}, metrics=metrics)
    for state, path in (
        ({"model": {"f": [print]}}, "model.f.0"),
        ({"x": np.array(["text"])}, "x"),
        ({"x": {"y": object()}}, "x.y"),
        ({"x": torch.ones(2).to_sparse()}, "x"),
        ({"x": np.array([1, "a"], object)}, "x"),
    ):
        with pytest.raises(errors.RefusedState, match=re.escape(path)):
            run.save(1, state)
    assert (run.checkpoints(), data_files(run)) == ([], {})
    for ref in ("latest", "best", 5, "5"):
        with pytest.raises(errors.RefNotFound):
            run.load(ref)
    run.save(1, {"weight": np.ones(3)})
    for verify in ("require", "", 0, None):
        with pytest.raises(errors.BadOption, match="verify="):
            run.load(1, verify=verify)
