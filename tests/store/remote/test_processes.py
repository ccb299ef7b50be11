"""Several processes in one store: they are killed, they race, they fork."""

import errno
import os
import signal
import subprocess
import sys
import threading
import traceback

import pytest

from standfast import Store
from standfast.errors import FileError
from standfast.store.maintenance.doctor import examine
from tests.kit.object_store.faults import Call, HoldAnswer
from tests.kit.object_store.messages import Disconnected, Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.object_store.server import Server
from tests.kit.stores import same
from tests.store.remote.places import (
    Match,
    check,
    fresh,
    is_part,
    is_record,
    keys,
    large,
    orphans,
    state,
    straight,
    unfinished,
)
from tests.store.remote.workers import Worker

MOST = 200
"""No save takes more requests."""


def kill_a_save(
    worker: Worker, proxy: Proxy, url: str, late: bool, skip: int, match: Match
) -> bool:
    """Whether a save of step 2 through the proxy was killed at its request of this number."""
    child: list[int] = []
    known = threading.Event()

    def kill(request: Request) -> None:
        assert known.wait(60)
        os.kill(child[0], signal.SIGKILL)
        if not late:
            raise Disconnected

    proxy.rule(Call(kill, late), match, skip=skip)
    child.append(worker.begin("save", url, 2))
    known.set()
    code = worker.ended()
    proxy.heal()
    assert code in (0, -signal.SIGKILL)
    return code != 0


def look(server: Server, url: str) -> tuple[bool, int]:
    """Whether the state that was being saved is there, and how many files it left if it is not.

    Whoever saves next does not wait for the lock of a dead process, and cleans up.
    """
    store = fresh(url)
    is_new = len(store.run("a").checkpoints()) > 1
    check(store, state(1), *([large(2)] if is_new else []))
    left = len(orphans(store))
    assert examine(store.backend, store.index).sound
    with store.run("a") as run:
        run.save(3, state(3))
    check(fresh(url), state(1), *([large(2)] if is_new else []), state(3))
    assert orphans(fresh(url)) == set()
    return is_new, left + len(unfinished(server, url))


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    ("match", "late", "leaves"),
    [
        (is_part, True, (False, True)),
        (is_record, False, (False, True)),
        (is_record, True, (True, False)),
    ],
    ids=["a part", "before the record", "after the record"],
)
def test_a_save_that_is_killed_leaves_the_old_state_or_the_new_one(
    server, proxy, bucket_url, worker, match, late, leaves
):
    with fresh(bucket_url).run("a") as run:
        run.save(1, state(1))
    assert kill_a_save(worker, proxy, bucket_url, late, 0, match)
    is_new, left = look(server, bucket_url)
    assert (is_new, left > 0) == leaves


@pytest.mark.long
@pytest.mark.guarantee("G1")
@pytest.mark.parametrize("first", [0, 1])
def test_a_save_killed_at_any_request_leaves_the_old_state_or_the_new_one(
    server, proxy, bucket_url, worker, first
):
    found = []
    for number, at in enumerate(range(MOST), first):
        url = f"{bucket_url}/{at}"
        with fresh(url).run("a") as run:
            run.save(1, state(1))
        late = number % 2 == 1
        if not kill_a_save(worker, proxy, url, late, at, lambda request: True):
            break
        found.append(look(server, url))
    assert {is_new for is_new, _ in found} == {False, True}
    assert any(left for _, left in found), "no kill left anything behind: were they early enough?"


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("what", ["race", "race_without_locks"])
def test_of_those_who_save_one_step_at_once_one_does(bucket_url, what, server, workers):
    fresh(bucket_url).run("a")
    for number, worker in enumerate(workers):
        worker.begin(what, bucket_url, number)
    codes = [worker.ended() for worker in workers]
    assert sorted(codes) == [0, 3]
    (checkpoint,) = fresh(bucket_url).run("a").checkpoints()
    loaded = checkpoint.state()
    assert loaded.pop("number") == codes.index(0)
    assert same(loaded, large(1))
    with fresh(bucket_url).run("a") as run:  # it cleans up after those who lost, if need be
        run.save(2, state(2))
    assert orphans(fresh(bucket_url)) == set()
    assert len(keys(straight(server, bucket_url), ".safetensors")) == 2


def test_two_processes_train_into_two_runs_of_one_store(bucket_url, workers):
    for number, worker in enumerate(workers):
        worker.begin("save_many", bucket_url, number)
    assert [worker.ended() for worker in workers] == [0, 0]
    store = fresh(bucket_url)
    found = [each for run in store.runs() for each in run.checkpoints()]
    for number in range(2):
        checkpoints = store.run(f"run {number}").checkpoints()
        assert [each.step for each in checkpoints] == list(range(5))
        sequences = [each.sequence for each in checkpoints]
        assert sequences == sorted(set(sequences))
        assert all(same(each.state(), state(10 * number + each.step)) for each in checkpoints)
    assert store.resolve("latest") == max(found, key=lambda each: (each.sequence, each.run.hash))
    store.write_manifest()
    manifest = store.backend.read("manifest.yaml").decode()
    assert all(run.hash in manifest for run in store.runs())
    assert orphans(store) == set()


def test_a_forked_process_cannot_use_the_store_and_its_parent_still_can(bucket_url):
    store = Store(bucket_url)
    run = store.run("a")
    run.save(1, state(1))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            for act in (run.load, lambda: run.save(2, {}), lambda: Store(bucket_url).run("b")):
                with pytest.raises(FileError) as caught:
                    act()
                assert caught.value.errno == errno.ENOTSUP
            run.close()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run.save(2, state(2))
    run.close()
    assert [each.step for each in fresh(bucket_url).run("a").checkpoints()] == [1, 2]


PROGRAM = """
import sys
from standfast import Store
from standfast.store.index.manifest import close_manifests

run = Store(sys.argv[1]).run("a")
run.save(1, {})
close_manifests()
run.save(2, {})  # the manifest waits a minute, or for the exit
print("saved", flush=True)
sys.stdin.readline()
"""


@pytest.mark.long
def test_a_process_ends_though_its_server_is_gone(proxy, bucket_url, monkeypatch):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    command = [sys.executable, "-c", PROGRAM, bucket_url]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        rule = proxy.rule(HoldAnswer(600), times=None)
        _, errors = process.communicate("\n", timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert rule.hits > 0
