"""What the tests on a real GPU share."""

import math
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast.torch.dtypes import NAME_OF

DEVICE = "cuda"
ON_GPU = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here"),
]


def of_bytes(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of random bytes on the GPU, whatever they mean in its dtype."""
    if dtype == torch.bool:
        return torch.randint(0, 2, shape, device=DEVICE).bool()
    count = math.prod(shape) * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8, device=DEVICE).view(dtype).view(shape)


def of_all_kinds(seed: int = 0) -> dict[str, torch.Tensor]:
    """Tensors of every dtype, and of all the ways in which a tensor can lie in memory."""
    torch.manual_seed(seed)
    found = {f"{name}": of_bytes(dtype, 7, 12) for dtype, name in NAME_OF.items()}
    found |= {f"{name} transposed": of_bytes(dtype, 12, 7).t() for dtype, name in NAME_OF.items()}
    image = torch.randn(4, 3, 16, 16, device=DEVICE)
    return found | {
        "0-dim": torch.tensor(2.5, device=DEVICE),
        "0-dim integer": torch.tensor(7, device=DEVICE),
        "empty": torch.empty(0, 5, device=DEVICE),
        "channels last": image.to(memory_format=torch.channels_last),
        "every other column": of_bytes(torch.bfloat16, 40, 30)[:, ::2],
        "at an odd offset": of_bytes(torch.uint8, 1001)[3:],
        "large": of_bytes(torch.float32, 5000, 4001),
        "large transposed": of_bytes(torch.float32, 4001, 5000).t(),
    }


def raw(tensor: torch.Tensor) -> bytes:
    """The bytes of a tensor in C order."""
    host = tensor.detach().cpu().contiguous()
    return host.reshape(-1).view(torch.uint8).numpy().tobytes()


def differing(expected: Any, found: Any, path: str = "") -> Iterator[str]:
    """The paths at which two trees are not the same, bit for bit."""
    if isinstance(expected, torch.Tensor):
        assert isinstance(found, torch.Tensor), path
        like = (expected.dtype, expected.shape) == (found.dtype, found.shape)
        if not like or not _same(expected, found):
            yield path
    elif isinstance(expected, dict):
        assert expected.keys() == found.keys(), path
        for key, value in expected.items():
            yield from differing(value, found[key], f"{path}.{key}")
    elif isinstance(expected, list):
        assert len(expected) == len(found), path
        for number, value in enumerate(expected):
            yield from differing(value, found[number], f"{path}.{number}")
    elif not np.array_equal(expected, found):
        yield path


def _same(expected: torch.Tensor, found: torch.Tensor) -> bool:
    if expected.device != found.device or not expected.is_contiguous() & found.is_contiguous():
        return raw(expected) == raw(found)
    pair = (each.detach().reshape(-1).view(torch.uint8) for each in (expected, found))
    return torch.equal(*pair)


def kept(tree: Any) -> Any:
    """A copy of a tree of tensors, where they lie."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone()
    if isinstance(tree, dict):
        return {key: kept(value) for key, value in tree.items()}
    return [*map(kept, tree)] if isinstance(tree, list) else tree


def checkpointer(store: Path, **parts: Any) -> standfast.Checkpointer:
    """One that saves at every step."""
    return standfast.Checkpointer(store, standfast.TrainingState(**parts), name="run", every=1)


def wait_until_warm(ckpt: standfast.Checkpointer) -> None:
    """Return when the memory for two saves is touched and pinned."""
    background = ckpt._open()._background
    assert background is not None
    until = time.monotonic() + 30
    while len(background._stagings._free) < 2:
        assert time.monotonic() < until, "the memory for saves was not made ready"
        time.sleep(0.01)


def busy(seconds: float = 0.3) -> torch.cuda.Event:
    """Give the current stream so much to do; the event is over when it is done."""
    stream = torch.cuda.current_stream()
    torch.cuda._sleep(int(seconds * 2e9))  # in cycles, of which a GPU has less than that a second
    return stream.record_event()
