"""Random states: captured, kept by a store, and put back to the bit."""

import copy
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast.errors import BadField, RefusedState, StateMismatch
from standfast.tensors import randomness

BIT_GENERATORS = ["MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64"]


@pytest.fixture(autouse=True)
def _leave_the_generators_as_they_were() -> Iterator[None]:
    python, numpy, torch_ = random.getstate(), np.random.get_state(), torch.get_rng_state()
    yield
    random.setstate(python)
    np.random.set_state(numpy)
    torch.set_rng_state(torch_)


def _draws() -> list[Any]:
    """Numbers of every global generator; an odd number of normal ones, which come in pairs."""
    return [
        [random.random() for _ in range(700)],
        [random.gauss(0, 1) for _ in range(3)],
        np.random.random(700).tolist(),
        [np.random.standard_normal() for _ in range(3)],
        torch.rand(700).tolist(),
        torch.randn(3).tolist(),
        torch.randperm(100).tolist(),
    ]


def test_after_a_restore_the_same_numbers_are_drawn():
    _draws()
    states = randomness.capture()
    drawn = _draws()
    assert _draws() != drawn
    assert randomness.restore(states) == []
    assert _draws() == drawn


def test_normal_numbers_that_wait_are_kept_or_forgotten():
    without = randomness.capture()
    assert without["python"]["gauss"] is None
    drawn = random.gauss(0, 1), np.random.standard_normal()
    states = randomness.capture()
    assert states["python"]["gauss"] is not None
    assert states["numpy"]["has_gauss"] == 1
    waiting = random.gauss(0, 1), np.random.standard_normal()
    randomness.restore(states)
    assert (random.gauss(0, 1), np.random.standard_normal()) == waiting
    randomness.restore(states)
    randomness.restore(without)
    assert (random.gauss(0, 1), np.random.standard_normal()) == drawn


def test_what_was_captured_does_not_change_when_numbers_are_drawn():
    states = randomness.capture()
    before = copy.deepcopy(states)
    _draws()
    assert _text(states) == _text(before)


def _text(tree: Any) -> str:
    """A tree with all its numbers, to be compared."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key}: {_text(value)}" for key, value in tree.items()) + "}"
    return repr(tree.tolist()) if hasattr(tree, "tolist") else repr(tree)


def test_any_bit_generator_can_be_the_global_one():
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    try:
        np.random.set_bit_generator(np.random.Philox(3))  # type: ignore[attr-defined]
        np.random.standard_normal()
        states = randomness.capture()
        drawn = _draws()
        assert randomness.restore(states) == []
        assert _draws() == drawn
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]
    kept = np.random.get_state(legacy=False)
    [sentence] = randomness.restore(states)
    assert "Philox" in sentence
    assert "MT19937" in sentence
    assert _text(np.random.get_state(legacy=False)) == _text(kept)


def test_states_that_are_not_there_are_named_and_the_others_put_back():
    states = randomness.capture()
    drawn = _draws()
    missing = randomness.restore({"numpy": states["numpy"]})
    assert ["Python" in each for each in missing] == [True, False]
    assert "torch" in missing[1]
    assert np.random.random(700).tolist() == drawn[2]
    (sentence,) = randomness.restore({name: states[name] for name in ("python", "torch")})
    assert "NumPy" in sentence
    assert random.random() == drawn[0][0]


def test_states_of_cuda_without_a_gpu_are_named_and_the_others_put_back(seams):
    seams.system(torch.cuda, is_available=lambda real: False)
    states = randomness.capture()
    drawn = _draws()
    states["torch"]["cuda"] = [torch.zeros(16, dtype=torch.uint8)] * 2
    [sentence] = randomness.restore(states)
    assert "2 CUDA" in sentence
    assert _draws() == drawn


def test_states_of_a_framework_that_nobody_has_are_named():
    states = randomness.capture() | {"\x1bmxnet": {}}
    [sentence] = randomness.restore(states)
    assert "mxnet" in sentence
    assert sentence.isprintable()


def test_a_framework_is_imported_only_when_its_states_are_put_back(tmp_path):
    run = standfast.Store(tmp_path).run("x")
    run.save(1, {"random": randomness.capture()})
    expected = torch.rand(3).tolist()
    program = f"""
import sys
import numpy as np
from standfast import Store
from standfast.tensors import randomness
from tests.kit.seams import Seams
states = randomness.capture()
assert randomness.restore(states) == []
print(*states, "torch" in sys.modules)
assert randomness.restore(Store({str(tmp_path)!r}).run("x").load(1)["random"]) == []
import torch
print(torch.rand(3).tolist())
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout == f"python numpy False\n{expected}\n"


Hostile = Callable[[dict[str, Any]], Any]


def _at(*path: str, value: Any) -> Hostile:
    def change(states: dict[str, Any]) -> Any:
        place = states
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value
        return states

    return change


def _position_beyond(states: dict[str, Any]) -> Any:
    states["python"]["words"][-1] = 625
    return states


def _torch_words(left: int, position: int) -> Hostile:
    def change(states: dict[str, Any]) -> Any:
        state = states["torch"]["cpu"]
        state[8:12].view(torch.int32)[0] = left
        state[16:24].view(torch.int64)[0] = position
        return states

    return change


HOSTILE: dict[str, Hostile] = {
    "no mapping": lambda states: [states],
    "a number": lambda states: 5,
    "a key that is no text": lambda states: states | {5: {}},
    "python is a list": _at("python", value=[]),
    "python of version 2": _at("python", "version", value=2),
    "python of version True": _at("python", "version", value=True),
    "python's words as numbers": _at("python", "words", value=[1] * 625),
    "python's words too few": _at("python", "words", value=np.zeros(624, np.uint32)),
    "python's words signed": _at("python", "words", value=np.zeros(625, np.int64)),
    "python's words as objects": _at("python", "words", value=np.array([None] * 625)),
    "python's position beyond": _position_beyond,
    "python's gauss is text": _at("python", "gauss", value="1.0"),
    "python has more": _at("python", "more", value=1),
    "numpy is a tensor": _at("numpy", value=torch.zeros(3)),
    "numpy's class unknown": _at("numpy", "bit_generator", value="Evil"),
    "numpy's class no text": _at("numpy", "bit_generator", value=["MT19937"]),
    "numpy's state missing": _at("numpy", "state", value=None),
    "numpy's position beyond": _at("numpy", "state", "pos", value=10**6),
    "numpy's position before": _at("numpy", "state", "pos", value=-1),
    "numpy's position huge": _at("numpy", "state", "pos", value=1 << 200),
    "numpy's key short": _at("numpy", "state", "key", value=np.zeros(3, np.uint32)),
    "numpy's key in rows": _at("numpy", "state", "key", value=np.zeros((1, 624), np.uint32)),
    "numpy's gauss a number": _at("numpy", "gauss", value=1),
    "numpy's has_gauss 2": _at("numpy", "has_gauss", value=2),
    "torch is a list": _at("torch", value=[]),
    "torch without cpu": _at("torch", value={"cuda": []}),
    "torch with another device": _at("torch", "tpu", value=[]),
    "torch's cuda a tensor": _at("torch", "cuda", value=torch.zeros(3)),
    "torch's cuda of arrays": _at("torch", "cuda", value=[np.zeros(16, np.uint8)]),
    "torch's state an array": _at("torch", "cpu", value=np.zeros(5056, np.uint8)),
    "torch's state short": _at("torch", "cpu", value=torch.zeros(3, dtype=torch.uint8)),
    "torch's state empty": _at("torch", "cpu", value=torch.zeros(0, dtype=torch.uint8)),
    "torch's state zeros": _at("torch", "cpu", value=torch.zeros(5056, dtype=torch.uint8)),
    "torch's state floats": _at("torch", "cpu", value=torch.zeros(5056)),
    "torch reads beyond": _torch_words(624, 624),
    "torch's position negative": _torch_words(1, -1),
    "torch has none left": _torch_words(0, 625),
}


@pytest.mark.parametrize("case", HOSTILE)
def test_what_was_never_captured_is_refused_and_nothing_changes(case):
    before = copy.deepcopy(randomness.capture())
    hostile = HOSTILE[case](copy.deepcopy(before))
    with pytest.raises(BadField) as caught:
        randomness.restore(hostile)
    assert len(str(caught.value)) < 300
    assert _text(randomness.capture()) == _text(before)


def _numbers(generator: Any) -> list[Any]:
    if isinstance(generator, torch.Generator):
        return torch.randn(7, generator=generator).tolist()
    if isinstance(generator, random.Random):
        return [generator.gauss(0, 1) for _ in range(7)]
    if isinstance(generator, np.random.RandomState):
        return [generator.standard_normal() for _ in range(7)]
    return [generator.integers(1 << 31, dtype=np.int32) for _ in range(7)]


def _around(bit_generator: str) -> Callable[[int], Any]:
    return lambda seed: np.random.Generator(getattr(np.random, bit_generator)(seed))


GENERATORS: dict[str, Callable[[int], Any]] = {
    "random.Random": random.Random,
    "RandomState": np.random.RandomState,
    "torch": lambda seed: torch.Generator().manual_seed(seed),
    **{name: _around(name) for name in BIT_GENERATORS},
    "RandomState of SFC64": lambda seed: np.random.RandomState(np.random.SFC64(seed)),
}


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_goes_on_where_it_was_in_another_of_its_kind(name, tmp_path):
    make = GENERATORS[name]
    generator, other = make(1), make(2)
    assert randomness.is_generator(generator)
    _numbers(generator)
    run = standfast.Store(tmp_path).run("x")
    run.save(1, {"generator": randomness.state_of(generator)})
    drawn = _numbers(generator)
    assert _numbers(other) != drawn
    randomness.put_back(other, run.load(1)["generator"])
    assert _numbers(other) == drawn


@pytest.mark.parametrize("saved", GENERATORS)
def test_the_state_of_another_kind_of_generator_is_refused(saved):
    state = randomness.state_of(GENERATORS[saved](1))
    for here in GENERATORS.keys() - {saved}:
        generator = GENERATORS[here](2)
        with pytest.raises(StateMismatch) as refused:
            randomness.put_back(generator, state)
        if {saved, here} <= set(BIT_GENERATORS):
            assert saved in str(refused.value)
            assert here in str(refused.value)
        assert _numbers(generator) == _numbers(GENERATORS[here](2))


HOSTILE_PARTS: dict[str, tuple[str, Hostile]] = {
    "PCG64, more bits": ("PCG64", _at("state", "state", value=1 << 128)),
    "PCG64, negative": ("PCG64", _at("state", "inc", value=-1)),
    "PCG64, even increment": ("PCG64", _at("state", "inc", value=2)),
    "PCG64, half too wide": ("PCG64", _at("uinteger", value=1 << 32)),
    "PCG64DXSM, a float": ("PCG64DXSM", _at("state", "state", value=1.0)),
    "Philox, beyond": ("Philox", _at("buffer_pos", value=5)),
    "Philox, before": ("Philox", _at("buffer_pos", value=-(1 << 31))),
    "Philox, buffer short": ("Philox", _at("buffer", value=np.zeros(3, np.uint64))),
    "SFC64, 32 bits": ("SFC64", _at("state", "state", value=np.zeros(4, np.uint32))),
    "MT19937, beyond": ("MT19937", _at("state", "pos", value=625)),
    "Random, None": ("random.Random", lambda state: None),
    "torch, no device": ("torch", lambda state: {"state": state["state"]}),
    "torch, device a list": ("torch", _at("device", value=["cpu"])),
    "torch, a list": ("torch", _at("state", value=[0] * 5056)),
}


@pytest.mark.parametrize("case", HOSTILE_PARTS)
def test_what_is_no_state_of_a_generator_is_refused_and_it_goes_on(case):
    name, change = HOSTILE_PARTS[case]
    generator = GENERATORS[name](1)
    state = change(copy.deepcopy(randomness.state_of(generator)))
    with pytest.raises(BadField):
        randomness.put_back(generator, state)
    assert _numbers(generator) == _numbers(GENERATORS[name](1))


def test_the_state_of_a_generator_on_another_device_is_refused():
    state = randomness.state_of(torch.Generator()) | {"device": "cuda"}
    with pytest.raises(StateMismatch, match="'cuda'"):
        randomness.put_back(torch.Generator(), state)


class _Own(np.random.MT19937):
    pass


def test_what_has_no_state_is_no_generator():
    for value in (random.SystemRandom(), 5, None, torch.zeros(3), "x"):
        assert not randomness.is_generator(value)
        with pytest.raises(RefusedState):
            randomness.state_of(value)
    with pytest.raises(RefusedState, match="_Own"):
        randomness.state_of(np.random.Generator(_Own(1)))
