"""What is streamed into a device is what was saved, and nothing is under way afterwards."""

import _thread
import errno
import io
import os
import shutil
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import errors
from standfast.files import blocks, device_reader
from standfast.files.blocks import BLOCK
from standfast.files.device_reader import Stretch, stream
from standfast.files.digests import CHUNK
from standfast.files.input.file import SourceFile
from standfast.files.input.memory import SourceMemory
from standfast.files.layout import Index
from standfast.files.reader import Reader
from standfast.tensorfile.open import TensorFile
from standfast.tensors.devices import Copies, Incoming
from standfast.tensors.sources import Bytes
from tests.files.states import cached, flip_in
from tests.kit.devices import LateDevice
from tests.kit.seams import Seams

SIZES = {"empty": 0, "one": 1, "few": 1000, "large": 3 * CHUNK + 20, "even": CHUNK, "last": 77}
"""In bytes: each tensor counts its own."""

WAYS = pytest.mark.parametrize("is_cached", [True, False], ids=["cached", "direct"])


@pytest.fixture(scope="module")
def state() -> dict[str, np.ndarray[Any, Any]]:
    random = np.random.default_rng(0)
    return {name: np.frombuffer(random.bytes(size), np.uint8) for name, size in SIZES.items()}


@pytest.fixture(scope="module")
def saved(state: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("streaming") / "state.safetensors"
    standfast.save(path, state)
    return path


@pytest.fixture
def path(saved: Path, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copy(saved, tmp_path / "copy.safetensors"))


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small.safetensors"
    standfast.save(path, {"small": np.arange(5, dtype=np.uint8)})
    return path


@pytest.fixture
def few_blocks(seams: Seams) -> None:
    """Two blocks, whatever the machine has: one is read into while the other is copied."""
    seams.bound("threads that read blocks", 1)
    seams.bound("threads that copy", 1)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No thread after a test, and no blocks for the next one."""
    yield
    blocks._forget()
    stacks = [traceback.extract_stack(frame) for frame in sys._current_frames().values()]
    assert not [stack for stack in stacks if "_read" in {frame.name for frame in stack}]


def _stretches(file: TensorFile, device: LateDevice, *names: str) -> dict[str, Stretch]:
    found = {name: file.stretch(name, device.empty(file.spec(name))) for name in names or file}
    return {name: stretch for name, stretch in found.items() if stretch is not None}


def _streamed(device: LateDevice, source: Path | io.BytesIO, **options: Any) -> dict[str, Any]:
    with TensorFile(source, **options) as file:
        stretches = _stretches(file, device)
        stream(device, list(stretches.values()))
    return {name: stretch.target.numpy() for name, stretch in stretches.items()}


def _same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return list(found) == list(expected) and all(
        np.array_equal(found[name], expected[name]) for name in expected
    )


@WAYS
@pytest.mark.parametrize("mapped", [True, False], ids=["mapped", "read"])
def test_all_tensors_arrive(saved, state, is_cached, mapped, seams):
    cached(seams, is_cached)
    assert _same(_streamed(LateDevice(), saved, mapped=mapped), state)
    assert _same(_streamed(LateDevice(), io.BytesIO(saved.read_bytes())), state)


def test_a_block_is_used_again_after_its_copies(saved, state, few_blocks):
    device = LateDevice(delay=0.02)
    assert _same(_streamed(device, saved), state)
    assert sum(device.pinned.values()) == 2 * BLOCK


def test_copies_are_made_in_the_order_of_the_files(saved, small):
    device = LateDevice()
    with TensorFile(saved) as first, TensorFile(small) as second:
        stretches = _stretches(first, device)
        given = [*_stretches(second, device).values(), *reversed(stretches.values())]
        stream(device, given)
        rows = first._index.file_order.tolist()
    targets = [stretch.target for stretch in sorted(stretches.values(), key=lambda s: s.row)]
    expected = [id(given[0].target), *(id(targets[row]) for row in rows if targets[row].numel())]
    assert list(dict.fromkeys(id(piece.target) for piece in device.incoming)) == expected


def test_one_copy_call_takes_all_small_neighbours(tmp_path, seams):
    path = tmp_path / "small.safetensors"
    standfast.save(path, {f"tensor {i}": np.full(100, i, np.uint8) for i in range(50)})
    device, batches = LateDevice(), list[int]()
    seams.system(device, copy_in=lambda copy, pieces: batches.append(len(pieces)) or copy(pieces))
    found = _streamed(device, path)
    assert batches == [50]
    assert all((found[f"tensor {i}"] == i).all() for i in range(50))


def test_what_lies_between_far_tensors_is_not_read(tmp_path, seams):
    path = tmp_path / "far.safetensors"
    sizes = {"first": 10, "near": 1000, "far": 1 << 20, "last": 10}
    standfast.save(path, {name: np.full(n, 7, np.uint8) for name, n in sizes.items()})
    device = LateDevice()
    with TensorFile(path, mapped=False) as file:
        assert file._index.file_order.tolist() == [file._row(name) for name in sizes]
        reads = cached(seams, True)
        stretches = _stretches(file, device, "first", "last")
        stream(device, list(stretches.values()))
        assert sorted(reads) == [10, 10]
        stream(device, [*_stretches(file, device, "far").values(), stretches["first"]])
    assert sorted(reads)[2:] == [10 + 1000 + (1 << 20)]
    assert stretches["last"].target.tolist() == [7] * 10


def test_tensors_that_share_their_bytes_are_read_together():
    data = np.random.default_rng(0).bytes(5000)
    reads: list[int] = []

    class Counted(SourceMemory):
        def read_into(self, out: Any, start: int) -> None:
            reads.append(out.size)
            super().read_into(out, start)

    spans = {"whole": (0, 5000), "inner": (100, 200), "late": (3000, 1000)}
    starts, sizes = map(np.array, zip(*spans.values(), strict=True))
    rows = {name: row for row, name in enumerate(spans)}
    shapes = [(size,) for size in sizes.tolist()]
    index = Index("by hand", {}, rows, ["uint8"] * 3, shapes, starts, sizes, 5000, None)
    reader = Reader(Counted("memory", data), index)
    targets = [torch.zeros(size, dtype=torch.uint8) for (size,) in shapes]
    stream(LateDevice(), [Stretch(reader, row, targets[row], 0, "uint8") for row in range(3)])
    assert reads == [5000]
    for target, (start, size) in zip(targets, spans.values(), strict=True):
        assert target.numpy().tobytes() == data[start : start + size]


def test_a_row_may_go_to_several_tensors_and_to_a_part_of_one(saved, state):
    twice = [torch.zeros(state["large"].size, dtype=torch.uint8) for _ in range(2)]
    whole = torch.zeros(3000, dtype=torch.uint8)
    with TensorFile(saved) as file:
        wanted = [("large", twice[0], 0), ("large", twice[1], 0), ("few", whole, 1500)]
        rows = [(file._row(name), target, start) for name, target, start in wanted]
        stream(LateDevice(), [Stretch(file._reader, *row, "uint8") for row in rows])
    assert all(np.array_equal(target.numpy(), state["large"]) for target in twice)
    assert np.array_equal(whole.numpy(), np.pad(state["few"], (1500, 500)))


def test_elements_are_cast_to_those_of_the_tensor(tmp_path):
    path = tmp_path / "state.safetensors"
    weight = np.random.default_rng(0).standard_normal(CHUNK // 4 + 5).astype(np.float32)
    standfast.save(path, {"weight": weight})
    target = torch.zeros(weight.size, dtype=torch.bfloat16)
    device = LateDevice()
    with TensorFile(path) as file:
        stream(device, [Stretch(file._reader, 0, target, 0, "float32")])
    expected = torch.from_numpy(weight).to(torch.bfloat16)
    assert torch.equal(target.view(torch.int16), expected.view(torch.int16))


def test_progress_counts_all_bytes(saved):
    device, told = LateDevice(), list[int]()
    with TensorFile(saved) as file:
        stream(device, list(_stretches(file, device).values()), told.append)
    assert sum(told) == sum(SIZES.values())
    assert len(told) > 1


def test_the_blocks_are_kept_for_the_next_load(saved, small):
    assert (device_reader._MOST_THREADS + device_reader._COPYING) * BLOCK < 512_000_000
    device = LateDevice()
    stream(device, [])
    assert device.most_pinned == 0
    _streamed(device, small)
    assert device.most_pinned == BLOCK
    _streamed(device, saved)
    grown = dict(device.pinned)
    assert len(grown) == 1  # in the place of the one that was too small
    assert sum(grown.values()) > BLOCK
    _streamed(device, small)
    _streamed(device, saved)
    assert device.pinned == grown


def test_a_load_within_a_load_has_blocks_of_its_own(saved, state):
    device = LateDevice()
    turns, inner = iter([saved]), []

    def progress(count: int) -> None:
        inner.extend(_streamed(device, path) for path in turns)

    with TensorFile(saved) as file:
        stretches = _stretches(file, device)
        stream(device, list(stretches.values()), progress)
    assert _same(inner[0], state)
    assert _same({n: stretch.target.numpy() for n, stretch in stretches.items()}, state)
    assert len(device.pinned) == 1  # one of the two was let go


def test_a_forked_child_has_no_blocks(saved):
    device = LateDevice()
    _streamed(device, saved)
    assert blocks._kept
    child = os.fork()
    if not child:
        os._exit(len(blocks._kept))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert blocks._kept


def test_blocks_that_cannot_be_pinned_do_as_well(saved, state):
    device = LateDevice()
    device.pins_at_most = 0
    assert _same(_streamed(device, saved), state)
    assert not device.pinned
    device.pins_at_most = None
    _streamed(device, saved)
    assert device.pinned  # it is tried again


def test_all_damaged_tensors_are_named_and_none_of_their_chunks_is_copied(path):
    flip_in(path, "few", 10)
    flip_in(path, "last")
    device = LateDevice()
    with TensorFile(path) as file:
        stretches = _stretches(file, device)
        with pytest.raises(errors.DigestMismatch, match=r"copy\.safetensors") as caught:
            stream(device, list(stretches.values()))
    assert set(caught.value.tensors) == {"few", "last"}
    copied = {id(piece.target) for piece in device.incoming}
    assert not copied & {id(stretches[name].target) for name in ("few", "last")}


@pytest.mark.parametrize(("at", "copied", "read"), [(0, [], 2), (CHUNK, [0], 3)])
def test_after_a_damaged_chunk_nothing_more_is_read_or_copied(
    path, few_blocks, seams, at, copied, read
):
    flip_in(path, "large", at)
    device = LateDevice(delay=0.005)
    with TensorFile(path, mapped=False) as file:
        reads = cached(seams, True)
        with pytest.raises(errors.DigestMismatch) as caught:
            stream(device, [_stretches(file, device, "large")["large"]])
    assert caught.value.tensors == ("large",)
    assert [piece.start for piece in device.incoming] == copied
    assert len(reads) <= read  # of four: as many as there are blocks, and those copied before


def test_the_files_that_hold_damage_are_told(path, saved, small):
    flip_in(small, "small")
    flip_in(path, "one")
    device, told = LateDevice(), list[Reader]()
    with TensorFile(path) as first, TensorFile(saved) as sound, TensorFile(small) as last:
        given = [_stretches(first, device, "one"), _stretches(sound, device, "one")]
        given.append(_stretches(last, device))
        with pytest.raises(errors.DigestMismatch) as caught:
            stream(device, [each for file in given for each in file.values()], damaged=told.append)
        assert told == [first._reader, last._reader]
    assert caught.value.tensors == ("one", "small")


def test_without_verifying_the_bytes_come_as_they_are(path, state):
    flip_in(path, "few")
    found = _streamed(LateDevice(), path, verify=False)
    assert found["few"][0] == state["few"][0] ^ 1


def test_a_copy_that_fails_ends_the_load(saved, state, few_blocks):
    device = LateDevice(delay=0.005)
    device.fails_after = 1
    with pytest.raises(errors.CopyFailed):
        _streamed(device, saved)
    device.fails_after = None
    assert _same(_streamed(device, saved), state)


@pytest.mark.parametrize("at", ["second copy", "end of a copy call", "progress", "every wait"])
def test_copies_before_an_error_are_waited_for(saved, few_blocks, seams, at):
    device, begun = LateDevice(delay=0.05), list[Copies]()
    presses = iter([KeyboardInterrupt] * 5)

    def interrupted(wait: Any = None) -> None:
        for press in presses:
            raise press
        wait()

    def copy_in(copy: Any, pieces: Sequence[Incoming]) -> Copies:
        if begun and at == "second copy":
            raise errors.CopyFailed("late:0")
        begun.append(copy(pieces))
        if len(begun) == 1 and at == "end of a copy call":
            raise KeyboardInterrupt
        if at == "every wait":
            seams.system(begun[-1], wait=interrupted)
        return begun[-1]

    seams.system(device, copy_in=copy_in)
    with TensorFile(saved) as file:
        stretches = list(_stretches(file, device).values())
        with pytest.raises((errors.CopyFailed, KeyboardInterrupt)):
            stream(device, stretches, interrupted if at == "progress" else None)
        assert begun
        assert all(copies.is_done() for copies in begun)


def test_a_file_that_was_changed_since_it_was_opened_is_refused(path):
    device = LateDevice()
    with TensorFile(path, mapped=False) as file:
        stretches = list(_stretches(file, device).values())
        os.truncate(path, 2 * CHUNK)
        with pytest.raises(errors.ChangedFile):
            stream(device, stretches)
    assert not device.incoming


@WAYS
def test_a_file_that_is_cut_ends_the_load(path, is_cached, seams):
    cached(seams, is_cached)
    cut = []

    def preadv(read: Any, fd: int, buffers: Any, offset: int, flags: int = 0) -> int:
        if flags != os.RWF_NOWAIT and not cut:
            cut.append(os.truncate(path, 2 * CHUNK + 123))
        return int(read(fd, buffers, offset, flags))

    with TensorFile(path, mapped=False) as file:
        stretches = list(_stretches(file, LateDevice()).values())
        seams.system(os, preadv=preadv)
        with pytest.raises(errors.ChangedFile, match=f"{2 * CHUNK + 123:,}"):
            stream(LateDevice(), stretches)


@WAYS
def test_a_block_holds_the_bytes_asked_for(saved, is_cached, seams):
    cached(seams, is_cached)
    block = next(iter(blocks.Blocks(1)))
    file = SourceFile(saved)
    pieces = [(start, CHUNK) for start in (0, 1, 4095, 4096, file.size - CHUNK)]
    for start, size in (*pieces, (0, 0), (5000, 1 << 20), (1234, 10), (file.size - 5000, 5000)):
        found = file.read_block(block, start, size)
        assert found.tobytes() == file.read(start, size)
        assert np.shares_memory(found, block) or not size


@pytest.mark.parametrize("most", [2 * CHUNK, 1 << 20, None], ids=["whole", "short", "refused"])
def test_a_direct_read_takes_whole_pages(saved, most, seams):
    file = SourceFile(saved)
    expected = file.read(4097, CHUNK)
    block = next(iter(blocks.Blocks(1)))
    asked = []

    def preadv(read: Any, fd: int, buffers: Any, offset: int, *flags: int) -> int:
        if fd == file.fd:
            return int(read(fd, buffers, offset, *flags))
        asked.append((offset, len(buffers[0]), buffers[0].obj.ctypes.data % 4096))
        if most is None:
            raise OSError(errno.EINVAL, "Invalid argument")
        return int(read(fd, [buffers[0][:most]], offset, *flags))

    cached(seams, False)
    seams.system(os, preadv=preadv)
    assert file.read_block(block, 4097, CHUNK).tobytes() == expected
    assert asked == [(4096, CHUNK + 4096, 0)]


def test_a_disk_that_cannot_read_ends_the_load(saved, seams):
    def preadv(read: Any, fd: int, buffers: Any, offset: int, *flags: int) -> int:
        if offset > CHUNK and len(buffers[0]) >= 1 << 20:
            raise OSError(errno.EIO, "Input/output error")
        return int(read(fd, buffers, offset, *flags))

    seams.system(os, preadv=preadv)
    with pytest.raises(errors.UnreadableFile, match=saved.name):
        _streamed(LateDevice(), saved, mapped=False)


def test_memory_pinned_before_an_interrupt_is_unpinned(saved, small, seams):
    device = LateDevice()
    presses = iter([KeyboardInterrupt])

    def interrupted(pin: Any, memory: Bytes) -> None:
        pin(memory)
        for press in presses:
            raise press

    seams.system(device, pin=interrupted)
    with pytest.raises(KeyboardInterrupt):
        _streamed(device, small)
    assert len(device.pinned) == 1
    _streamed(device, saved)
    assert len(device.pinned) == 1, "only what is kept is pinned"
    assert sum(device.pinned.values()) > BLOCK


def test_a_thread_that_an_interrupt_hides_is_waited_for(saved, seams):
    begun, under_way = threading.Event(), [0]

    def interrupted(start: Any, *arguments: Any) -> int:
        start(*arguments)
        begun.wait()
        raise KeyboardInterrupt

    def preadv(read: Any, *arguments: Any) -> int:
        under_way[0] += 1
        begun.set()
        time.sleep(0.2)  # the read goes on after the interrupt
        found = int(read(*arguments))
        under_way[0] -= 1
        return found

    with TensorFile(saved, mapped=False) as file:
        stretches = _stretches(file, LateDevice(), "few")
        seams.system(_thread, start_new_thread=interrupted)
        seams.system(os, preadv=preadv)
        with pytest.raises(KeyboardInterrupt):
            stream(LateDevice(), list(stretches.values()))
    assert begun.is_set()
    assert under_way == [0], "the file is closed, and the block is another's by now"
