"""Copies that go on beside the next step: what is committed is one step, never two."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import standfast
from standfast import TrainingState
from standfast.errors import CopyFailed, SlowSaves
from standfast.files.staging import device_copies, layout
from tests.kit.devices import LateDevice, put_tensors_on

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

    def __init__(self, folder: Path, optimizer: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        # A buffer of one number lies on the host, so that nothing is there to be waited for.
        self.model = Counting(options.pop("buffer", 1))
        self.optimizer = optimizer or torch.optim.AdamW(self.model.parameters(), lr=0.1)
        state = TrainingState(model=self.model, optimizer=self.optimizer)
        self.ckpt = standfast.Checkpointer(folder, state, name="run", **{"every": 1} | options)
        self.were: dict[int, State] = {}

    def forward_and_backward(self) -> None:
        self.model(torch.randn(8, 64)).square().mean().backward()

    def train(self) -> None:
        self.forward_and_backward()
        self.optimizer.step()
        self.model.zero_grad()

    def save(self) -> None:
        """Remember the state as it is, and save it."""
        self.were[self.ckpt.next_step] = {
            "model": {k: v.clone() for k, v in self.model.state_dict().items()},
            "optimizer": _cloned(self.optimizer.state_dict()),
        }
        self.ckpt.step()

    def saved(self) -> dict[int, bool]:
        """The steps that were committed, and whether each is what its state was."""
        self.ckpt.wait()
        return {
            each.step: _same(self.were[each.step], each.state())
            for each in self.ckpt.run.checkpoints()
        }


def _cloned(tree: Any) -> Any:
    if isinstance(tree, Tensor):
        return tree.clone()
    if isinstance(tree, dict):
        return {key: _cloned(value) for key, value in tree.items()}
    return [*map(_cloned, tree)] if isinstance(tree, list) else tree


def _same(mine: Any, saved: Any) -> bool:
    if isinstance(mine, Tensor):
        return torch.equal(mine, saved)
    if isinstance(mine, dict):
        return all(_same(value, saved[key]) for key, value in mine.items())
    if isinstance(mine, list):
        return all(_same(a, b) for a, b in zip(mine, saved, strict=True))
    return bool(mine == saved)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> LateDevice:
    for module in (layout, device_copies):
        monkeypatch.setattr(module, "SMALL", 2)  # so that nothing is small
    device = LateDevice(delay=0.02)
    put_tensors_on(device, monkeypatch)
    return device


@pytest.fixture
def program(tmp_path: Path, device: LateDevice) -> Iterator[Program]:
    program = Program(tmp_path)
    program.train()
    with program.ckpt:
        yield program


def settled(program: Program) -> None:
    """Wait until no save is under way, and do not ask how it went."""
    deadline = time.monotonic() + 30
    while not program.ckpt._open().is_idle():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def released_soon(device: LateDevice, during: Callable[[], None]) -> None:
    """Do something while no copy is made, which goes on for a while without it waiting."""
    with device.held():
        timer = threading.Timer(0.3, device._open.set)
        timer.start()
        during()
        timer.join()


def test_a_step_returns_before_what_the_optimizer_owns_is_copied(
    program: Program, device: LateDevice
) -> None:
    with device.held():
        program.save()
        program.forward_and_backward()
        copied = len(device.out)
    assert copied == 0
    assert program.saved() == {1: True}
    parameters = sum(each.numel() for each in program.model.parameters()) * 4
    assert sum(piece.target.size for piece in device.out) >= 3 * parameters


def test_the_optimizer_waits_for_the_copies(program: Program, device: LateDevice) -> None:
    program.train()
    for _ in range(5):
        with device.held():
            program.save()
            program.train()
    assert program.saved() == dict.fromkeys(range(1, 6), True)
    assert device.came_first >= 5


def test_buffers_that_forward_writes_are_copied_before(tmp_path: Path, device: LateDevice) -> None:
    program = Program(tmp_path, buffer=64)
    program.train()
    with program.ckpt:
        for _ in range(3):
            program.save()
            program.forward_and_backward()
            program.forward_and_backward()
        assert program.saved() == {1: True, 2: True, 3: True}


def test_gradients_may_be_accumulated_over_several_saves(
    program: Program, device: LateDevice
) -> None:
    for step in range(6):
        program.forward_and_backward()
        if step % 3 == 2:
            program.optimizer.step()
        program.save()
    assert program.saved() == dict.fromkeys(range(1, 7), True)


def test_an_optimizer_without_hooks_is_waited_for(tmp_path: Path, device: LateDevice) -> None:
    program = Program(tmp_path)
    program.optimizer = Hookless(program.model.parameters())
    state = TrainingState(model=program.model, optimizer=program.optimizer)
    program.ckpt = standfast.Checkpointer(tmp_path, state, name="run", every=1)
    with program.ckpt:
        for _ in range(3):
            program.train()
            program.save()
        assert program.saved() == {1: True, 2: True, 3: True}


def test_nothing_is_overlapped_if_it_is_not_wanted(tmp_path: Path, device: LateDevice) -> None:
    program = Program(tmp_path, overlap=False)
    program.train()
    with program.ckpt:
        program.save()
        with torch.no_grad():
            program.model.layer.weight.zero_()
        assert program.saved() == {1: True}


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


@pytest.mark.parametrize("edit", [_edit, _edit_data, _swap_rows, _edit_moment])
def test_what_is_edited_by_hand_is_never_committed_as_the_step_before(
    program: Program, device: LateDevice, edit: Callable[[Program], None], capsys: Any
) -> None:
    with device.held():
        program.save()
        edit(program)
    settled(program)
    program.train()
    program.save()
    edit(program)  # which is waited for by now
    program.train()
    program.save()
    assert program.saved() == {2: True, 3: True}
    said = capsys.readouterr().err
    assert said.count("step 1 was not saved: ") == 1
    assert "the next step is saved instead" in said


def test_who_edits_nothing_until_the_copies_are_made_is_not_bothered(
    program: Program, device: LateDevice, capsys: Any
) -> None:
    program.save()
    program.ckpt.wait()
    _edit(program)
    program.save()
    assert program.saved() == {1: True, 2: True}
    assert "was not saved" not in capsys.readouterr().err


def test_the_next_step_is_saved_for_one_that_changed_whatever_the_schedule_says(
    tmp_path: Path, device: LateDevice
) -> None:
    program = Program(tmp_path, every=10)
    program.train()
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


def test_waiting_for_a_save_whose_state_changed_says_so(
    program: Program, device: LateDevice
) -> None:
    with device.held():
        program.save()
        _edit(program)
    with pytest.raises(standfast.errors.StateChanged, match=r"step 1 was not saved: model.layer"):
        program.ckpt.wait()


def test_after_the_last_step_the_state_is_free(tmp_path: Path, device: LateDevice) -> None:
    program = Program(tmp_path)
    program.train()
    with program.ckpt:

        def loop() -> None:
            for _ in program.ckpt.steps(1):
                program.save()

        released_soon(device, loop)
        _edit(program)
        assert program.saved() == {1: True}


def test_the_optimizer_is_left_as_it_was(tmp_path: Path, device: LateDevice) -> None:
    program = Program(tmp_path)
    program.train()
    with program.ckpt:
        program.save()
    before = device.came_first
    program.train()
    assert device.came_first == before
    assert not program.optimizer._optimizer_step_pre_hooks


def test_a_copy_that_fails_is_raised_and_leaves_the_checkpoint_before(
    program: Program, device: LateDevice
) -> None:
    program.save()
    program.ckpt.wait()
    device.fails_after = 0
    program.save()
    with pytest.raises(CopyFailed, match="an illegal memory access"):
        program.ckpt.wait()
    device.fails_after = None
    assert program.saved() == {1: True}
    program.save()
    assert program.saved() == {1: True, 3: True}


def test_a_copy_that_fails_before_the_step_returns_is_raised_there(
    tmp_path: Path, device: LateDevice
) -> None:
    program = Program(tmp_path, overlap=False)
    program.train()
    with program.ckpt:
        device.fails_after = 0
        with pytest.raises(CopyFailed):
            program.save()
        device.fails_after = None


def test_memory_is_pinned_ahead_and_given_back(tmp_path: Path, device: LateDevice) -> None:
    program = Program(tmp_path)
    program.train()
    with program.ckpt:
        program.save()
        program.ckpt.wait()
        assert device.out
        assert all(device.is_pinned(piece.target) for piece in device.out)
    assert device.pinned == {}


def saved_twice(program: Program) -> dict[int, bool]:
    with program.ckpt:
        for _ in range(2):
            program.save()
            program.train()
        return program.saved()


def test_without_pinned_memory_saves_go_on_and_the_price_is_told(
    tmp_path: Path, device: LateDevice
) -> None:
    device.pins_at_most = 0
    program = Program(tmp_path)
    program.train()
    with pytest.warns(SlowSaves, match=r"cannot be pinned for late:0 \(no more"):
        assert saved_twice(program) == {1: True, 2: True}
    assert device.pinned == {}


def test_no_more_memory_is_pinned_than_asked_for(tmp_path: Path, device: LateDevice) -> None:
    program = Program(tmp_path, staging="2MB")
    program.train()
    with program.ckpt:
        for _ in range(4):
            program.train()
            program.save()
        assert program.saved() == dict.fromkeys(range(1, 5), True)
    assert 0 < device.most_pinned <= 2_000_000


def test_a_state_that_may_not_be_copied_is_written_while_the_loop_waits(
    tmp_path: Path, device: LateDevice
) -> None:
    program = Program(tmp_path, staging=1000)
    program.train()
    with pytest.warns(SlowSaves, match="takes more memory than it may"):
        assert saved_twice(program) == {1: True, 2: True}
    assert device.out == []
    assert device.most_pinned == 0


def test_a_second_state_is_copied_while_the_first_is_written(
    tmp_path: Path, device: LateDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    from standfast.store.backends.local import LocalBackend

    create, gate = LocalBackend.create, threading.Event()

    def once_let(self: LocalBackend, name: str, data: bytes) -> None:
        gate.wait(30)
        create(self, name, data)

    program = Program(tmp_path)
    program.train()
    with program.ckpt:
        while len(program.ckpt._open()._background._stagings._free) < 2:  # type: ignore[union-attr]
            time.sleep(0.01)
        monkeypatch.setattr(LocalBackend, "create", once_let)
        program.save()
        program.train()
        program.save()
        program.train()
        assert not program.ckpt._open().is_idle()
        gate.set()
        assert program.saved() == {1: True, 2: True}
