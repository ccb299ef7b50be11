"""A process may fork while other threads use a store: neither it nor its children hang."""

import ast
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import standfast
from standfast.store.index import database
from standfast.store.index.forks import _Gate
from tests.kit.process import open_files

PROGRAM = """
import os, sys, threading, time
import standfast

folder = sys.argv[1]
run = standfast.Store(folder).run("a")
for step in range(10):
    run.save(step, {"n": step})

def use() -> None:
    while True:
        store = standfast.Store(folder)
        store.index.refresh()
        list(store.index.newest())
        store.close()

for _ in range(3):
    threading.Thread(target=use, daemon=True).start()
hung = 0
for _ in range(15):
    child = os.fork()
    if not child:
        assert standfast.Store(folder).resolve("a").step == 9
        os._exit(0)
    end = time.monotonic() + 60
    while not (ended := os.waitpid(child, os.WNOHANG))[0]:
        if time.monotonic() > end:
            os.kill(child, 9)
            hung += 1
            break
        time.sleep(0.001)
    else:
        assert ended[1] == 0
    if hung:
        break
print("hung", hung, flush=True)
os._exit(0)
"""


def test_a_child_that_was_forked_beside_threads_uses_the_store(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert done.stdout == "hung 0\n"


def in_a_child(check: str, tmp_path: Path) -> str:
    """What a forked process says of an expression."""
    said = tmp_path / "said"
    child = os.fork()
    if not child:
        try:
            said.write_text(str(eval(check)))
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    return said.read_text()


def test_no_file_of_an_index_is_inherited(tmp_path):
    store = standfast.Store(tmp_path / "store")
    store.run("a").save(1, {"n": 1})
    store.index.refresh()
    assert store.index.count() == 1
    assert open_files(database.NAME)
    assert in_a_child("open_files(database.NAME)", tmp_path) == "[]"
    assert store.index.count() == 1
    assert open_files(database.NAME)


def test_what_is_known_in_memory_alone_is_known_after_a_fork(tmp_path, seams):
    standfast.Store(tmp_path / "store").run("a").save(1, {"n": 1})
    seams.backend(cache=None)
    store = standfast.Store(tmp_path / "store")
    store.index.refresh()
    in_a_child("1", tmp_path)
    assert store.index.count() == 1


def test_a_fork_does_not_wait_for_a_server_that_is_silent(tmp_path, seams):
    """Nor does the child use the file, which its parent was about to write."""
    store = standfast.Store(tmp_path / "store")
    store.run("a").save(1, {"n": 1})
    store.index.refresh()
    asked, answer = threading.Event(), threading.Event()

    def silent(folders: Any, name: str) -> Any:
        if threading.current_thread() is not threading.main_thread():
            asked.set()
            assert answer.wait(60)
        return folders(name)

    seams.backend(folders=silent)
    waiting = threading.Thread(target=store.index.refresh)
    waiting.start()
    assert asked.wait(60)
    listed, found = "open_files(database.NAME)", f"standfast.Store({str(tmp_path / 'store')!r})"
    said = in_a_child(f"{listed}, {found}.resolve('a').step, {listed}", tmp_path)
    assert waiting.is_alive()
    before, step, after = ast.literal_eval(said)
    assert step == 1
    assert before == after != []
    answer.set()
    waiting.join()
    assert store.index.count() == 1


def test_a_fork_does_not_wait_for_a_database_that_the_collector_ends_on_its_own_thread():
    gate = _Gate()
    done = threading.Event()

    def fork() -> None:
        gate.before_fork()
        gate.enter()
        gate.leave()
        gate.after_fork()
        done.set()

    threading.Thread(target=fork, daemon=True).start()
    assert done.wait(60)
