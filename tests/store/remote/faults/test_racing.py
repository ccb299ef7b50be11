"""Several processes at once in one store at a URL."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback

import pytest
from tests.store.remote.faults.workers import Worker

from standfast import Store
from standfast.errors import FileError
from tests.kit.object_store.faults import HoldAnswer
from tests.kit.object_store.proxy import Proxy
from tests.kit.object_store.server import Server
from tests.kit.stores import same
from tests.store.remote.places import data_keys, fresh, large, orphans, state, straight


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("what", ["race", "race_without_locks"])
def test_of_those_who_save_one_step_at_once_one_does(
    bucket_url: str, what: str, server: Server, workers: list[Worker]
) -> None:
    for turn in range(3):
        url = f"{bucket_url}/{turn}"
        fresh(url).run("a")
        for number, worker in enumerate(workers):
            worker.begin(what, url, number)
        codes = [worker.ended() for worker in workers]
        assert sorted(codes) == [0, 3]
        store = fresh(url)
        (checkpoint,) = store.run("a").checkpoints()
        loaded = checkpoint.state()
        assert loaded.pop("number") == codes.index(0)
        assert same(loaded, large(1))
        with store.run("a") as run:  # it cleans up after those who lost, if need be
            run.save(2, state(2))
        assert orphans(fresh(url)) == set()
        assert len(data_keys(straight(server, url))) == 2


def test_two_processes_train_into_two_runs_of_one_store(
    bucket_url: str, workers: list[Worker]
) -> None:
    for number, worker in enumerate(workers):
        worker.begin("save_many", bucket_url, number)
    assert [worker.ended() for worker in workers] == [0, 0]
    store = fresh(bucket_url)
    assert len(store.runs()) == 2
    for number in range(2):
        checkpoints = store.run(f"run {number}").checkpoints()
        assert [each.step for each in checkpoints] == list(range(10))
        sequences = [each.sequence for each in checkpoints]
        assert sequences == sorted(set(sequences))
        for each in checkpoints:
            assert same(each.state(), state(10 * number + each.step))
    everything = [each for run in store.runs() for each in run.checkpoints()]
    last = max(everything, key=lambda each: (each.sequence, each.run.hash))
    assert store.resolve("latest") == last
    store.write_manifest()
    manifest = store.backend.read("manifest.yaml").decode()
    assert all(run.hash in manifest for run in store.runs())
    assert orphans(store) == set()


def test_a_forked_process_is_told_that_it_cannot_use_the_store(bucket_url: str) -> None:
    store = Store(bucket_url)
    run = store.run("a")
    run.save(1, state(1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(20)
            for act in (run.load, lambda: run.save(2, {}), lambda: Store(bucket_url).run("b")):
                with pytest.raises(FileError) as caught:
                    act()
                os.write(write, f"{caught.value}\n".encode())
            run.close()
            code = 0
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(code)
    os.close(write)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with os.fdopen(read) as said:
        lines = said.read().splitlines()
    assert len(lines) == 3
    assert all("was forked from one that has used a store at a URL" in line for line in lines)
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
def test_a_process_ends_though_its_server_is_gone(
    proxy: Proxy, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    command = [sys.executable, "-c", PROGRAM, bucket_url]
    with subprocess.Popen(command, stdin=-1, stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "saved\n"
        rule = proxy.rule(HoldAnswer(600), times=None)
        _, errors = process.communicate("\n", timeout=60)
    assert (process.returncode, errors) == (0, "")
    assert rule.hits > 0
