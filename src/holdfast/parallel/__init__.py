"""Ranks: processes that compute one thing together, and save it together.

    import torch.distributed
    from holdfast.parallel import communicator, program_ranks

    torch.distributed.init_process_group()
    comm = program_ranks()                   # of torch.distributed, of MPI, or one rank alone
    comm = communicator(MPI.COMM_WORLD)      # these: apart from them, so that no messages meet

Whatever takes `comm=` takes one of these, one of mpi4py's, a process group of torch.distributed,
or None.
"""

from holdfast.parallel.agreement import agree, on_root, together
from holdfast.parallel.communicator import Communicator
from holdfast.parallel.given import communicator
from holdfast.parallel.mpi import MPIRanks
from holdfast.parallel.program import may_run_in_thread, program_ranks
from holdfast.parallel.single import SingleRank
from holdfast.parallel.torch_ranks import TorchRanks

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
