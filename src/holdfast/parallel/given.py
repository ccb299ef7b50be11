"""What programs give as `comm=`, and the communicator that it stands for."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from holdfast.errors import BadOption
from holdfast.parallel.communicator import Communicator
from holdfast.parallel.mpi import TAKEN, MPIRanks, is_of_mpi, taken
from holdfast.parallel.single import SingleRank

if TYPE_CHECKING:
    from holdfast.parallel.mpi import MPIComm


def communicator(comm: Communicator | MPIComm | None = None) -> Communicator:
    """One of ours: for None a rank alone; for one of mpi4py's its ranks, one duplicate for all.

    Collective, the first time that it is given a communicator of mpi4py. Do not close what it
    returns: others have the same.
    """
    if comm is None:
        return SingleRank()
    if is_of_mpi(comm):
        return _of_mpi(comm)
    if isinstance(comm, Communicator):
        return comm
    raise BadOption(TAKEN.format(repr(comm)))


def given_ranks(comm: Communicator | MPIComm | None) -> Communicator:
    """As `communicator`; None is refused in a program that MPI has started on several ranks.

    Each of them would take itself for the only one, and a part of its work for the whole.
    """
    mpi = sys.modules.get("mpi4py.MPI") if comm is None else None
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized():
        return communicator(comm)
    world = mpi.COMM_WORLD
    if world.Get_size() > 1:
        raise BadOption(
            f"this is rank {world.Get_rank()} of the {world.Get_size()} that MPI has started, and "
            "no comm was given: pass comm=MPI.COMM_WORLD, or comm=SingleRank() if this rank works "
            "for itself"
        )
    return communicator(comm)


def _of_mpi(comm: Any) -> MPIRanks:
    """The ranks that hang on a communicator of mpi4py, as an attribute."""
    taken(comm)  # one that is null, or after the end of MPI, must not be asked for attributes
    kept = comm.Get_attr(_keyval())
    if isinstance(kept, MPIRanks) and not kept.closed:
        return kept
    made = MPIRanks(comm)
    comm.Set_attr(_keyval(), made)
    return made


@functools.cache
def _keyval() -> int:
    """The key of that attribute. MPI copies it to no duplicate, which is another communicator."""
    return int(sys.modules["mpi4py.MPI"].Comm.Create_keyval())
