"""Locks in an object store: leases, which end with their holder and are not lost by one fault."""

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from email.utils import formatdate
from typing import Any

import msgspec
import obstore
import pytest
from obstore.store import S3Store

from standfast import Store
from standfast.errors import RunBusy, WriteFailed
from standfast.store.remote import locks
from standfast.store.remote.backend import RemoteBackend
from standfast.store.remote.locks import Note
from standfast.store.retention.pins import pinned_steps
from standfast.store.save.planning import plan_leaves
from standfast.store.tree import tree
from tests.kit.object_store.faults import Answer, DropAnswer, HoldAnswer, Instead
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.seams import Seams
from tests.store.remote.places import check, fresh, keys, state

LEASE = 60.0
"""So long that no lock is lost because the machine is busy: the clock of a test ends it."""
SHORT = 1
FOREIGN = Note("another", "0", "elsewhere", "another boot", 1, "1", LEASE)
"""The lock of a machine of which nothing is known."""
monotonic, pause = time.monotonic, threading.Event().wait  # not those of the clock below


class Clock:
    """Time passes while the main thread sleeps and when a test says so, here and on the server."""

    def __init__(self, seams: Seams, proxy: Proxy) -> None:
        self.passed = 0.0
        self.meanwhile: Callable[[], object] = lambda: None

        def sleep(real: Callable[[float], None], seconds: float) -> None:
            if threading.current_thread() is not threading.main_thread():
                real(seconds)
                return
            self.passed += seconds
            self.meanwhile()

        passed = lambda *_: self.passed  # noqa: E731
        seams.system(time, sleep=sleep, clock_gettime=passed, monotonic=passed)
        proxy.rule(
            Instead(self._answer),
            lambda request: request.method == "HEAD" and "/.clock/" in request.path,
            times=None,
        )

    def _answer(self, request: Request, body: bytes) -> Answer:
        date = formatdate(time.time() + self.passed, usegmt=True)
        return Answer(200, headers=('ETag: "x"', f"Last-Modified: {date}"))


@pytest.fixture
def clock(seams: Seams, proxy: Proxy) -> Clock:
    return Clock(seams, proxy)


@pytest.fixture
def backend(bucket_url: str, request: pytest.FixtureRequest) -> RemoteBackend:
    if "clock" in request.fixturenames:
        request.getfixturevalue("clock")  # the backend goes through its proxy
    return RemoteBackend(f"{bucket_url}/checkpoints", lease=LEASE)


def put(client: S3Store, name: str, note: Note = FOREIGN) -> None:
    obstore.put(client, f"{locks.FOLDER}/{name}", msgspec.json.encode(note))


def note_of(client: S3Store, name: str) -> Note:
    text = obstore.get(client, f"{locks.FOLDER}/{name}").bytes()
    return msgspec.json.decode(bytes(text), type=Note)


def until(found: Callable[[], Any]) -> Any:
    """What is found, once it is something."""
    deadline = monotonic() + 60
    while True:
        with suppress(FileNotFoundError):
            if it := found():
                return it
        assert monotonic() < deadline
        pause(0.05)


def test_a_holder_elsewhere_is_respected_until_its_lease_ends(backend, client, clock):
    begun = monotonic()
    put(client, "a")
    assert backend.lock("a") is None
    assert keys(client) == [f"{locks.FOLDER}/a"], "asking for the time leaves nothing"
    assert backend.holder("a") == "process 1 on elsewhere"
    assert backend.locked("a") == ["a"]
    with backend.lock("a", wait=0.1):  # type: ignore[union-attr]
        real = monotonic() - begun  # which passes on the server, too
        assert LEASE - 2 - real < clock.passed < LEASE + 6
        assert note_of(client, "a").process == os.getpid()


def test_a_holder_elsewhere_that_renews_is_not_waited_for(backend, client, clock):
    def renew() -> None:
        put(client, "a", msgspec.structs.replace(FOREIGN, renewal=os.urandom(4).hex()))

    put(client, "a")
    clock.meanwhile = renew
    assert backend.lock("a", wait=0.1) is None
    assert clock.passed < 2


def test_a_lock_that_cannot_be_read_ends_with_a_lease(backend, client, clock):
    obstore.put(client, f"{locks.FOLDER}/a", b"{nonsense")
    assert backend.lock("a") is None
    with backend.lock("a", wait=0.1):  # type: ignore[union-attr]
        pass


def test_a_lock_of_a_process_that_has_ended_is_taken_at_once_and_its_pins_end(
    backend, client, worker, clock
):
    child = worker.begin("hold", backend.url, int(LEASE))
    until(lambda: pinned_steps(backend, "a") == {1})
    assert backend.holder("a") == f"process {child} on {note_of(client, 'a').host}"
    assert backend.lock("a") is None
    os.kill(child, signal.SIGKILL)
    assert worker.ended() == -signal.SIGKILL
    with backend.lock("a"):  # type: ignore[union-attr]
        clock.passed += 2 * LEASE
        assert pinned_steps(backend, "a") == set()
    assert not [key for key in keys(client) if ".pin." in key]


def test_a_process_that_its_parent_has_not_waited_for_has_ended(backend, client):
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    with backend.lock("b"):  # type: ignore[union-attr]
        put(client, "a", msgspec.structs.replace(note_of(client, "b"), process=child))
    taken = backend.lock("a")
    assert taken is not None
    with taken:
        os.waitpid(child, 0)


def test_a_holder_that_was_frozen_knows_that_it_lost_the_lock(backend, client, worker, clock):
    child = worker.begin("hold", backend.url, SHORT)
    until(lambda: pinned_steps(backend, "a") == {1})
    try:
        os.kill(child, signal.SIGSTOP)
        taken = until(lambda: backend.lock("a"))  # the process is there: only its lease ends
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


def test_a_writer_that_lost_its_lock_does_not_commit(backend, bucket_url, client, clock):
    run = Store(backend).run("a")
    run.save(1, state(1))
    other = fresh(bucket_url).run("a")

    def taken_over() -> None:
        put(client, run.hash)
        clock.passed += 2 * LEASE

    plan = plan_leaves(state(2), *tree.flatten(state(2)))
    with pytest.raises(RunBusy):
        run.commit(plan, run.wanted(2), before_commit=taken_over)
    run.close()
    assert note_of(client, run.hash) == FOREIGN, "it released the lock of another"
    check(fresh(bucket_url), state(1))
    other.save(2, state(2))
    check(fresh(bucket_url), state(1), state(2))


# Renewing


FAULTS = {
    "silence": HoldAnswer(600),
    "lost": DropAnswer(),
    "late": HoldAnswer(0.5),
    "refused": Answer(403),
}


def test_one_request_that_fails_costs_no_lock(proxy, bucket_url, seams):
    seams.bound("slack of a lease", 60.0)
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
        until(lambda lock=lock, failed=failed: lock._renewed > failed)
        assert rule.hits == 1
        assert lock.renew(), name
        assert backends[name].lock(name) is None
        lock.release()
        with backends[name].lock(name):  # type: ignore[union-attr]
            pass


def test_a_lock_that_was_renewed_without_an_answer_is_still_ours(backend, client):
    lock = backend.lock("a")
    assert lock is not None
    ours = note_of(client, "a")
    put(client, "a", msgspec.structs.replace(ours, renewal="unheard"))
    assert lock.renew()
    assert note_of(client, "a").token == ours.token
    put(client, "a")  # somebody took it, and its holder does not know yet
    lock.release()
    assert note_of(client, "a") == FOREIGN


def test_a_holder_that_cannot_renew_does_not_wait_for_the_server(
    proxy, bucket_url, clock, monkeypatch
):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "600")
    lock = RemoteBackend(f"{bucket_url}/checkpoints", lease=SHORT).lock("a")
    assert lock is not None
    proxy.rule(HoldAnswer(600), lambda request: request.path.endswith("/locks/a"), times=None)
    clock.passed += 1.5 * SHORT
    assert not lock.is_held()
    lock.release()


def test_a_lock_whose_creation_was_never_answered_can_be_taken(
    proxy, bucket_url, client, monkeypatch
):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    url = f"{bucket_url}/checkpoints"
    rule = proxy.rule(
        HoldAnswer(600), lambda request: request.path.endswith("/locks/a"), times=None
    )
    with pytest.raises(WriteFailed):
        RemoteBackend(url).lock("a")
    proxy.heal()
    monkeypatch.setenv("STANDFAST_TIMEOUT", "60")
    assert rule.hits == 2
    assert note_of(client, "a").process == os.getpid()
    with RemoteBackend(url).lock("a"):  # type: ignore[union-attr]
        assert RemoteBackend(url).lock("a") is None, "within a process, too, it is held once"
