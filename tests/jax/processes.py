"""An array that two processes have half of each, for these processes: see test_jax.py.

`python -m tests.jax.processes PORT NUMBER STORE`, with the numbers 0 and 1 at the same
time. The store has a run `whole` with the array `x`.
"""

import sys
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import standfast
from standfast.errors import StandfastError, UnsupportedTensor
from standfast.jax import assembled, restore, runs, shards, wanted_boxes
from standfast.jax.framework import held
from standfast.store.load.box_reading import parts_of
from standfast.store.load.reading import Data
from standfast.tensors import register_framework, source_of
from standfast.tensors.shards import Box

register_framework("jax", "standfast.jax.framework")


def main(port: str, number: int, store: str) -> None:
    jax.distributed.initialize(f"localhost:{port}", num_processes=2, process_id=number)
    mesh = jax.make_mesh((2, 2), ("processes", "devices"))
    whole = np.arange(32, dtype=np.float32).reshape(4, 8)

    def made(*axes: str | None) -> jax.Array:
        sharding = NamedSharding(mesh, PartitionSpec(*axes))
        like = jax.ShapeDtypeStruct(whole.shape, whole.dtype, sharding=sharding)
        pieces = [
            whole[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))]
            for box in wanted_boxes(like)
        ]
        return assembled(like, pieces)

    cut = made("processes", "devices")
    assert not cut.is_fully_addressable
    assert wanted_boxes(cut) == [((2 * number, 0), (2, 4)), ((2 * number, 4), (2, 4))]
    with pytest.raises(UnsupportedTensor, match="process_allgather"):
        source_of(cut)
    found = shards(cut)
    assert found is not None
    assert found.spec.shape == (4, 8)
    assert [box for box, _ in found.shards] == wanted_boxes(cut)
    for (offsets, shape), tensor in found.shards:
        expected = whole[offsets[0] : offsets[0] + shape[0], offsets[1] : offsets[1] + shape[1]]
        assert np.asarray(tensor).tobytes() == expected.tobytes()
    # Each half of the columns is with both processes, and is saved by one of them.
    columns = shards(made(None, "devices"))
    assert columns is not None
    assert len(columns.shards) == (2 if number == 0 else 0)
    everywhere = made()
    assert shards(everywhere) is None
    flat = source_of(everywhere).contiguous()
    assert flat is not None
    assert flat.tobytes() == whole.tobytes()
    one = jax.ShapeDtypeStruct((), np.float32, sharding=NamedSharding(mesh, PartitionSpec()))
    assert held(assembled(one, [np.array(2.5, np.float32)])).item() == 2.5
    read: list[int] = []

    def noted(data: Data, tensor: int, box: Box) -> Any:
        for part, array in parts_of(data, tensor, box):
            read.append(array.size)
            yield part, array

    runs.parts_of = noted
    target = {"x": made("devices", "processes") * 0}
    restored = restore(standfast.Store(store).resolve("whole@1"), target)["x"]
    assert restored.sharding == target["x"].sharding
    assert sum(read) == whole.size // 2
    for shard in restored.addressable_shards:
        assert np.asarray(shard.data).tobytes() == whole[shard.index].tobytes()
    # One process alone cannot save what it has only a part of.
    with pytest.raises(StandfastError, match="x:"):
        standfast.Store(f"{store}-{number}").run("part").save(1, {"x": cut})
    print("all is well")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3])
