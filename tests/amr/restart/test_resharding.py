"""A snapshot on another number of ranks: the same blocks, the same digest, the same future."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from standfast import Store
from standfast.amr import Snapshot
from tests.amr.meshes import merged
from tests.amr.restart.program import SHARED, shared_run
from tests.amr.restart.simulations import LAST
from tests.amr.restart.starting import start, told
from tests.kit.cli import call


@pytest.mark.parametrize(("count", "others"), [(4, (2, 3, 1)), (1, (4,))], ids=["4", "1"])
def test_other_numbers_of_ranks_have_the_same_blocks_and_go_on_alike(
    count: int, others: tuple[int, ...], tmp_path: Path
) -> None:
    store = tmp_path / "store"
    start(count, "share", store, tmp_path / str(count))
    for other in others:
        start(other, "reshard", store, tmp_path / str(other), count)
    for name in LAST:
        expected = _blocks(tmp_path, count, name)
        assert sorted(map(int, expected)) == list(range(SHARED[name], LAST[name] + 1))
        for other in others:
            assert _blocks(tmp_path, other, name) == expected, f"{name} on {other} ranks"
        runs = [shared_run(name, count), *(shared_run(name, count, other) for other in others)]
        digests = [_logical(store, run, SHARED[name], tmp_path / run) for run in runs]
        assert len(set(digests)) == 1, digests


def _blocks(folder: Path, count: int, name: str) -> dict[str, Any]:
    """By step the blocks of all ranks, none of which has another's."""
    ranks = [told(folder / str(count), f"blocks-{name}", rank) for rank in range(count)]
    assert all(rank.keys() == ranks[0].keys() for rank in ranks)
    return {step: merged([rank[step] for rank in ranks]) for step in ranks[0]}


def _logical(store: Path, run: str, step: int, out: Path) -> str:
    """What `verify --logical` says of a snapshot, and of its files together."""
    checkpoint = Store(store).run(run).checkpoint(step)
    out.mkdir()
    files = Snapshot(checkpoint).export(out)
    assert len(files) == Snapshot(checkpoint).ranks
    told = [
        call("verify", "--logical", "--json", "--store", store, f"{checkpoint.run.hash}@{step}"),
        call("verify", "--logical", "--json", *files),
    ]
    for done in told:
        assert done.code == 0, done
        assert done.json[0]["status"] == "intact"
    assert told[0].json[0]["logical"] == told[1].json[0]["logical"]
    return str(told[0].json[0]["logical"])
