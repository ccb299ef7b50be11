"""The manifest tells of all runs, is always whole, and nobody who saves waits for it."""

import errno
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from standfast import Store
from standfast.errors import NotAStore, UnreadableFile
from standfast.store.maintenance.doctor import clean, examine
from tests import WEIGHTSLAB
from tests.kit.seams import Seams

FIRST_LINE = "# Written by Standfast from the records; it may be deleted at any time.\n"


def path_of(store: Store) -> Path:
    return Path(store.url, "manifest.yaml")


def read(store: Store) -> dict[str, Any]:
    text = path_of(store).read_text()
    assert text.startswith(FIRST_LINE)
    return yaml.safe_load(text)


def latest(store: Store) -> Any:
    return read(store)["latest_hash"]


class Gate:
    """Lets a manifest be written when it is told to, and counts those that are begun."""

    def __init__(self, seams: Seams, is_open: bool = False) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        self.count = 0
        if is_open:
            self.open.set()

        def wait(replace: Callable[[str, bytes], None], name: str, data: bytes) -> None:
            if name == "manifest.yaml":
                self.count += 1
                self.reached.set()
                assert self.open.wait(60)
            replace(name, data)

        seams.backend(replace=wait)


def test_it_has_the_keys_of_layout_v3(store):
    with store.run("gpt", hp={"lr": 0.1}) as run:
        run.save(1, {"a": 1})
    found = read(store)
    assert set(found) == {"latest_hash", "last_updated", "experiments"}
    assert found["latest_hash"] == run.hash
    entry = found["experiments"][run.hash]
    assert set(entry) == {"name", "hp_hash", "model_hash", "data_hash", "created", "last_used"}
    assert entry["hp_hash"] + entry["model_hash"] + entry["data_hash"] == run.hash


def test_a_save_returns_while_it_is_being_written(store, seams):
    run = store.run("a")
    gate = Gate(seams)
    seams.bound("interval of manifests", 0.0)
    for step in range(1, 5):
        run.save(step, {"a": step})
        assert gate.reached.wait(60)
    assert run.load() == {"a": 4}
    assert latest(store) is None
    gate.open.set()
    run.close()
    assert latest(store) == run.hash


def test_a_save_returns_while_the_index_of_the_writer_is_slow(store, seams):
    run = store.run("a")
    released, saver = threading.Event(), threading.get_ident()

    def slow(folders: Callable[[str], Any], name: str) -> Any:
        if threading.get_ident() != saver:
            assert released.wait(60)
        return folders(name)

    seams.backend(folders=slow)
    seams.bound("interval of manifests", 0.0)
    for step in (1, 2):
        run.save(step, {"a": step})
    assert latest(store) is None
    released.set()
    store.close()
    assert latest(store) == run.hash


def test_it_is_written_once_a_minute_at_most_and_at_the_end(store, seams):
    gate = Gate(seams, is_open=True)
    run = store.run("a")
    for step in range(5):
        run.save(step, {})
    assert gate.count == 1
    assert latest(store) is None
    for close in (run.close, store.close, store.close):
        close()
        assert gate.count == 2
    assert latest(store) == run.hash
    run.save(5, {})
    run.close()
    assert run.load() == {}


def test_a_run_that_saved_nothing_does_not_write_it(store, run, seams):
    gate = Gate(seams)
    run.close()
    store.close()
    assert gate.count == 0


def test_a_failure_is_nobodys_loss_and_it_is_tried_again(store):
    run = store.run("a")
    tried = threading.Event()

    def fail(folders: Callable[[str], Any], name: str) -> Any:
        if threading.current_thread() is threading.main_thread():
            return folders(name)
        tried.set()
        raise UnreadableFile(errno.EIO, "a disk that cannot be read")

    with Seams.until_end() as seams:
        seams.backend(folders=fail)
        seams.bound("interval of manifests", 0.0)
        run.save(1, {})
        assert tried.wait(60)
    assert latest(store) is None
    store.close()
    assert latest(store) == run.hash


def test_a_store_that_is_gone_does_not_come_back(tmp_path):
    store = Store(tmp_path / "store")
    run = store.run("a")
    run.save(1, {})
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    store.close()
    assert not (tmp_path / "store" / "checkpoints" / "manifest.yaml").exists()


def test_a_program_that_ends_has_it_written(tmp_path):
    code = "import sys, standfast; standfast.Store(sys.argv[1]).run('a').save(1, {'a': 1})"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=300)
    assert latest(Store(tmp_path)) == Store(tmp_path).run("a").hash


def test_a_forked_process_writes_its_own(store, seams):
    run = store.run("a")
    gate = Gate(seams)
    seams.bound("interval of manifests", 0.0)
    run.save(1, {})
    assert gate.reached.wait(60)  # the thread is at it, and is not there in a child
    child = os.fork()
    if child == 0:
        code = 1
        try:
            gate.open.set()
            with Store(Path(store.url).parent) as other, other.run("b") as second:
                second.save(1, {})
            store.close()
            code = 0 if latest(store) == second.hash else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    gate.open.set()
    run.close()


def test_whenever_it_is_looked_at_it_is_the_old_one_or_the_new_one(store, seams):
    run = store.run("a")
    store.write_manifest()
    path = path_of(store)
    old = path.read_bytes()
    run.save(1, {})
    seen: list[bytes] = []

    def watched(operation: Callable[..., Any], *given: Any, **options: Any) -> Any:
        seen.append(path.read_bytes())
        return operation(*given, **options)

    watch = dict.fromkeys(("create", "write", "sync", "rename", "close", "sync_folder"), watched)
    seams.disk(**watch)
    store.write_manifest()
    seen.append(path.read_bytes())
    assert old != seen[-1]
    assert len(seen) > 4
    assert set(seen) == {old, seen[-1]}


ADDED = "1c6ae623a37f617b2048d9ae"


def add_as_weightslab(store: Store, run: str = ADDED, **entry: Any) -> dict[str, Any]:
    """Write a manifest as weightslab does: the one that is there, with one more experiment."""
    manifest = yaml.safe_load(path_of(store).read_text())
    added = {"hp_hash": run[:8], "created": "2026-11-19T06:31:43.974415"}
    added |= {"latest_weight_checkpoint": None, "latest_weight_step": 100, **entry}
    manifest["experiments"][run] = added
    manifest["latest_hash"] = run
    path_of(store).write_text(yaml.dump(manifest, default_flow_style=False, sort_keys=False))
    return added


def test_an_experiment_that_another_program_added_is_kept(store):
    with store.run("a") as run:
        run.save(1, {"a": 1})
    first = add_as_weightslab(store, notes="it's: # \u00e9\n", experiment_name="wl-cobalt")
    for _ in range(3):
        store.write_manifest()
        assert read(store)["experiments"][ADDED] == first
    second = add_as_weightslab(store, "2" * 24)
    with store.run("b") as other:
        other.save(1, {"a": 1})
    store.write_manifest()
    experiments = read(store)["experiments"]
    assert experiments.keys() == {run.hash, other.hash, ADDED, "2" * 24}
    assert (experiments[ADDED], experiments["2" * 24]) == (first, second)
    assert latest(store) == other.hash
    assert {each.name for each in store.runs()} == {"a", "b"}


def test_a_run_that_was_removed_is_not_taken_for_an_added_experiment(store):
    for name in "ab":
        with store.run(name) as run:
            run.save(1, {"a": name})
    store.write_manifest()
    add_as_weightslab(store)
    shutil.rmtree(Path(store.url) / "models" / run.hash)
    for _ in range(2):
        store.write_manifest()
        assert read(store)["experiments"].keys() == {store.find_run("a").hash, ADDED}


UNREADABLE = {
    "torn": b"experiments: {a: {",
    "list": b"- a list",
    "no entries": b"experiments: [1, 2]",
    "alias": b"a: &a [1]\nexperiments: {b: *a}",
    "tag": b"experiments: !!python/object:os.system {}",
    "binary": b"\xff\x00",
    "large": b"# large\n" * (1 << 20),
    "ours and torn": f"{FIRST_LINE}# Added by another program\nexperiments: {{a: {{".encode(),
}


@pytest.mark.parametrize("how", UNREADABLE)
def test_a_manifest_that_cannot_be_read_is_kept_beside_ours(store, how):
    path = path_of(store)
    with store.run("a") as run:
        run.save(1, {"a": 1})
        store.write_manifest()
        path.write_bytes(UNREADABLE[how])
        run.save(2, {"a": 1})
    store.write_manifest()
    assert read(store)["experiments"].keys() == {run.hash}
    assert path.with_name("manifest.weightslab.yaml").read_bytes() == UNREADABLE[how]


def test_a_manifest_that_the_disk_cannot_read_now_keeps_its_name(store):
    with store.run("a") as run:
        run.save(1, {"a": 1})
    store.write_manifest()
    add_as_weightslab(store)
    path = path_of(store)
    before = path.read_bytes()

    def failing(read: Callable[..., bytes], name: str, limit: int | None = None) -> bytes:
        if name == path.name:
            raise UnreadableFile(errno.EIO, f"cannot read {name}")
        return read(name, limit)

    with Seams.until_end() as seams:
        seams.backend(read=failing)
        run.save(2, {"a": 1})
        store.write_manifest()
    assert path.read_bytes() == before
    store.write_manifest()
    assert read(store)["experiments"].keys() == {run.hash, ADDED}
    assert not path.with_name("manifest.weightslab.yaml").exists()


@pytest.mark.parametrize(
    "entry", [None, 5, [], {}, {"created": 1}, {"created": None, "a": {"\0": "\u00e9"}}], ids=repr
)
def test_an_added_experiment_of_any_form_is_kept(store, entry):
    with store.run("a") as run:
        run.save(1, {"a": 1})
    path = path_of(store)
    path.write_text(yaml.safe_dump({"experiments": {"x": entry, 5: deepcopy(entry)}}))
    store.write_manifest()
    store.write_manifest()
    experiments = read(store)["experiments"]
    assert experiments.pop(run.hash)["name"] == "a"
    assert experiments == {"x": entry, 5: entry}


def everything_in(root: Path) -> dict[Path, tuple[int, bytes]]:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [root, *root.rglob("*")]
    }


def test_nothing_is_written_into_a_root_of_weightslab(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = everything_in(WEIGHTSLAB)
    store = Store(WEIGHTSLAB)
    assert [run.name for run in store.runs()] == ["wl-jade-tide"]
    with pytest.raises(NotAStore):
        store.run("mine")
    store.write_manifest()
    examine(store.backend, store.index)
    clean(store.backend, store.index)
    store.close()
    assert everything_in(WEIGHTSLAB) == before
