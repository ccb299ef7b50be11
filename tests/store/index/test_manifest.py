"""The manifest tells of all runs, is always whole, and nobody who saves waits for it."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import threading
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from standfast import Store
from standfast.errors import NotAStore, UnreadableFile
from standfast.files import disk
from standfast.store.backends.local import LocalBackend
from standfast.store.index import manifest as manifests
from standfast.store.index.index import Index
from standfast.store.index.manifest import Manifest
from standfast.store.maintenance.doctor import clean, examine
from tests import WEIGHTSLAB

FIRST_LINE = "# Written by Standfast from the records; it may be deleted at any time.\n"


def read(store: Store) -> dict[str, Any]:
    path = Path(store.url) / "manifest.yaml"
    text = path.read_text()
    assert text.startswith(FIRST_LINE)
    found: dict[str, Any] = yaml.safe_load(text)
    return found


def latest(store: Store) -> Any:
    return read(store)["latest_hash"]


class Gate:
    """Lets a manifest be written when it is told to."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()
        write = manifests.write_manifest

        def wait(*arguments: Any) -> None:
            self.reached.set()
            assert self.open.wait(60)
            write(*arguments)

        patch.setattr(manifests, "write_manifest", wait)


def test_it_has_the_keys_of_layout_v3(store: Store) -> None:
    with store.run("gpt", hp={"lr": 0.1}) as run:
        run.save(1, {"a": 1})
    found = read(store)
    assert set(found) == {"latest_hash", "last_updated", "experiments"}
    assert found["latest_hash"] == run.hash
    entry = found["experiments"][run.hash]
    assert set(entry) == {"name", "hp_hash", "model_hash", "data_hash", "created", "last_used"}
    assert entry["hp_hash"] + entry["model_hash"] + entry["data_hash"] == run.hash


def test_a_save_returns_while_it_is_being_written(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.run("a")
    gate = Gate(monkeypatch)
    store._manifest._written = None  # it is due
    run.save(1, {"a": 1})
    assert gate.reached.wait(60)
    for step in range(2, 5):
        run.save(step, {"a": step})
    assert run.load() == {"a": 4}
    assert latest(store) is None
    gate.open.set()
    run.close()
    assert latest(store) == run.hash


def test_a_save_returns_while_the_index_of_the_writer_is_slow(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.run("a")
    released = threading.Event()
    refresh, saver = Index.refresh, threading.get_ident()

    def slow(self: Index) -> None:
        if threading.get_ident() != saver:
            assert released.wait(60)
        refresh(self)

    monkeypatch.setattr(Index, "refresh", slow)
    store._manifest._written = None
    run.save(1, {"a": 1})
    run.save(2, {"a": 2})
    assert latest(store) is None
    released.set()
    store.close()
    assert latest(store) == run.hash


def test_it_is_written_once_a_minute_at_most(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []
    write = manifests.write_manifest
    monkeypatch.setattr(
        manifests, "write_manifest", lambda *arguments: written.append(write(*arguments))
    )
    run = store.run("a")
    assert len(written) == 1
    for step in range(5):
        run.save(step, {})
    assert len(written) == 1
    run.close()
    assert len(written) == 2
    store.close()
    assert len(written) == 2


def test_when_a_minute_is_over_it_is_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifests, "_REFRESHED", 0.01)
    run = store.run("a")
    run.save(1, {})
    thread = store._manifest._thread
    if thread is not None:
        thread.join(60)
    assert latest(store) == run.hash


def test_closing_a_store_waits_for_it_and_may_be_repeated(tmp_path: Path) -> None:
    with Store(tmp_path) as store:
        run = store.run("a")
        run.save(1, {})
        assert latest(store) is None
    assert latest(store) == run.hash
    store.close()
    run.save(2, {})
    run.close()
    assert run.load() == {}


def test_a_run_that_saved_nothing_does_not_write_it(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.run("a")
    monkeypatch.setattr(Manifest, "write", lambda *_: pytest.fail("it was written"))
    run.close()
    store.close()
    assert latest(store) is None


def test_a_failure_is_nobodys_loss_and_it_is_tried_again(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.run("a")

    def fail(*_: Any) -> None:
        raise UnreadableFile(5, "a disk that cannot be read")

    with monkeypatch.context() as patch:
        patch.setattr(manifests, "write_manifest", fail)
        store._manifest._written = None
        run.save(1, {})
        run.close()
    assert latest(store) is None
    store.close()
    assert latest(store) == run.hash


def test_a_store_that_is_gone_does_not_come_back(tmp_path: Path) -> None:
    store = Store(tmp_path / "store")
    run = store.run("a")
    run.save(1, {})
    (tmp_path / "store").rename(tmp_path / "elsewhere")
    store.close()
    assert not (tmp_path / "store" / "checkpoints" / "manifest.yaml").exists()


PROGRAM = """
import sys
from standfast import Store
run = Store(sys.argv[1]).run("a")
run.save(1, {"a": 1})
"""


def test_a_program_that_ends_has_it_written(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True, timeout=300)
    assert latest(Store(tmp_path)) == Store(tmp_path).run("a").hash


def test_a_forked_process_writes_its_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    run = store.run("a")
    gate = Gate(monkeypatch)
    store._manifest._written = None
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


def test_killed_at_any_operation_it_is_the_old_one_or_the_new_one(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = store.run("a")
    store.write_manifest()
    path = Path(store.url) / "manifest.yaml"
    seen: list[bytes] = []

    class Watching(type(disk.LOCAL)):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            seen.append(path.read_bytes())
            return super().__getattribute__(name)

    run.save(1, {})
    monkeypatch.setattr(disk, "LOCAL", Watching())
    old = path.read_bytes()
    store.write_manifest()
    seen.append(path.read_bytes())
    assert old != seen[-1]
    assert len(seen) > 4
    assert set(seen) == {old, seen[-1]}


# What other programs add


ADDED = "1c6ae623a37f617b2048d9ae"


def add_as_weightslab(store: Store, run: str = ADDED, **entry: Any) -> dict[str, Any]:
    """Write a manifest as weightslab does: the one that is there, with one more experiment."""
    path = Path(store.url) / "manifest.yaml"
    manifest = yaml.safe_load(path.read_text())
    manifest["experiments"][run] = {
        "hp_hash": run[:8],
        "created": "2026-11-19T06:31:43.974415",
        "latest_weight_checkpoint": None,
        "latest_weight_step": 100,
        **entry,
    }
    manifest["latest_hash"] = run
    path.write_text(yaml.dump(manifest, default_flow_style=False, sort_keys=False))
    added: dict[str, Any] = manifest["experiments"][run]
    return added


def test_an_experiment_that_another_program_added_is_kept(store: Store) -> None:
    """The rule of the project: nothing is deleted that Standfast did not create."""
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


def test_a_run_that_was_removed_is_not_taken_for_an_added_experiment(store: Store) -> None:
    for name in "ab":
        with store.run(name) as run:
            run.save(1, {"a": name})
    store.write_manifest()
    add_as_weightslab(store)
    shutil.rmtree(Path(store.url) / "models" / run.hash)
    for _ in range(2):
        store.write_manifest()
        assert read(store)["experiments"].keys() == {store.find_run("a").hash, ADDED}


@pytest.mark.parametrize(
    "text",
    [
        b"experiments: {a: {",
        b"- a list",
        b"experiments: [1, 2]",
        b"a: &a [1]\nexperiments: {b: *a}",
        b"experiments: !!python/object:os.system {}",
        b"\xff\x00",
        b"# large\n" * (1 << 20),
        f"{FIRST_LINE}# Added by another program\nexperiments: {{a: {{".encode(),
    ],
    ids=["torn", "list", "no entries", "alias", "tag", "binary", "large", "ours and torn"],
)
def test_a_manifest_of_another_program_that_cannot_be_read_is_kept_beside_ours(
    store: Store, text: bytes
) -> None:
    path = Path(store.url) / "manifest.yaml"
    with store.run("a") as run:
        run.save(1, {"a": 1})
    store.write_manifest()
    path.write_bytes(text)
    with store.run("a") as run:
        run.save(2, {"a": 1})
    store.write_manifest()
    assert read(store)["experiments"].keys() == {run.hash}
    assert path.with_name("manifest.weightslab.yaml").read_bytes() == text


def test_a_manifest_that_the_disk_cannot_read_now_keeps_its_name(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.run("a") as run:
        run.save(1, {"a": 1})
    store.write_manifest()
    add_as_weightslab(store)
    path = Path(store.url) / "manifest.yaml"
    before, plain = path.read_bytes(), LocalBackend.read

    def failing(self: LocalBackend, name: str, limit: int | None = None) -> bytes:
        if name == path.name:
            raise UnreadableFile(errno.EIO, f"cannot read {name}")
        return plain(self, name, limit)

    with monkeypatch.context() as patched:
        patched.setattr(LocalBackend, "read", failing)
        run.save(2, {"a": 1})
        store.write_manifest()
    assert path.read_bytes() == before
    store.write_manifest()
    assert read(store)["experiments"].keys() == {run.hash, ADDED}
    assert not path.with_name("manifest.weightslab.yaml").exists()


@pytest.mark.parametrize(
    "entry", [None, 5, [], {}, {"created": 1}, {"created": None, "a": {"\0": "\u00e9"}}], ids=repr
)
def test_an_added_experiment_of_any_form_is_kept(store: Store, entry: Any) -> None:
    with store.run("a") as run:
        run.save(1, {"a": 1})
    path = Path(store.url) / "manifest.yaml"
    path.write_text(yaml.safe_dump({"experiments": {"x": entry, 5: deepcopy(entry)}}))
    store.write_manifest()
    store.write_manifest()
    experiments = read(store)["experiments"]
    assert experiments.pop(run.hash)["name"] == "a"
    assert experiments == {"x": entry, 5: entry}


# Roots of others


def everything_in(root: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(path.relative_to(root)): (
            path.stat().st_mtime_ns,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in [root, *root.rglob("*")]
    }


def test_nothing_is_written_into_a_root_of_weightslab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    before = everything_in(WEIGHTSLAB)
    store = Store(WEIGHTSLAB)
    assert [run.name for run in store.runs()] == ["wl-jade-tide"]
    with pytest.raises(NotAStore, match="standfast import"):
        store.run("mine")
    store.write_manifest()
    examine(store.backend, store.index)
    clean(store.backend, store.index)
    store.close()
    assert everything_in(WEIGHTSLAB) == before
