"""Keeps one file system mounted until it is terminated, or its parent is gone.

    python -m tests.kit.fuse KIND PLACE SIZE [MISSING…]

It writes a line when the file system is mounted. It is a process of its own, in a session of its
own, so that whatever ends the tests does not end it before it has unmounted.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from tests.kit.fuse.server import Server, mount, unmount


def main(kind: str, at: str, size: str, *missing: str) -> None:
    place = Path(at)
    beside = place.with_name(place.name + ".backing")
    parent = os.pidfd_open(os.getppid())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with ExitStack() as mounts:
        if kind == "ext4":
            beside.touch()
            os.truncate(beside, int(size))
            subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", beside], check=True)
            subprocess.run(["mount", "-o", "loop", beside, place], check=True)
            mounts.callback(unmount, place)
        elif kind == "tmpfs":
            mount("tmpfs", place, "tmpfs", f"size={size}")
            mounts.callback(unmount, place)
        else:
            beside.mkdir(exist_ok=True)
            if int(size):
                mount("tmpfs", beside, "tmpfs", f"size={size}")
                mounts.callback(unmount, beside)
            server = Server(beside, place, missing)
            mounts.callback(unmount, place)
            server.start()
        print("mounted", flush=True)
        select.select([parent], [], [])


if __name__ == "__main__":
    main(*sys.argv[1:])
