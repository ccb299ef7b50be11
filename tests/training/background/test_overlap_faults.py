"""Overlapped saves when something goes wrong: no mix, nothing lent forever, nothing lost."""

import gc
import linecache
import os
import signal
import sys
import threading
from types import FrameType
from typing import Any

import pytest
import torch

from standfast.errors import CopyFailed, StateChanged, WriteFailed
from standfast.training.background.background import Background
from tests.kit.devices import LateDevice, put_tensors_on
from tests.kit.seams import Seams
from tests.training.background.test_overlap import Program, device, program, settled, until_warm

__all__ = ["device", "program"]


def background(program: Program) -> Background:
    found = program.ckpt._open()._background
    assert found is not None
    return found


def edit(program: Program) -> None:
    with torch.no_grad():
        program.model.layer.weight.mul_(0.5)


def changed_in_flight(program: Program, device: LateDevice) -> None:
    with device.held():
        program.save()
        edit(program)


@pytest.mark.parametrize("stagings_there", [1, 2])
def test_a_state_that_changed_does_not_end_a_loop_that_saves_at_once(
    device, seams, tmp_path, stagings_there
):
    if stagings_there == 1:
        (tmp_path / "meminfo").write_text("MemAvailable: 0 kB\n")
        seams.bound("file of free memory", tmp_path / "meminfo")
    program = Program()
    with program.ckpt:
        changed_in_flight(program, device)
        for _ in range(4):
            program.save()
        assert program.saved() == {2: True, 3: True, 4: True, 5: True}


def test_a_state_that_changed_does_not_end_a_loop_that_reports(program, device, capsys):
    changed_in_flight(program, device)
    program.ckpt.report(validation=0.5)
    program.save()
    assert program.saved() == {2: True}
    assert capsys.readouterr().err.count("step 1 ") == 1


def test_who_was_told_of_a_state_that_changed_has_the_next_one_saved(device):
    program = Program(every=2)
    with program.ckpt:
        program.save()
        changed_in_flight(program, device)
        with pytest.raises(StateChanged, match="2"):
            program.ckpt.wait()
        program.save()
        edit(program)  # which is waited for by now
        assert program.saved() == {3: True}


def test_a_step_may_be_saved_once_more_after_its_replacement_failed(program, device):
    program.save()
    program.ckpt.wait()
    device.fails_after = 0
    program.ckpt.save()
    with pytest.raises(CopyFailed):
        program.ckpt.wait()
    device.fails_after = None
    program.ckpt.save()
    assert program.saved() == {1: True}


def two_failures(program: Program) -> None:
    """Two saves under way, both of which fail."""
    gate = threading.Event()

    def fail(create: Any, name: str, data: bytes) -> None:
        gate.wait(30)
        raise WriteFailed(28, f"no space for {name}")

    until_warm(program)
    with Seams.until_end() as seams:
        seams.backend(program.ckpt.store.backend, create=fail)
        for _ in range(2):
            program.save()
            program.train()
        gate.set()
        settled(program)


def test_two_saves_that_failed_do_not_keep_a_program_that_must_end_from_saving(program):
    two_failures(program)
    os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(WriteFailed, match="step_000001"):
        program.save()
    assert program.ckpt.should_stop
    assert [each.step for each in program.ckpt.run.checkpoints()] == [3]


def test_all_that_failed_is_told_of_at_the_end(device):
    program = Program()
    with pytest.raises(WriteFailed, match="step_000001") as caught, program.ckpt:
        two_failures(program)
    assert "step_000002" in "".join(caught.value.__notes__)


def test_a_staging_is_not_lent_while_another_device_still_copies_into_it(
    program, device, monkeypatch
):
    other = LateDevice("late:1")
    put_tensors_on(device, monkeypatch, {program.model.layer.bias.data_ptr(): other})
    device.fails_after = 0
    with other.held():
        program.save()
        threading.Event().wait(0.2)
        assert not program.ckpt._open().is_idle()
    settled(program)
    device.fails_after = None
    with pytest.raises(CopyFailed):
        program.ckpt.wait()
    program.save()
    assert program.saved() == {2: True}


def grown(program: Program, numbers: int) -> None:
    program.model.register_buffer("more", torch.rand(numbers))


@pytest.mark.parametrize(("limit", "most"), [("3MB", 3_000_000), (None, 4_500_000)])
def test_a_state_that_grows_takes_no_more_than_it_may(tmp_path, device, seams, limit, most):
    if limit is None:  # then the machine has no more than 3 MB
        meminfo = tmp_path / "meminfo"
        meminfo.write_text("MemAvailable: 2929 kB\n")
        seams.bound("file of free memory", meminfo)
    program = Program(staging=limit)
    sizes = []
    with program.ckpt:
        for numbers in (10, 10, 500_000, 500_000, 500_000, 510_000, 510_000):
            grown(program, numbers)
            program.save()
            sizes.append(sum(each.size for each in background(program)._stagings.all))
        assert program.saved() == dict.fromkeys(range(1, 8), True)
    assert max(sizes) <= most
    assert device.most_pinned <= most
    assert device.pinned == {}


def test_the_first_save_finds_room_for_the_sums(device, seams):
    seams.bound("memory left to others", 0)
    program = Program(every=2)
    program.model.more = torch.nn.Parameter(torch.rand(17_000))
    program.optimizer.add_param_group({"params": [program.model.more]})
    program.model.more.grad = torch.rand(17_000)
    program.train()
    with program.ckpt:
        program.save()
        until_warm(program)
        before = [each.size for each in background(program)._stagings.all]
        program.save()
        assert program.saved() == {2: True}
        assert [each.size for each in background(program)._stagings.all] == before


def test_a_state_that_just_fits_the_limit_is_pinned_ahead(device):
    program = Program(every=2, staging=1_200_000)
    grown(program, 250_000)
    program.train()
    with program.ckpt:
        program.save()
        program.save()
        assert program.saved() == {2: True}
        assert device.out
        assert all(device.is_pinned(piece.target) for piece in device.out)
    assert device.most_pinned <= 1_200_000


class Interrupt:
    """Raises KeyboardInterrupt at one line of those that the caller runs of a save."""

    FILES = ("background.py", "stagings.py", "staging.py", "underway.py", "overlap.py")

    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self.FILES):
            return None
        if frame.f_code.co_name in ("drain", "_drain", "_reclaim", "reclaim", "give_back"):
            return None  # what cleans up is not interrupted again
        if frame.f_code.co_name == "__del__" or frame.f_back is None:
            return None  # of another test's garbage, where the interrupt would be lost
        line = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
        if event == "line" and not line.startswith("with "):  # no signal comes before its exit
            self.left -= 1
            if self.left == 0:
                raise KeyboardInterrupt
        return self


def test_a_save_that_is_interrupted_anywhere_leaves_all_as_it_was(program, device):
    gc.collect()
    device.delay = 0.0
    at, interrupted = 1, True
    while interrupted:
        interrupt = Interrupt(at)
        interrupted = False
        sys.settrace(interrupt)
        try:
            program.save()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            sys.settrace(None)
        edit_is_safe = background(program).is_idle()
        if edit_is_safe:  # nothing was handed over, and nobody reads the state
            edit(program)
        at += 7
    for _ in range(3):
        program.train()
        program.save()
    assert at > 100
    saved = program.saved()
    assert all(saved.values())
    last = program.ckpt.next_step - 1
    assert {last, last - 1, last - 2} <= set(saved)
    assert not background(program)._stagings._lent
