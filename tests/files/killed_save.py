"""A program that saves and is killed at its n-th file operation: `killed_save.py PATH N`."""

from __future__ import annotations

import sys

import standfast
from standfast.files import disk, ring
from tests.files.states import NEW, SMALL_BLOCK
from tests.kit.disk_faults import FaultyDisk, kill

if __name__ == "__main__":
    path, at = sys.argv[1], int(sys.argv[2])
    ring.BLOCK = SMALL_BLOCK
    disk.LOCAL = FaultyDisk(at, kill)
    standfast.save(path, NEW)
