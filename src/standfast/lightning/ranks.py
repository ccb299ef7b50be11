"""What the ranks of a trainer tell each other: a few kilobytes, as JSON.

The random states and the positions of the loaders differ from rank to rank; all else is the same.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import numpy as np
import torch

from standfast.errors import RankFailed, RefusedState, StandfastError

_ARRAY: Final = "standfast.array"
_TENSOR: Final = "standfast.tensor"


def on_root(trainer: Any, action: Callable[[], Any]) -> Any:
    """Do it on rank 0 and give its result, plain values, to all; an error there is one on all."""
    if trainer.world_size == 1:
        return action()
    told: Any = None
    if trainer.is_global_zero:
        try:
            told = ["done", action()]
        except StandfastError as error:
            trainer.strategy.broadcast(["failed", f"{type(error).__name__}: {error}"])
            raise
    how, result = trainer.strategy.broadcast(told)
    if how == "failed":
        raise RankFailed(f"rank 0 could not go on: {result}")
    return result


def gathered(trainer: Any, value: Any) -> list[Any]:
    """What every rank gave, in their order, on all of them: trees of numbers, texts and arrays."""
    if trainer.world_size == 1:
        return [value]
    data = np.frombuffer(_packed(value), np.uint8).copy()
    device = trainer.strategy.root_device
    sizes = trainer.strategy.all_gather(torch.tensor([data.size], device=device))
    room = torch.zeros(int(sizes.max()), dtype=torch.uint8, device=device)
    room[: data.size] = torch.from_numpy(data).to(device)
    rows = trainer.strategy.all_gather(room).cpu().numpy()
    return [
        _unpacked(row[: int(size)].tobytes())
        for row, size in zip(rows, sizes.flatten().tolist(), strict=True)
    ]


def _packed(value: Any) -> bytes:
    return json.dumps(value, default=_array).encode()


def _array(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return {_TENSOR: _array(value.detach().cpu().numpy())[_ARRAY]}
    if isinstance(value, np.ndarray):
        return {_ARRAY: [value.dtype.str, list(value.shape), value.tobytes().hex()]}
    raise RefusedState(
        f"a {type(value).__qualname__} in the state of a loader cannot be sent to rank 0: it "
        "should be made of numbers, texts and arrays"
    )


def _unpacked(data: bytes) -> Any:
    return json.loads(data, object_hook=_made)


def _made(value: dict[str, Any]) -> Any:
    for key in (_ARRAY, _TENSOR):
        if key in value:
            dtype, shape, text = value[key]
            array = np.frombuffer(bytes.fromhex(text), dtype).reshape(shape).copy()
            return torch.from_numpy(array) if key == _TENSOR else array
    return value
