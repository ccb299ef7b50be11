"""Whenever a process that saves is killed, the old state or the new one is there."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from standfast.store.maintenance.doctor import examine
from standfast.store.remote.locks import LEASE
from tests.kit.object_store.faults import Call
from tests.kit.object_store.messages import Disconnected, Request
from tests.kit.object_store.proxy import Proxy
from tests.store.remote.faults.workers import Worker
from tests.store.remote.places import check, fresh, large, orphans, state

MOST = 200
"""No save takes more requests."""


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.long)])
def test_a_save_killed_at_any_request_leaves_the_old_state_or_the_new_one(
    proxy: Proxy, bucket_url: str, worker: Worker, stride: int, first: int
) -> None:
    found, left = [], 0
    for number, at in enumerate(range(0, MOST, stride), first):
        url = f"{bucket_url}/{at}"
        with fresh(url).run("a") as run:
            run.save(1, state(1))
        if not _killed(worker, proxy, url, at, late=number % 2 == 1):
            break
        found.append(_is_new(url))
        store = fresh(url)
        left += len(orphans(store))
        assert examine(store.backend, store.index).sound
        begun = time.monotonic()
        with store.run("a") as run:
            run.save(3, state(3))
        assert time.monotonic() - begun < LEASE, "it waited for the lease of a dead process"
        check(fresh(url), state(1), *([large(2)] if found[-1] else []), state(3))
        assert orphans(fresh(url)) == set()
        left += len(store.backend.unfinished())
        store.backend.forget(store.backend.unfinished())
        assert store.backend.unfinished() == []
    assert False in found
    assert True in found or stride > 1
    assert left > 0, "no kill left anything behind: were they early enough?"


def _killed(worker: Worker, proxy: Proxy, url: str, at: int, late: bool) -> bool:
    """Whether a save through the proxy was killed at its request of this number."""
    child: list[int] = []
    known = threading.Event()

    def kill(request: Request) -> None:
        assert known.wait(60)
        os.kill(child[0], signal.SIGKILL)
        if not late:
            raise Disconnected

    proxy.rule(Call(kill, late), times=1, skip=at)
    child.append(worker.begin("save", url, 2))
    known.set()
    code = worker.ended()
    proxy.heal()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def _is_new(url: str) -> bool:
    """Whether the state that was being saved is there; if not, all is as it was."""
    store = fresh(url)
    is_new = len(store.run("a").checkpoints()) > 1
    check(store, state(1), *([large(2)] if is_new else []))
    return is_new
