"""CUDA devices: pinned memory, and copies on streams of their own."""

from __future__ import annotations

import errno
import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch

from standfast.errors import BadOption, CopyFailed
from standfast.tensors import Source, TensorSpec
from standfast.tensors.devices import COLUMNS, WORD, Copies, Device, Incoming, Outgoing
from standfast.tensors.sources import ALIGNMENT, Bytes
from standfast.torch.dtypes import bytes_of, dtype_of, empty

_PORTABLE: Final = 1
"""Pinned for all devices, not for the current one alone."""


def device(name: str) -> Device | None:
    """The device of that name; None for the host. Raises BadOption if there is none."""
    try:
        found = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise BadOption(f"device={name!r}: there are 'cpu', 'cuda' and 'cuda:N'") from error
    if found.type == "cpu":
        return None
    if found.type != "cuda":
        raise BadOption(f"device={name!r}: tensors are loaded to 'cpu', 'cuda' or 'cuda:N'")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = found.index if found.index is not None else torch.cuda.current_device() if count else 0
    if index >= count:
        raise BadOption(f"device={name!r}: torch sees {count} CUDA devices here")
    return _cuda(index)


def device_of(value: Any) -> Device | None:
    """The device that a tensor lies on; None for the host, and for those without streams."""
    return _cuda(value.device.index) if isinstance(value, torch.Tensor) and value.is_cuda else None


@cache
def _cuda(index: int) -> CudaDevice:
    return CudaDevice(index)


class DeviceSource:
    """A tensor on an accelerator: its bytes come to the host piece by piece."""

    sequential = False

    def __init__(self, tensor: torch.Tensor, spec: TensorSpec, device: Device | None) -> None:
        self.spec = spec
        self.tensor = tensor
        self.device = device

    @property
    def key(self) -> Hashable:
        """Where the elements lie, and how."""
        return key(self.tensor)

    def contiguous(self) -> Bytes | None:
        """None: the host cannot look at them."""
        return None

    def copy_to(self, out: Bytes, start: int) -> None:
        """Fill `out` with the bytes that begin at `start`; waits for them."""
        if self.tensor.is_cuda:  # this thread's stream does not wait for those of others
            torch.cuda.synchronize(self.tensor.device)
        torch.from_numpy(out).copy_(self.on_device(start, start + out.size))

    def on_device(self, start: int, stop: int) -> torch.Tensor:
        """These bytes, where they lie; those of a tensor not in C order are gathered there."""
        tensor = self.tensor
        if tensor.is_contiguous():
            data = bytes_of(tensor)
            return data if stop - start == self.spec.nbytes else data[start:stop]
        while tensor.shape[0] == 1:
            tensor = tensor[0]
        row = math.prod(tensor.shape[1:]) * tensor.element_size()
        first, last = start // row, -(-stop // row)
        gathered = bytes_of(tensor[first:last].contiguous())
        return gathered[start - first * row : stop - first * row]


class CudaDevice:
    """One GPU, with a stream for what goes out and one for what comes in."""

    def __init__(self, index: int) -> None:
        self.name = f"cuda:{index}"
        self._device = torch.device("cuda", index)
        self._out = torch.cuda.Stream(self._device)
        self._in = torch.cuda.Stream(self._device)

    def pin(self, memory: Bytes) -> None:
        """Register whole pages, so that copies need no other memory on their way."""
        with torch.cuda.device(self._device):
            cuda = torch.cuda.cudart()
            code = cuda.cudaHostRegister(memory.ctypes.data, memory.size, _PORTABLE)
            if code != cuda.cudaError.success:
                self._forget_error()
                raise OSError(errno.ENOMEM, f"{cuda.cudaGetErrorString(code)}")

    def unpin(self, memory: Bytes) -> None:
        """Undo `pin`."""
        with torch.cuda.device(self._device):
            cuda = torch.cuda.cudart()
            if cuda.cudaHostUnregister(memory.ctypes.data) != cuda.cudaError.success:
                self._forget_error()  # the context is gone, and all that was pinned in it

    def _forget_error(self) -> None:
        """CUDA tells the next call on this thread of what went wrong with the one before."""
        try:
            torch.zeros(1, device=self._device)
        except RuntimeError:
            return

    def copy_out(self, pieces: Sequence[Outgoing]) -> Copies:
        """Copy on the outgoing stream, behind what the caller's stream has been given."""
        with self._on(self._out):
            for source, start, target in pieces:
                assert isinstance(source, DeviceSource)
                data = source.on_device(start, start + target.size)
                torch.from_numpy(target).copy_(data, non_blocking=True)
            return _CudaCopies(self._device, self._out.record_event(), pieces)

    def copy_in(self, pieces: Sequence[Incoming]) -> Copies:
        """Copy on the incoming stream, behind what the caller's stream has been given."""
        with self._on(self._in):
            for data, target, start, dtype in pieces:
                _put(torch.from_numpy(data), target, start, dtype_of(dtype))
            return _CudaCopies(self._device, self._in.record_event(), pieces)

    def gather(self, sources: Sequence[Any]) -> Source:
        """Put them together on the caller's own stream, which changes nothing before."""
        with self._here():
            gap = torch.zeros(ALIGNMENT, dtype=torch.uint8, device=self._device)
            parts = []
            for source in sources:
                parts += [
                    source.on_device(0, source.spec.nbytes),
                    gap[: -source.spec.nbytes % ALIGNMENT],
                ]
            return self._made(torch.cat(parts))

    def sums(self, sources: Sequence[Any]) -> Source:
        """Sum on the caller's own stream, which changes nothing before that is done."""
        with self._here():
            parts = [part for source in sources for part in _sums_of(source)]
            return self._made(torch.cat(parts).view(torch.uint8))

    def _made(self, data: torch.Tensor) -> DeviceSource:
        return DeviceSource(data, TensorSpec("uint8", tuple(data.shape)), self)

    def empty(self, spec: TensorSpec) -> torch.Tensor:
        """A new tensor in the memory of the GPU."""
        with _failing(self._device):
            return empty(spec, self._device)

    @contextmanager
    def _here(self) -> Iterator[None]:
        with _failing(self._device), torch.cuda.device(self._device), torch.no_grad():
            yield

    @contextmanager
    def _on(self, stream: torch.cuda.Stream) -> Iterator[None]:
        """Work on a stream, which waits for the caller's; if it fails, nothing is under way."""
        with self._here():
            asked = torch.cuda.current_stream().record_event()
            try:
                with torch.cuda.stream(stream):
                    stream.wait_event(asked)
                    yield
            except BaseException:
                stream.synchronize()
                raise


class _CudaCopies:
    """Copies up to an event on a stream; what they read and write stays alive with them."""

    def __init__(self, device: torch.device, done: torch.cuda.Event, held: object) -> None:
        self._device = device
        self._done = done
        self._held = held

    def is_done(self) -> bool:
        try:
            return bool(self._done.query())
        except RuntimeError:  # `wait` tells of it
            return True

    def wait(self) -> None:
        with _failing(self._device):
            self._done.synchronize()

    def come_first(self) -> None:
        if torch.cuda.is_current_stream_capturing():  # nothing is done now that could wait
            return
        with _failing(self._device):
            torch.cuda.current_stream(self._device).wait_event(self._done)


def _sums_of(source: DeviceSource) -> Iterator[torch.Tensor]:
    """The sums of a tensor, which keep nothing of what was gathered for them."""
    data = source.on_device(0, source.spec.nbytes)
    is_aligned = data.data_ptr() % WORD == 0 and data.storage_offset() % WORD == 0
    return _sums(data if is_aligned else data.clone())


def _sums(data: torch.Tensor) -> Iterator[torch.Tensor]:
    """What `sums_of` makes of the bytes, in parts that belong one after the other."""
    whole = data.numel() - data.numel() % WORD
    words = data[:whole].view(torch.int32)
    rows = words.numel() // COLUMNS
    if rows > 1:
        yield words[: rows * COLUMNS].view(rows, COLUMNS).sum(0, dtype=torch.int64)
        words = words[rows * COLUMNS :]
    yield words.to(torch.int64)
    if whole < data.numel():
        last = torch.zeros(WORD, dtype=torch.uint8, device=data.device)
        last[: data.numel() - whole] = data[whole:]
        yield last.view(torch.int32).to(torch.int64)


def key(tensor: torch.Tensor) -> Hashable:
    """What tensors have in common that are the same elements in the same places."""
    return tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride()


def _put(data: torch.Tensor, target: torch.Tensor, start: int, dtype: torch.dtype) -> None:
    """Queue a copy of some bytes into a tensor; those of another dtype are cast on its device."""
    if target.dtype == dtype or dtype == torch.uint8:
        bytes_of(target)[start : start + data.numel()].copy_(data, non_blocking=True)
        return
    elements = data.to(target.device, non_blocking=True).view(dtype)
    first = start // dtype.itemsize
    target.detach().reshape(-1)[first : first + elements.numel()].copy_(elements)


@contextmanager
def _failing(device: torch.device) -> Iterator[None]:
    """What CUDA says is wrong, as an error of ours."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        raise CopyFailed(f"{device}: {reason}") from error
