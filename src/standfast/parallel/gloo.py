"""Connections between the ranks of torch.distributed, made by gloo, which comes with torch.

They are apart from the program's groups, whatever carries these, and never touch a GPU. torch is
never imported here: whoever has ranks of it has imported it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Final

from standfast.errors import BadOption, RankLost
from standfast.parallel.wire import TAKEN, pauses, ranks_named

LONGEST_PAUSE: Final = 0.05

LONGEST_WAIT: Final = 30 * 86400.0
"""The most seconds that gloo is asked to wait: it counts nanoseconds in 63 bits."""

CONNECTING: Final = 300.0
"""How many seconds ranks that have all come may take to connect."""

BEFORE_START: Final = (
    "torch.distributed has no ranks in this process: call init_process_group before, and "
    "destroy_process_group after"
)

WITHOUT_STORE: Final = (
    "the ranks of torch.distributed were started by MPI, and have no store to meet by: give "
    "mpi4py's MPI.COMM_WORLD"
)


def torch_distributed() -> Any | None:
    """The module torch.distributed, if this process has imported it, and is one of its ranks."""
    module: Any = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module


def is_of_torch(comm: object) -> bool:
    """Whether this is a process group of torch.distributed, or what stands for none."""
    module: Any = sys.modules.get("torch.distributed")
    if module is None or not module.is_available():
        return False
    return isinstance(comm, module.ProcessGroup) or comm is module.GroupMember.NON_GROUP_MEMBER


def require_member(group: object) -> None:
    """Refuse what torch gives to ranks that are outside of a group."""
    if group is sys.modules["torch.distributed"].GroupMember.NON_GROUP_MEMBER:
        raise BadOption(TAKEN.format("a process group that this rank is no member of"))


def taken_group(group: object) -> Any:
    """A process group that ranks can be made of; the whole world for None."""
    module = torch_distributed()
    if module is None:
        raise BadOption(BEFORE_START)
    if group is None:
        group = module.group.WORLD
    require_member(group)
    if not isinstance(group, module.ProcessGroup):
        raise BadOption(TAKEN.format(repr(group)))
    if not module.is_gloo_available():
        raise BadOption("this torch was built without gloo, by which its ranks would talk")
    return group


def wait_of(seconds: float) -> timedelta:
    """A time that gloo can wait for; none at all would mean for ever."""
    return timedelta(seconds=min(max(seconds, 0.001), LONGEST_WAIT))


class Meeting:
    """Ranks that come together to connect to each other, under a name that no other group has."""

    def __init__(self, name: str, rank: int, size: int, timeout: float) -> None:
        self._rank, self._size, self._timeout = rank, size, timeout
        self._deadline = time.monotonic() + timeout
        module = torch_distributed()
        if module is None:
            raise BadOption(BEFORE_START)
        self._module = module
        # torch has no public way to the store by which its ranks have met.
        store = module.distributed_c10d._get_default_store()
        if store is None:
            raise BadOption(WITHOUT_STORE)
        self._store = module.PrefixStore(f"standfast/{name}", store)

    def connected(self) -> Any:
        """A group of gloo, if all ranks come to make it."""
        self._wait_for_all("came")  # gloo would not say who is missing
        left = wait_of(min(self._deadline - time.monotonic(), CONNECTING))
        with self._failing():
            return self._module.ProcessGroupGloo(self._store, self._rank, self._size, left)

    def end(self) -> None:
        """Wait until all are connected: one that leaves before would break it for the others."""
        self._wait_for_all("connected")

    def _wait_for_all(self, where: str) -> None:
        keys = [f"{where}/{rank}" for rank in range(self._size)]
        coming = list(range(self._size))
        with self._failing():
            self._store.set(keys[self._rank], "yes")
            for _ in pauses(self._deadline, LONGEST_PAUSE):
                while coming and self._store.check([keys[coming[0]]]):
                    del coming[0]
                if not coming:
                    return
            missing = [rank for rank in coming if not self._store.check([keys[rank]])]
        raise RankLost(
            f"{ranks_named(missing or coming)} of {self._size} did not come to make a "
            f"communicator, within {self._timeout:g} seconds: the first use of a process group "
            f"with Standfast is a call of all of its ranks"
        )

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            raise RankLost(
                f"rank {self._rank} of {self._size} cannot connect to the others: {error}"
            ) from error
