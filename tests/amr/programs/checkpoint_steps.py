"""Asks two ranks for their step: they have different ones, the same, and one that is none."""

from __future__ import annotations

from mpi4py import MPI

from standfast.amr import broadcast_checkpoint_step
from standfast.errors import StandfastError

comm = MPI.COMM_WORLD
rank = comm.rank


def kind_of_failure(root: int, step: int, strict: bool) -> str:
    try:
        broadcast_checkpoint_step(comm, root, step, strict=strict)
    except StandfastError as error:
        return type(error).__name__
    return "none"


answers = [
    broadcast_checkpoint_step(comm, 0, 7 + rank),
    broadcast_checkpoint_step(comm, 1, 7 + rank),
    broadcast_checkpoint_step(comm, 0, 5, strict=True),
    kind_of_failure(0, 7 + rank, strict=True),
    kind_of_failure(1, -rank, strict=False),
]
print(f"rank {rank}: {answers}", flush=True)
