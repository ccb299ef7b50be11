"""The blocks of the ring are kept for the next save, and never shared by two."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast.files import ring
from standfast.files.disk import LOCAL, Disk
from standfast.files.ring import Ring
from standfast.tensors import source_of


def test_the_blocks_of_a_save_serve_the_next_one(tmp_path: Path) -> None:
    standfast.save(tmp_path / "state.safetensors", {"x": np.ones(10)})
    kept = [id(block) for block in ring._spare]
    assert len(kept) == ring.BLOCKS
    standfast.save(tmp_path / "state.safetensors", {"x": np.ones(10)})
    assert sorted(id(block) for block in ring._spare) == sorted(kept)


def test_two_rings_at_once_share_no_block(tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:
        rings = [Ring(partial(LOCAL.write, file.fileno())) for _ in range(2)]
        blocks = [id(block) for ring in rings for block in ring._blocks]
        assert len(set(blocks)) == 2 * ring.BLOCKS
        for each in rings:
            each.__exit__(None, None, None)
    assert len(ring._spare) == ring.BLOCKS


def test_saves_on_many_threads_do_not_mix(tmp_path: Path) -> None:
    def save(i: int) -> None:
        for _ in range(5):
            standfast.save(tmp_path / f"{i}.safetensors", {"x": np.full(500_000, i)})

    threads = [threading.Thread(target=save, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(6):
        assert (standfast.load(tmp_path / f"{i}.safetensors")["x"] == i).all()


def test_however_often_it_is_interrupted_no_write_is_left_behind(tmp_path: Path) -> None:
    class SlowDisk(Disk):
        running = 0

        def write(self, fd: int, data: Any, offset: int) -> None:
            self.running += 1
            time.sleep(0.2)
            super().write(fd, data, offset)
            self.running -= 1

    slow = SlowDisk()
    with (tmp_path / "file").open("wb") as file:
        each = Ring(partial(slow.write, file.fileno()))
        each.put(source_of(np.ones(100)))
        shutdown = each._pool.shutdown
        presses = iter([True, True, False])

        def interrupted(**options: Any) -> None:
            if next(presses):
                raise KeyboardInterrupt
            shutdown(**options)

        each._pool.shutdown = interrupted  # type: ignore[method-assign]
        each._flush()
        with pytest.raises(KeyboardInterrupt):
            each.__exit__(KeyboardInterrupt, KeyboardInterrupt(), None)
        assert slow.running == 0
