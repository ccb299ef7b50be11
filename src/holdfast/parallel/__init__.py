"""Ranks: processes that compute one thing together, and save it together.

    from mpi4py import MPI
    from holdfast.parallel import communicator

    comm = communicator(MPI.COMM_WORLD)      # a duplicate: its messages meet none of yours

Whatever takes `comm=` takes one of these, one of mpi4py's, or None, for a program that is alone.
"""

from holdfast.parallel.agreement import agree, on_root, together
from holdfast.parallel.communicator import Communicator
from holdfast.parallel.given import communicator
from holdfast.parallel.mpi import MPIRanks
from holdfast.parallel.single import SingleRank

__all__ = [
    "Communicator",
    "MPIRanks",
    "SingleRank",
    "agree",
    "communicator",
    "on_root",
    "together",
]
