"""Where the checkpoints of a run lie, and which step all ranks save."""

from __future__ import annotations

import operator
import os
import re
from typing import TYPE_CHECKING, Any

from standfast.errors import BadOption
from standfast.parallel import Communicator, agree, communicator, on_root, together

if TYPE_CHECKING:
    from mpi4py.MPI import Comm as MPIComm


def format_path(directory: str | os.PathLike[str], prefix: str, step: int) -> str:
    """Where the checkpoint of a step lies.

    >>> format_path("checkpoints", "run", 100)
    'checkpoints/run_step100.sunc'
    """
    return os.path.join(directory, f"{_prefix(prefix)}_step{_number(step, 'step')}.sunc")


def format_ranked_path(directory: str | os.PathLike[str], prefix: str, step: int, rank: int) -> str:
    """Where one rank's part of the checkpoint of a step lies.

    >>> format_ranked_path("checkpoints", "run", 100, 0)
    'checkpoints/run_step100_rank0.sunc'
    """
    name = f"{_prefix(prefix)}_step{_number(step, 'step')}_rank{_number(rank, 'rank')}.sunc"
    return os.path.join(directory, name)


def parse_path(path: str | os.PathLike[str]) -> tuple[int | None, int | None]:
    """The step and the rank in a name of `format_path` or `format_ranked_path`, as far as it has.

    >>> parse_path("checkpoints/run_step100_rank3.sunc")
    (100, 3)
    """
    found = re.search(r"_step(\d+)(?:_rank(\d+))?\.sunc$", os.fspath(path))
    step, rank = found.groups() if found else (None, None)
    return None if step is None else int(step), None if rank is None else int(rank)


def broadcast_checkpoint_step(
    comm: Communicator | MPIComm | None, root: int, step: int, strict: bool = False
) -> int:
    """Collective: the step of the rank `root`, on all ranks.

    With `strict`, ranks that were given different steps raise RanksDisagree, all of them.
    """
    ranks = communicator(comm)
    if strict:
        agree(ranks, "the step", together(ranks, lambda: _number(step, "step")))
    return int(on_root(ranks, lambda: _number(step, "step"), root))


def _prefix(text: Any) -> str:
    if not isinstance(text, str) or os.sep in text or "\0" in text:
        raise BadOption(f"prefix={text!r}: it is the start of a file's name, without {os.sep!r}")
    return text


def _number(value: Any, name: str) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < 1 << 64:
        raise BadOption(f"{name}={value!r}: it is a whole number from 0 on")
    return number
