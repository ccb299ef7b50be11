"""The ranks of this program, found without being told."""

from __future__ import annotations

import os
import sys
from typing import Any

from standfast.errors import BadOption
from standfast.parallel.communicator import Communicator
from standfast.parallel.gloo import torch_distributed
from standfast.parallel.select import communicator, several_of_mpi, several_of_torch
from standfast.parallel.single import SingleRank

_alone = SingleRank()
_inherited: list[Any] = []
"""The ranks of the process that this one was forked from; it is none of them."""


def program_ranks() -> Communicator:
    """All ranks of this program: those of torch.distributed, or of MPI, or this process alone.

    The first call is collective, and so is the first after `init_process_group` was called again.
    Later ones return the same communicator: do not close it. A worker of a data loader, and any
    process forked from a rank, is alone. Raises BadOption on a rank that torchrun has started, and
    that has not called `init_process_group`.
    """
    if _is_loader_worker():
        return _this_process()
    for world in (several_of_torch(), several_of_mpi()):
        if world is not None and not any(world is each for each in _inherited):
            return communicator(world)
    if not _inherited and torch_distributed() is None:
        _refuse_ranks_that_have_not_met()
    return _this_process()


def is_first_of_program() -> bool:
    """Whether this is the first rank of the program, or the only process of it. Not collective."""
    if _is_loader_worker():
        return True
    for world in (several_of_torch(), several_of_mpi()):
        if world is not None and not any(world is each for each in _inherited):
            return bool((world.rank() if callable(world.rank) else world.rank) == 0)
    return True


def may_run_in_thread(comm: Communicator) -> bool:
    """Whether collective calls may be made in a thread, beside communication of other threads.

    They may, unless it is of MPI, and MPI was not started with MPI_THREAD_MULTIPLE. A communicator
    of your own making may say so by an attribute `is_thread_safe`.
    """
    return bool(getattr(comm, "is_thread_safe", True))


def _this_process() -> SingleRank:
    global _alone
    if _alone.closed:
        _alone = SingleRank()
    return _alone


def _is_loader_worker() -> bool:
    data: Any = sys.modules.get("torch.utils.data")
    return data is not None and data.get_worker_info() is not None


def _refuse_ranks_that_have_not_met() -> None:
    """Each of them would take itself for the only one, and they would write over each other."""
    size = os.environ.get("WORLD_SIZE", "")
    started = "MASTER_ADDR" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ
    if started and "RANK" in os.environ and size.isdecimal() and int(size) > 1:
        raise BadOption(
            f"this is rank {os.environ['RANK']} of {size}, as torchrun says in the environment, "
            "and torch.distributed does not know of the others yet: call "
            "torch.distributed.init_process_group before, or pass comm=SingleRank() if this rank "
            "works for itself"
        )


def _note_ranks_of_parent() -> None:
    _inherited[:] = [world for world in (several_of_torch(), several_of_mpi()) if world is not None]


os.register_at_fork(after_in_child=_note_ranks_of_parent)
