"""Tensors that torch has shared out over processes: DTensors."""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any, Final

import torch

from standfast.errors import UnsupportedDType, UnsupportedTensor
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box, Shard, Shards
from standfast.torch.dtypes import FLOAT4, NAME_OF


def is_sharded(value: Any) -> bool:
    """Whether this is a DTensor, of which a process has a part."""
    if type(value) in (torch.Tensor, torch.nn.Parameter):
        return False  # nearly all are
    module: Any = sys.modules.get("torch.distributed.tensor")  # nobody has one without it
    return module is not None and isinstance(value, module.DTensor)


def shards(value: Any) -> Shards | None:
    """What this process has of a DTensor; None for any other value."""
    if not is_sharded(value):
        return None
    if any(placement.is_partial() for placement in value.placements):
        raise UnsupportedTensor(
            f"a DTensor of {value.placements} is not summed up yet: redistribute it, or take its "
            "full_tensor()"
        )
    if value.dtype not in NAME_OF or value.dtype == FLOAT4:
        raise UnsupportedDType(f"no sharded tensors of {value.dtype}: convert it with .to(dtype)")
    spec = _whole(NAME_OF[value.dtype], tuple(value.shape))
    local = local_of(value)
    storage = local.untyped_storage()._cdata, local.storage_offset(), local.stride()
    same = *storage, value.placements, value.device_mesh
    coordinate = value.device_mesh.get_coordinate()
    box = None if coordinate is None else _box(value._spec, tuple(coordinate))
    if box is None or 0 in box.shape:
        return Shards(spec, (), same)
    if tuple(local.shape) != box.shape:
        raise UnsupportedTensor(
            f"a DTensor of {value.placements} has {list(local.shape)} here, where "
            f"{list(box.shape)} belong: redistribute it"
        )
    return Shards(spec, (Shard(box, local),), same)


def local_of(value: Any) -> torch.Tensor:
    """What this process has of a DTensor, in the memory of the DTensor."""
    local: torch.Tensor = value._local_tensor  # `to_local` goes through the graph of gradients
    if type(local) is not torch.Tensor and hasattr(local, "wait"):  # it is still on its way
        local = local.wait()
    return local.detach() if local.requires_grad else local


_whole: Final = lru_cache(1 << 16)(TensorSpec)


@lru_cache(1 << 14)  # most tensors of a model are laid out in one of a few ways
def _box(layout: Any, coordinate: tuple[int, ...]) -> Box:
    """Where in the whole tensor the part of this process lies, which is there in the mesh."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    mesh, placements = layout.mesh, layout.placements
    shape, offsets = compute_local_shape_and_global_offset(layout.shape, mesh, placements)
    return Box(tuple(offsets), tuple(shape))
