"""Locks in an object store: leases, which outlive nobody for long and are not lost lightly."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import obstore
import pytest
from obstore.store import S3Store

from standfast import Run, Store
from standfast.errors import RunBusy, WriteFailed
from standfast.store.remote import locks
from standfast.store.remote.backend import RemoteBackend
from standfast.store.remote.locks import Locks, Note
from standfast.store.retention.pins import pinned_steps
from standfast.store.save.planning import Plan, plan_leaves
from standfast.store.save.saving import Wanted
from standfast.store.tree import tree
from tests.kit.object_store.faults import Answer, DropAnswer, HoldAnswer
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.object_store.server import Server
from tests.store.remote.faults.workers import Worker
from tests.store.remote.places import check, fresh, state, straight

LEASE = 60.0
"""So long that no lock is lost because the machine is busy: a clock of the tests ends it."""
SHORT = 1
FOREIGN = Note("another", "0", "elsewhere", "another boot", 1, "1", LEASE)
"""The lock of a machine of which nobody here knows what became of it."""


class Clock:
    """The time for locks: it passes while the main thread sleeps, or when a test says so."""

    CLOCK_MONOTONIC = time.CLOCK_MONOTONIC

    def __init__(self) -> None:
        self.passed = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

    def sleep(self, seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            self.passed += seconds
            self.meanwhile()
        else:
            time.sleep(seconds)

    def monotonic(self) -> float:
        return self.passed

    def clock_gettime(self, clock: int) -> float:
        return self.passed


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock, now = Clock(), Locks.now
    monkeypatch.setattr(locks, "time", clock)
    monkeypatch.setattr(Locks, "now", lambda self: now(self) + clock.passed)
    return clock


@pytest.fixture
def backend(bucket_url: str) -> RemoteBackend:
    return RemoteBackend(f"{bucket_url}/checkpoints", lease=LEASE)


@pytest.fixture
def client(server: Server, bucket_url: str) -> S3Store:
    return straight(server, bucket_url)


def put(client: S3Store, name: str, note: Note = FOREIGN) -> None:
    obstore.put(client, f"{locks.FOLDER}/{name}", msgspec.json.encode(note))


def note_of(client: S3Store, name: str) -> Note:
    text = obstore.get(client, f"{locks.FOLDER}/{name}").bytes()
    return msgspec.json.decode(bytes(text), type=Note)


def test_a_holder_elsewhere_is_respected_until_its_lease_ends(
    backend: RemoteBackend, client: S3Store, clock: Clock
) -> None:
    begun = backend._locks.now()
    put(client, "a")
    assert backend.lock("a") is None
    assert backend.holder("a") == "process 1 on elsewhere"
    assert backend.locked("a") == ["a"]
    lock = backend.lock("a", wait=0.1)
    assert lock is not None
    assert backend._locks.now() - begun > LEASE
    assert clock.passed < LEASE + 6
    assert note_of(client, "a").process == os.getpid()
    lock.release()


def test_a_holder_elsewhere_that_renews_is_not_waited_for(
    backend: RemoteBackend, client: S3Store, clock: Clock
) -> None:
    def renew() -> None:
        put(client, "a", msgspec.structs.replace(FOREIGN, renewal=os.urandom(4).hex()))

    put(client, "a")
    clock.meanwhile = renew
    assert backend.lock("a", wait=0.1) is None
    assert clock.passed < 2


def test_a_lock_with_nonsense_in_it_is_anybodys_in_time(
    backend: RemoteBackend, client: S3Store, clock: Clock
) -> None:
    obstore.put(client, f"{locks.FOLDER}/a", b"{nonsense")
    assert backend.lock("a") is None
    lock = backend.lock("a", wait=0.1)
    assert lock is not None
    lock.release()


def test_a_lock_of_a_process_that_has_ended_is_taken_at_once(
    backend: RemoteBackend, client: S3Store, worker: Worker
) -> None:
    child = worker.begin("hold", backend.url, int(LEASE))
    _until(lambda: backend.holder("a") == f"process {child} on {note_of(client, 'a').host}")
    assert backend.lock("a") is None
    os.kill(child, signal.SIGKILL)
    assert worker.ended() == -signal.SIGKILL
    lock = backend.lock("a")
    assert lock is not None
    lock.release()


def test_a_process_that_nobody_has_buried_yet_has_ended() -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert os.path.exists(f"/proc/{child}")
    assert locks._started(child) == ""
    os.waitpid(child, 0)
    assert locks._started(os.getpid())


def test_a_holder_that_was_frozen_knows_that_it_lost_the_lock(
    backend: RemoteBackend, client: S3Store, worker: Worker, clock: Clock
) -> None:
    child = worker.begin("hold", backend.url, SHORT)
    _until(lambda: pinned_steps(backend, "a") == {1})
    try:
        os.kill(child, signal.SIGSTOP)
        taken = _until(lambda: backend.lock("a"))  # it lives: only its lease ends
        clock.passed += 2 * LEASE
        assert pinned_steps(backend, "a") == set()
        ours = note_of(client, "a")
        assert ours.process == os.getpid()
    finally:
        os.kill(child, signal.SIGCONT)
    os.kill(child, signal.SIGUSR1)
    assert worker.ended() == 11, "it took the lock for its own"
    assert note_of(client, "a").token == ours.token
    assert taken.renew()
    taken.release()


def test_the_pins_of_a_dead_process_end(
    backend: RemoteBackend, client: S3Store, worker: Worker, clock: Clock
) -> None:
    child = worker.begin("hold", backend.url, int(LEASE))
    _until(lambda: pinned_steps(backend, "a") == {1})
    os.kill(child, signal.SIGKILL)
    worker.ended()
    clock.passed += 2 * LEASE
    assert pinned_steps(backend, "a") == set()
    assert not [key for key in _keys(client) if ".pin." in key]


def test_a_writer_that_lost_its_lock_does_not_commit(
    backend: RemoteBackend, bucket_url: str, client: S3Store, clock: Clock
) -> None:
    run = Store(backend).run("a")
    run.save(1, state(1))
    other = fresh(bucket_url).run("a")

    def taken_over() -> None:
        put(client, run.hash)
        clock.passed += 2 * LEASE

    with pytest.raises(RunBusy, match="its lock was deleted during the save"):
        run.commit(*_planned(run, 2), before_commit=taken_over)
    assert note_of(client, run.hash) == FOREIGN
    run.close()
    assert note_of(client, run.hash) == FOREIGN, "it released the lock of another"
    check(fresh(bucket_url), state(1))
    other.save(2, state(2))
    check(fresh(bucket_url), state(1), state(2))


def _planned(run: Run, step: int) -> tuple[Plan, Wanted]:
    node, leaves = tree.flatten(state(step))
    return plan_leaves(state(step), node, leaves), run.wanted(step)


# Renewing


def is_renewal(request: Request) -> bool:
    return request.method == "PUT" and request.path.endswith("/locks/a")


FAULTS = {
    "silence": HoldAnswer(600),
    "lost": DropAnswer(),
    "late": HoldAnswer(0.5),
    "refused": Answer(403),
}


def test_one_request_that_fails_costs_no_lock(
    proxy: Proxy, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locks, "_SLACK", 60.0)
    lease = 3.0
    backends = {name: RemoteBackend(f"{bucket_url}/checkpoints", lease=lease) for name in FAULTS}
    taken = {name: backend.lock(name) for name, backend in backends.items()}
    rules = [
        proxy.rule(fault, lambda request, name=name: request.path.endswith(f"/locks/{name}"))
        for name, fault in FAULTS.items()
    ]
    for rule, (name, lock) in zip(rules, taken.items(), strict=True):
        assert lock is not None
        longest = lock._locks._renewing._longest
        assert longest + 2 * lease / locks._RENEWALS < lease, "there is time for another request"
        assert rule.fired.wait(60)
        failed = locks._clock()
        _until(lambda lock=lock, failed=failed: lock._renewed > failed)
        assert rule.hits == 1
        assert lock.renew(), name
        assert backends[name].lock(name) is None
        lock.release()
        again = backends[name].lock(name)
        assert again is not None, name
        again.release()


def test_a_lock_that_was_renewed_without_an_answer_is_still_ours(
    backend: RemoteBackend, client: S3Store
) -> None:
    lock = backend.lock("a")
    assert lock is not None
    assert lock._tag is not None
    backend._locks.renew(f"{locks.FOLDER}/a", lock._token, lock._tag)  # and nobody hears of it
    assert lock.renew()
    assert note_of(client, "a").token == lock._token
    lock.release()


def test_who_does_not_know_yet_that_it_lost_a_lock_does_not_release_it(
    backend: RemoteBackend, client: S3Store
) -> None:
    lock = backend.lock("a")
    assert lock is not None
    put(client, "a")
    lock.release()
    assert note_of(client, "a") == FOREIGN


def test_who_cannot_renew_does_not_hold_it(
    proxy: Proxy, bucket_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "600")
    lock = RemoteBackend(f"{bucket_url}/checkpoints", lease=SHORT).lock("a")
    assert lock is not None
    proxy.rule(HoldAnswer(600), is_renewal, times=None)
    clock.passed += 1.5 * SHORT
    begun = time.monotonic()
    assert not lock.is_held()
    assert time.monotonic() - begun < 60, "it waited for the server"
    lock.release()


def test_a_lock_whose_creation_was_never_answered_is_not_in_our_own_way(
    proxy: Proxy, bucket_url: str, client: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "2")
    rule = proxy.rule(HoldAnswer(600), is_renewal, times=None)
    with pytest.raises(WriteFailed, match="no answer in time"):
        RemoteBackend(f"{bucket_url}/checkpoints").lock("a")
    proxy.heal()
    monkeypatch.setenv("STANDFAST_TIMEOUT", "60")
    backend = RemoteBackend(f"{bucket_url}/checkpoints")
    assert rule.hits == 2
    assert note_of(client, "a").process == os.getpid()
    lock = backend.lock("a")
    assert lock is not None
    assert RemoteBackend(backend.url).lock("a") is None, "within a process, too, it is held once"
    lock.release()


def test_asking_for_the_time_leaves_nothing(backend: RemoteBackend, client: S3Store) -> None:
    put(client, "a")
    assert backend.lock("a") is None
    assert _keys(client) == [f"{locks.FOLDER}/a"]


def _keys(client: S3Store) -> list[str]:
    return sorted(meta["path"] for page in obstore.list(client) for meta in page)


def _until(found: Callable[[], Any], seconds: float = 60.0) -> Any:
    """What is found, once it is something."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(FileNotFoundError):
            if it := found():
                return it
        assert time.monotonic() < deadline
        time.sleep(0.05)
