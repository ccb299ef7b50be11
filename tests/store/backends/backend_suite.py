"""What every backend of a store must do.

A backend's test module has a class derived from `BackendSuite`, with a fixture `backend` that
gives a fresh, empty one.
"""

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from standfast import errors
from standfast.files.disk import ALIGNMENT
from standfast.store.backends.backend import Backend, Version

NO_NAMES = [
    "",
    "/",
    "/etc/passwd",
    "..",
    "../secret",
    "models/../../secret",
    "models/..",
    ".",
    "./x",
    "models//x",
    "models/",
    "nul\0x",
    "half \ud800 a pair",
]
RUN = "models/0123"


def new_file(backend: Backend, name: str, content: bytes) -> None:
    """Write a file as a save does: in blocks, placed, and its name made durable."""
    with backend.new(name) as file:
        size = -(-len(content) // ALIGNMENT) * ALIGNMENT
        file.reserve(size)
        blocks = np.frombuffer(content.ljust(size, b"\0"), np.uint8)
        for start in range(0, size, ALIGNMENT):
            file.write(blocks[start : start + ALIGNMENT], start)
        file.finish(len(content))
        file.place()
    backend.sync(name.rpartition("/")[0])


def refusing(number: int) -> Callable[..., None]:
    """An operation that always fails."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def settled(version: Callable[[], Version | None]) -> Version | None:
    """A version that can be trusted: a change after this gives another one."""
    deadline = time.monotonic() + 60
    while True:
        time.sleep(0.02)
        found = version()
        if found is None or found[0] < time.time_ns() - 10_000_000:
            return found
        assert time.monotonic() < deadline, "nobody can ever trust it"


class BackendSuite:
    keeps_what_is_open = True
    """Whether an open file stays readable after it was deleted."""

    @pytest.fixture
    def backend(self) -> Backend:
        raise NotImplementedError

    @pytest.mark.parametrize("length", [0, 1, ALIGNMENT, 3 * ALIGNMENT + 7])
    @pytest.mark.parametrize("folder", ["", RUN])
    def test_a_file_of_any_length_comes_back(self, backend, folder, length):
        content = np.random.default_rng(0).bytes(length)
        for name, *writes in (
            ("record.json", backend.create, backend.replace),
            ("data.safetensors", partial(new_file, backend)),
        ):
            name = f"{folder}/{name}".lstrip("/")
            for write in writes:
                write(name, content)
                backend.sync(folder)
                assert backend.read(name) == backend.read(name, 10**6) == content
                assert (backend.read(name, 4), backend.read(name, 0)) == (content[:4], b"")
                assert backend.size(name) == length
                assert backend.exists(name)
                path = backend.path(name)
                assert path is None or path.read_bytes() == content
        listed = sorted(entry.name for entry in backend.list(folder))
        assert listed == ["data.safetensors", "record.json"]

    def test_create_refuses_a_name_that_is_taken_and_replace_takes_it(self, backend):
        backend.replace("models/a", b"first")
        with pytest.raises(errors.AlreadyExists):
            backend.create("models/a", b"second")
        assert backend.read("models/a") == b"first"
        (before,) = backend.list("models")
        backend.replace("models/a", b"the second one")
        assert backend.read("models/a") == b"the second one"
        assert backend.list("models")[0].stamp != before.stamp, "it is another file"

    def test_of_many_threads_that_create_one_name_one_wins(self, backend):
        ready = threading.Barrier(8)

        def create(number) -> bool:
            ready.wait(30)
            try:
                backend.create("models/a", str(number).encode())
            except errors.AlreadyExists:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(create, range(8)))
        assert won.count(True) == 1
        assert backend.read("models/a") == str(won.index(True)).encode()

    def test_a_reader_keeps_a_file_that_is_replaced_or_deleted(self, backend):
        backend.replace("a", b"first")
        opened = backend.open("a")
        backend.replace("a", b"second")
        self._check_first(opened)
        backend.delete(["a"])
        self._check_first(opened)
        opened.close()

    def _check_first(self, opened: Any) -> None:
        """It is the file that was opened, or says that it is not."""
        assert opened.size == 5
        out = np.zeros(5, np.uint8)
        if self.keeps_what_is_open:
            assert opened.read(1, 3) == b"irs"
            opened.read_into(out, 0)
            assert out.tobytes() == b"first"
            return
        for read in (lambda: opened.read(1, 3), lambda: opened.read_into(out, 0)):
            with pytest.raises((errors.ChangedFile, errors.MissingFile)):
                read()

    def test_a_file_cannot_be_in_a_file_nor_in_the_place_of_a_folder(self, backend):
        backend.create("models/a", b"x")
        for write in (backend.create, backend.replace, partial(new_file, backend)):
            with pytest.raises(errors.WriteFailed):
                write("models/a/b", b"y")
        with pytest.raises(errors.WriteFailed):
            backend.replace("models", b"y")
        with pytest.raises(errors.AlreadyExists):
            backend.create("models", b"y")
        assert backend.read("models/a") == b"x"

    def test_blocks_come_in_any_order_and_from_any_thread(self, backend):
        blocks = [np.full(ALIGNMENT, i, np.uint8) for i in range(8)]
        with backend.new("a") as file:
            with ThreadPoolExecutor(4) as pool:
                order = [5, 0, 7, 2, 1, 6, 4, 3]
                list(pool.map(lambda i: file.write(blocks[i], i * ALIGNMENT), order))
            file.finish(8 * ALIGNMENT)
            file.place()
        assert backend.read("a") == b"".join(block.tobytes() for block in blocks)

    def test_a_file_is_there_when_it_is_placed_and_else_never(self, backend):
        with backend.new(f"{RUN}/a") as file:
            file.write(np.zeros(ALIGNMENT, np.uint8), 0)
            file.finish(10)
            assert backend.list(RUN) == []
            assert not backend.exists(f"{RUN}/a")
            assert not backend.exists(RUN)
            assert backend.size(f"{RUN}/a") is None
            with pytest.raises(errors.MissingFile):
                backend.open(f"{RUN}/a")
        file.discard()
        with pytest.raises(RuntimeError), backend.new("b") as file:
            raise RuntimeError
        other = backend.new("c")
        other.discard()
        other.discard()
        assert backend.list("") == backend.list(RUN) == []

    def test_a_new_file_never_replaces_another(self, backend):
        with backend.new("a") as file:
            file.finish(0)
            file.place()
            file.discard()
        with backend.new("a") as file:
            file.finish(3)
            with pytest.raises(errors.AlreadyExists):
                file.place()
        assert backend.read("a") == b""
        assert len(backend.list("")) == 1

    def test_what_is_not_there(self, backend):
        backend.create("models/a", b"x")
        for name in ("nothing", "models/nothing", "nowhere/at/all"):
            assert not backend.exists(name)
            assert backend.size(name) is None
            with pytest.raises(errors.MissingFile):
                backend.read(name)
            with pytest.raises(errors.MissingFile):
                backend.open(name)
        assert list(backend.list("nowhere")) == []
        assert dict(backend.folders("nowhere")) == {}
        assert backend.version("nowhere") is None

    def test_a_list_has_the_files_of_a_folder_and_folders_those_in_it(self, backend):
        assert not backend.exists("models")
        for name in ("top", "models/a", "models/b", "models/c/d/e", "models/.hidden", "HP/.x/y"):
            backend.create(name, b"x")
        assert all(backend.exists(folder) for folder in ("", "models", "models/c"))
        assert backend.size("models") is None
        with pytest.raises(errors.FileError):
            backend.read("models")
        listed = {"": ["top"], "models": ["a", "b"], "models/c/d": ["e"], "models/a": []}
        for folder, names in listed.items():
            assert sorted(entry.name for entry in backend.list(folder)) == names
        assert len({entry.stamp for entry in backend.list("models")}) == 2
        folders = {"": ["HP", "models"], "models": ["c"], "models/c/d": [], "top": [], "HP": []}
        for folder, names in folders.items():
            assert sorted(backend.folders(folder)) == names
            for name in names:
                version = settled(partial(backend.version, f"{folder}/{name}".lstrip("/")))
                assert backend.folders(folder)[name] == version

    def test_a_folder_has_another_version_when_its_names_change_and_others_do_not(self, backend):
        backend.create(f"{RUN}/a", b"x")
        backend.create("models/other/x", b"x")
        other = settled(lambda: backend.version("models/other"))
        seen = [settled(lambda: backend.version(RUN))]
        assert seen[0] == backend.version(RUN), "nothing has changed"
        for change in (
            lambda: backend.create(f"{RUN}/b", b"x"),
            lambda: backend.replace(f"{RUN}/b", b"y"),
            lambda: new_file(backend, f"{RUN}/c", b"z"),
            lambda: backend.delete([f"{RUN}/b"]),
            lambda: backend.create(f"{RUN}/folder/d", b"x"),
        ):
            change()
            assert backend.folders("models")["0123"] not in seen
            seen.append(settled(lambda: backend.version(RUN)))
        assert len(set(seen)) == 6
        assert backend.version("models/other") == other

    def test_deleted_files_are_gone_and_a_folder_if_nothing_is_in_it(self, backend):
        for name in "abc":
            backend.create(f"{RUN}/{name}", b"x")
        backend.delete([f"{RUN}/a", f"{RUN}/nothing", "nowhere/at/all", f"{RUN}/c"])
        backend.sync(RUN)
        backend.delete([])
        backend.delete_folder(RUN)
        assert [entry.name for entry in backend.list(RUN)] == ["b"]
        backend.delete([f"{RUN}/b"])
        for _ in range(2):
            backend.delete_folder(RUN)
        assert "0123" not in backend.folders("models") or not backend.exists(RUN)
        assert backend.version(RUN) is None
        backend.create(f"{RUN}/a", b"second")
        assert backend.read(f"{RUN}/a") == b"second"

    def test_a_linked_file_goes_by_both_names_or_is_refused(self, backend):
        backend.create("models/a/x", b"content")
        with pytest.raises(errors.MissingFile):
            backend.link("models/nothing", "models/b/y")
        assert not backend.exists("models/b")
        if not backend.link("models/a/x", "models/b/y"):
            assert not backend.exists("models/b/y")
            return
        backend.sync("models/b")
        assert backend.link("models/a/x", "models/b/y"), "it is that file already"
        assert backend.list("models/a")[0].stamp == backend.list("models/b")[0].stamp
        backend.delete(["models/a/x"])
        assert backend.read("models/b/y") == b"content"

    def test_a_link_replaces_another_file_only_if_it_shall(self, backend):
        backend.create("a", b"new")
        backend.create("b", b"new")
        assert not backend.link("a", "b")
        backend.replace("b", b"old")
        assert not backend.link("a", "b")
        assert backend.read("b") == b"old"
        if backend.link("a", "b", over=True):
            assert backend.read("b") == b"new"
            assert backend.link("a", "b"), "it is that file already"
        assert sorted(entry.name for entry in backend.list("")) == ["a", "b"]

    def test_a_lock_is_held_once_until_it_is_released(self, backend):
        first = backend.lock("run-0123")
        assert first.is_held()
        assert backend.holder("run-0123")
        assert backend.lock("run-0123") is None
        other = backend.lock("run-4567")
        first.release()
        first.release()
        assert not first.is_held()
        assert backend.holder("run-0123") is None
        with backend.lock("run-0123") as second:
            assert second.is_held()
            assert not first.is_held()
            first.release()
            assert second.is_held(), "who released it has no say any more"
        assert not second.is_held()
        assert other.is_held()
        other.release()

    def test_a_lock_is_waited_for(self, backend):
        first = backend.lock("a")
        assert backend.lock("a", wait=0.1) is None
        timer = threading.Timer(0.1, first.release)
        timer.start()
        second = backend.lock("a", wait=30)
        timer.join()
        second.release()

    def test_of_many_threads_one_has_the_lock(self, backend):
        inside: list[int] = []

        def work(number: int) -> int:
            with backend.lock("a", wait=30):
                inside.append(number)
                count = len(inside)
                backend.exists("models")  # which lets the others run
                inside.remove(number)
            return count

        with ThreadPoolExecutor(6) as pool:
            assert list(pool.map(work, range(12))) == [1] * 12

    def test_the_locks_that_are_held_can_be_listed(self, backend):
        assert list(backend.locked("")) == []
        names = ("a.pin.1", "a.pin.2", "b.pin.1")
        first, *others = (backend.lock(name, passing=True) for name in names)
        assert sorted(backend.locked("a.pin.")) == ["a.pin.1", "a.pin.2"]
        assert first.is_held(), "to list it takes it"
        first.release()
        assert list(backend.locked("a.pin.")) == ["a.pin.2"]
        assert list(backend.locked("b")) == ["b.pin.1"]
        for lock in others:
            lock.release()
        assert list(backend.locked("")) == []

    def test_its_locks_and_its_cache_are_no_objects(self, backend):
        backend.create("models/a", b"x")
        if backend.cache is not None:
            (backend.cache / "index").write_bytes(b"x")
        with backend.lock("a"):
            assert list(backend.list("")) == []
            assert list(backend.folders("")) == ["models"]
        assert backend.url
        assert (backend.free() or 1) > 0

    @pytest.mark.parametrize("name", NO_NAMES, ids=ascii)
    def test_a_name_that_leaves_the_store_is_refused(self, backend, name):
        backend.create("models/x", b"x")
        refusing: list[Callable[[], object]] = [
            lambda: backend.path(name),
            lambda: backend.size(name),
            lambda: backend.read(name),
            lambda: backend.open(name),
            lambda: backend.new(name),
            lambda: backend.create(name, b""),
            lambda: backend.replace(name, b""),
            lambda: backend.delete([name]),
            lambda: backend.delete_folder(name),
            lambda: backend.link(name, "models/y"),
            lambda: backend.link("models/x", name),
            lambda: backend.lock(name),
        ]
        if name:  # which is the outermost folder
            refusing += [
                lambda: backend.exists(name),
                lambda: backend.list(name),
                lambda: backend.folders(name),
                lambda: backend.version(name),
                lambda: backend.sync(name),
                lambda: backend.sweep(name),
            ]
        for call in refusing:
            with pytest.raises(errors.BadLabel):
                call()
        assert [entry.name for entry in backend.list("models")] == ["x"]

    @pytest.mark.parametrize("name", ["ünïcode 漢字", "a b", "..x", "x..", "a\\b", "-", "%2e"])
    def test_unusual_names_are_names(self, backend, name):
        backend.create(f"models/{name}/{name}", b"x")
        assert backend.read(f"models/{name}/{name}") == b"x"
        hidden = name.startswith(".")
        assert (name in backend.folders("models")) != hidden
        assert [entry.name for entry in backend.list(f"models/{name}")] == [name] * (not hidden)

    def test_a_sweep_leaves_what_is_placed_and_what_is_on_its_way(self, backend):
        backend.create(f"{RUN}/a", b"x")
        with backend.new(f"{RUN}/b") as file:
            file.write(np.ones(ALIGNMENT, np.uint8), 0)
            assert backend.sweep(RUN) == 0
            assert backend.sweep("") == 0
            assert backend.sweep("nowhere") == 0
            file.finish(3)
            file.place()
        assert backend.read(f"{RUN}/a") == b"x"
        assert backend.read(f"{RUN}/b") == b"\1\1\1"
