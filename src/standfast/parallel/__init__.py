"""Ranks: processes that compute one thing together, and save it together.

    import torch.distributed
    from standfast.parallel import communicator, program_ranks

    torch.distributed.init_process_group()
    comm = program_ranks()                   # of torch.distributed, of MPI, or one rank alone
    comm = communicator(MPI.COMM_WORLD)      # these: apart from them, so that no messages meet

Whatever takes `comm=` takes one of these, one of mpi4py's, a process group of torch.distributed,
or None.
"""

from standfast.parallel.agreement import agree, on_root, together
from standfast.parallel.communicator import Communicator
from standfast.parallel.mpi import MPIRanks
from standfast.parallel.program import may_run_in_thread, program_ranks
from standfast.parallel.select import communicator
from standfast.parallel.single import SingleRank
from standfast.parallel.torch_ranks import TorchRanks

__all__ = [
    "Communicator",
    "MPIRanks",
    "SingleRank",
    "TorchRanks",
    "agree",
    "communicator",
    "may_run_in_thread",
    "on_root",
    "program_ranks",
    "together",
]
