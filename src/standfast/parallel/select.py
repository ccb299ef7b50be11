"""What programs give as `comm=`, and the communicator that it stands for."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from standfast.errors import BadOption
from standfast.parallel.communicator import Communicator
from standfast.parallel.gloo import is_of_torch, require_member, torch_distributed
from standfast.parallel.mpi import MPIRanks, is_of_mpi, taken
from standfast.parallel.single import SingleRank
from standfast.parallel.torch_ranks import TorchRanks
from standfast.parallel.wire import TAKEN

if TYPE_CHECKING:
    from standfast.parallel.mpi import MPIComm
    from standfast.parallel.torch_ranks import TorchGroup

_OF_GROUPS: WeakKeyDictionary[Any, TorchRanks] = WeakKeyDictionary()


def communicator(comm: Communicator | MPIComm | TorchGroup | None = None) -> Communicator:
    """One of ours: for None a rank alone; for one of mpi4py or torch its ranks, one for all calls.

    Collective, the first time that it is given a communicator of mpi4py or a process group of
    torch.distributed. Do not close what it returns: others have the same.
    """
    if comm is None:
        return SingleRank()
    if is_of_mpi(comm):
        return _of_mpi(comm)
    if is_of_torch(comm):
        return _of_torch(comm)
    if isinstance(comm, Communicator):
        return comm
    raise BadOption(TAKEN.format(repr(comm)))


def given_ranks(comm: Communicator | MPIComm | TorchGroup | None) -> Communicator:
    """As `communicator`; None is refused in a program that was started on several ranks.

    Each of them would take itself for the only one, and a part of its work for the whole.
    """
    if comm is None:
        mpi, torch = several_of_mpi(), several_of_torch()
        if mpi is not None:
            _refuse(mpi.Get_rank(), mpi.Get_size(), "MPI", "MPI.COMM_WORLD")
        if torch is not None:
            name = "torch.distributed"
            _refuse(torch.rank(), torch.size(), name, f"{name}.group.WORLD")
    return communicator(comm)


def several_of_mpi() -> Any | None:
    """MPI's communicator of all ranks, if it has started several."""
    mpi: Any = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return None
    return mpi.COMM_WORLD if mpi.COMM_WORLD.Get_size() > 1 else None


def several_of_torch() -> Any | None:
    """The process group of all ranks of torch.distributed, if there are several."""
    module = torch_distributed()
    return module.group.WORLD if module is not None and module.get_world_size() > 1 else None


def _refuse(rank: int, size: int, starter: str, world: str) -> None:
    raise BadOption(
        f"this is rank {rank} of the {size} that {starter} has started, and no comm was given: "
        f"pass comm={world}, or comm=SingleRank() if this rank works for itself"
    )


def _of_mpi(comm: Any) -> MPIRanks:
    """The ranks that hang on a communicator of mpi4py, as an attribute."""
    taken(comm)  # one that is null, or after the end of MPI, must not be asked for attributes
    kept = comm.Get_attr(_keyval())
    if isinstance(kept, MPIRanks) and not kept.closed:
        return kept
    made = MPIRanks(comm)
    comm.Set_attr(_keyval(), made)
    return made


def _of_torch(group: Any) -> TorchRanks:
    """The ranks of a process group, for as long as it lives."""
    require_member(group)
    kept = _OF_GROUPS.get(group)
    if kept is not None and not kept.closed:
        return kept
    made = TorchRanks(group)
    _OF_GROUPS[group] = made
    return made


@functools.cache
def _keyval() -> int:
    """The key of that attribute. MPI copies it to no duplicate, which is another communicator."""
    return int(sys.modules["mpi4py.MPI"].Comm.Create_keyval())
