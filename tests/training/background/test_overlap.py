"""Copies that go on during the next step: what is committed is one step, never two."""

import copy
import threading
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import standfast
from standfast import TrainingState
from standfast.errors import CopyFailed, SlowSaves
from standfast.store.backends.memory import MemoryBackend
from tests.kit.devices import LateDevice, put_tensors_on
from tests.kit.seams import Seams
from tests.kit.stores import same

State = dict[str, Any]


class Counting(nn.Module):
    """Writes a buffer in every forward."""

    calls: Tensor

    def __init__(self, buffer: int = 64) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)
        self.register_buffer("calls", torch.zeros(buffer))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        result: Tensor = self.layer(x)
        return result


class Hookless:
    """An optimizer of the program's own, which nobody can have wait."""

    def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
        self.parameters = list(parameters)
        self.moments = [torch.zeros_like(each) for each in self.parameters]

    def step(self) -> None:
        with torch.no_grad():
            for parameter, moment in zip(self.parameters, self.moments, strict=True):
                assert parameter.grad is not None
                moment.mul_(0.9).add_(parameter.grad)
                parameter.sub_(0.1 * moment)

    def state_dict(self) -> State:
        return {"moments": self.moments}

    def load_state_dict(self, state: State) -> None:
        self.moments = state["moments"]


class Program:
    """A small training program on the device, and what its state was after each step."""

    def __init__(self, store: Any = None, optimizer: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        # A buffer of one number lies on the host, so that nothing is there to be waited for.
        self.model = Counting(options.pop("buffer", 1))
        self.optimizer = (optimizer or partial(torch.optim.AdamW, lr=0.1))(self.model.parameters())
        state = TrainingState(model=self.model, optimizer=self.optimizer)
        # In memory, where a thread of this process writes: no helper has to start.
        store = standfast.Store(MemoryBackend()) if store is None else store
        self.ckpt = standfast.Checkpointer(store, state, name="run", **{"every": 1} | options)
        self.were: dict[int, State] = {}
        self.train()

    def forward_and_backward(self) -> None:
        self.model(torch.randn(8, 64)).square().mean().backward()

    def train(self) -> None:
        self.forward_and_backward()
        self.optimizer.step()
        self.model.zero_grad()

    def save(self) -> None:
        """Remember the state as it is, and save it."""
        self.were[self.ckpt.next_step] = copy.deepcopy(
            {"model": dict(self.model.state_dict()), "optimizer": self.optimizer.state_dict()}
        )
        self.ckpt.step()

    def saved(self) -> dict[int, bool]:
        """The steps that were committed, and whether each is what its state was."""
        self.ckpt.wait()
        states = {each.step: each.state() for each in self.ckpt.run.checkpoints()}
        for state in states.values():
            del state["random"]
            state["model"] = dict(state["model"])
        return {step: same(self.were[step], state) for step, state in states.items()}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, seams: Seams) -> LateDevice:
    seams.bound("small tensors", 2)  # so that nothing is small
    device = LateDevice(delay=0.005)
    put_tensors_on(device, monkeypatch)
    return device


@pytest.fixture
def program(device: LateDevice) -> Iterator[Program]:
    program = Program()
    with program.ckpt:
        yield program


def until_warm(program: Program) -> None:
    """Wait until there are two stagings."""
    background, deadline = program.ckpt._open()._background, time.monotonic() + 60
    assert background is not None
    while len(background._stagings._free) < 2:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def settled(program: Program) -> None:
    """Wait until no save is under way, and do not ask how it went."""
    deadline = time.monotonic() + 60
    while not program.ckpt._open().is_idle():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_step_returns_before_what_the_optimizer_owns_is_copied(program, device):
    with device.held():
        program.save()
        program.forward_and_backward()
        copied = len(device.out)
    assert copied == 0
    assert program.saved() == {1: True}
    parameters = sum(each.numel() for each in program.model.parameters()) * 4
    assert sum(piece.target.size for piece in device.out) >= 3 * parameters


def test_the_optimizer_waits_for_the_copies(program, device):
    program.train()
    for _ in range(5):
        with device.held():
            program.save()
            program.train()
    assert program.saved() == dict.fromkeys(range(1, 6), True)
    assert device.came_first >= 5


@pytest.mark.parametrize(
    "options",
    [{"buffer": 64}, {"optimizer": Hookless}, {"overlap": False}],
    ids=["a buffer", "no hooks", "no overlap"],
)
def test_what_cannot_be_overlapped_is_waited_for(device, options):
    program = Program(**options)
    with program.ckpt:
        for _ in range(3):
            program.save()
            if "overlap" in options:
                _edit(program)
            program.forward_and_backward()
            if "buffer" not in options:
                program.optimizer.step()
        assert program.saved() == {1: True, 2: True, 3: True}


def test_gradients_may_be_accumulated_over_several_saves(program, device):
    for step in range(6):
        program.forward_and_backward()
        if step % 3 == 2:
            program.optimizer.step()
        program.save()
    assert program.saved() == dict.fromkeys(range(1, 7), True)


def _edit(program: Program) -> None:
    with torch.no_grad():
        program.model.layer.weight.mul_(0.5)


def _edit_data(program: Program) -> None:
    program.model.layer.weight.data.clamp_(-0.01, 0.01)


def _swap_rows(program: Program) -> None:
    with torch.no_grad():
        program.model.layer.weight[[0, 1]] = program.model.layer.weight[[1, 0]].clone()


def _edit_moment(program: Program) -> None:
    program.optimizer.state[program.model.layer.bias]["exp_avg"][3] = 1.0


@pytest.mark.parametrize(
    ("edit", "in_memory"),
    [(_edit, False), (_edit, True), (_edit_data, True), (_swap_rows, True), (_edit_moment, True)],
)
def test_what_is_edited_by_hand_is_never_committed_as_the_step_before(
    tmp_path, device, edit, in_memory, capsys
):
    program = Program(None if in_memory else tmp_path)
    with program.ckpt:
        with device.held():
            program.save()
            edit(program)
        settled(program)
        program.train()
        program.save()
        edit(program)  # which is waited for by now
        program.train()
        program.save()
        program.ckpt.wait()
        edit(program)
        program.save()
        assert program.saved() == {2: True, 3: True, 4: True}
    said = [
        line for line in capsys.readouterr().err.splitlines() if "model" in line or "opt" in line
    ]
    assert len([line for line in said if "step 1" in line]) == 1
    assert not [line for line in said if "step 1" not in line]


def test_the_next_step_is_saved_for_one_that_changed_whatever_the_schedule_says(device):
    program = Program(every=10)
    with program.ckpt:
        for _ in range(9):
            program.save()
        with device.held():
            program.save()
            _edit(program)
        settled(program)
        for _ in range(4):
            program.save()
        assert program.saved() == {11: True}


def test_waiting_for_a_save_whose_state_changed_says_so(program, device):
    with device.held():
        program.save()
        _edit(program)
    with pytest.raises(standfast.errors.StateChanged, match=r"model\.layer"):
        program.ckpt.wait()


def test_after_the_last_step_the_state_is_free(device):
    program = Program()
    with program.ckpt:
        with device.held():
            threading.Timer(0.3, device._open.set).start()
            for _ in program.ckpt.steps(1):
                program.save()
        _edit(program)
        assert program.saved() == {1: True}


def test_the_optimizer_is_left_as_it_was_and_the_memory_given_back(tmp_path, device):
    program = Program(tmp_path)
    with program.ckpt:
        program.save()
        program.ckpt.wait()
        assert device.out
        assert all(device.is_pinned(piece.target) for piece in device.out)
    before = device.came_first
    program.train()
    assert device.came_first == before
    assert not program.optimizer._optimizer_step_pre_hooks
    assert device.pinned == {}


def test_a_copy_that_fails_is_raised_and_leaves_the_checkpoint_before(program, device):
    program.save()
    program.ckpt.wait()
    device.fails_after = 0
    program.save()
    with pytest.raises(CopyFailed, match="late:0"):
        program.ckpt.wait()
    device.fails_after = None
    assert program.saved() == {1: True}
    program.save()
    assert program.saved() == {1: True, 3: True}


def test_a_copy_that_fails_before_the_step_returns_is_raised_there(device):
    program = Program(overlap=False)
    with program.ckpt:
        device.fails_after = 0
        with pytest.raises(CopyFailed):
            program.save()
        device.fails_after = None


@pytest.mark.parametrize("why", ["nothing can be pinned", "no copy may be made"])
def test_saves_go_on_without_the_memory_for_them_and_warn(device, why):
    may_copy = why == "nothing can be pinned"
    device.pins_at_most = 0
    program = Program(staging=None if may_copy else 1000)

    def saved() -> dict[int, bool]:
        with program.ckpt:
            for _ in range(2):
                program.save()
                program.train()
            return program.saved()

    with pytest.warns(SlowSaves, match="late:0" if may_copy else None):
        assert saved() == {1: True, 2: True}
    assert bool(device.out) == may_copy
    assert device.most_pinned == 0


def test_no_more_memory_is_pinned_than_asked_for(device):
    program = Program(staging="2MB")
    with program.ckpt:
        for _ in range(4):
            program.train()
            program.save()
        assert program.saved() == dict.fromkeys(range(1, 5), True)
    assert 0 < device.most_pinned <= 2_000_000


def test_a_second_state_is_copied_while_the_first_is_written(tmp_path, device, seams):
    gate = threading.Event()
    program = Program(tmp_path)
    with program.ckpt:
        until_warm(program)
        seams.backend(create=lambda create, *given: (gate.wait(30), create(*given)))
        program.save()
        program.train()
        program.save()
        program.train()
        assert not program.ckpt._open().is_idle()
        gate.set()
        assert program.saved() == {1: True, 2: True}
