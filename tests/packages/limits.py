"""Programs that run in a group of their own, which gets no more memory than it is given."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_GROUPS = Path("/sys/fs/cgroup")


@contextmanager
def memory_group(limit: int) -> Iterator[Path | None]:
    """A control group of the kernel whose processes share `limit` bytes; None if none can be made.

    The memory of a group is that of its processes and of the files they read and write.
    """
    name = f"standfast-{uuid.uuid4().hex[:8]}"
    for parent, file in (
        (_GROUPS / "memory", "memory.limit_in_bytes"),
        (_GROUPS, "memory.max"),
    ):
        group = parent / name
        try:
            if not (parent / "cgroup.procs").exists():
                continue
            group.mkdir()
        except OSError:
            continue
        try:
            (group / file).write_text(str(limit))
        except OSError:
            group.rmdir()
            continue
        try:
            yield group
        finally:
            group.rmdir()
        return
    yield None


def run_within(
    group: Path | None, program: Path, arguments: Sequence[str], timeout: float
) -> subprocess.CompletedProcess[str]:
    """Run a Python program as a member of a group."""

    def join() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    return subprocess.run(
        [sys.executable, "-m", ".".join(program.with_suffix("").parts), *arguments],
        preexec_fn=join,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
