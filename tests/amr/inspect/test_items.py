from __future__ import annotations

import numpy as np

import standfast
from standfast.amr.inspect.trees import opened
from tests.amr.saved_states import SCALAR, empty, snapshot


def test_slots_are_read_within_and_across_slabs(run: standfast.Run) -> None:
    state = empty(SCALAR, 1 << 14)  # 2 MiB of storage: two slabs
    expected = state[1].storage
    expected[:] = np.arange(expected.size).reshape(expected.shape)
    with opened(run.save(1, snapshot(state))) as saved:
        fields = saved.trees[0].fields
        assert [window[:2] for window in fields.windows] == [(0, 8192), (8192, 16384)]
        for start, stop in ((0, 10), (8000, 8400), (8192, 8193), (0, 16384), (5, 5)):
            assert fields.read(start, stop).tobytes() == expected[start:stop].tobytes()
