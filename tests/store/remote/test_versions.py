"""Whoever knows a store from before sees each change of it, as somebody new to it does."""

import gc
import random
import time
from pathlib import Path
from typing import Any

import obstore
import pytest

from standfast import Store
from standfast.errors import StandfastError
from standfast.store.backends.address import INSIDE
from standfast.store.remote import versions
from standfast.store.remote.backend import RemoteBackend
from standfast.store.schema import names
from tests.kit.object_store.faults import Answer
from tests.store.remote.places import Forgetful, fresh, is_listing, is_record, keys, orphans, state
from tests.store.remote.test_processes import kill_a_save


class Cached(RemoteBackend):
    """With a cache of its own, as on another machine."""

    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url)
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def cache(self) -> Path:
        return self._folder


def alone(url: str) -> Store:
    """The store at a URL, in a process of its own, as far as it announces what it changes."""
    backend = Forgetful(f"{url}/{INSIDE}")
    backend._versions = versions.Versions(backend._client)
    return Store(backend)


def seen(store: Store) -> dict[str, Any]:
    """All that a list shows."""
    store.index.refresh()
    return {
        run.run: (
            run.name,
            store.index.sequences(run.run),
            store.index.tags(run.run),
            store.index.steps(run.run),
        )
        for run in store.index.runs(empty=True)
    }


class Actor:
    """Changes a store at random, by what it knows of it."""

    def __init__(self, url: str, chance: random.Random) -> None:
        self.store = alone(url)
        self._chance = chance
        self._tags = 0

    def act(self) -> None:
        kinds = [self.save, self.save, self.save, self.replace, self.delete, self.tag, self.untag]
        self._chance.choice([*kinds, self.rename, self.delete_all])()

    def _run(self) -> Any:
        return self.store.run(self._chance.choice("abc"))

    def _some(self) -> Any:
        found = [each for run in self.store.runs() for each in run.checkpoints()]
        return self._chance.choice(found) if found else None

    def save(self) -> None:
        with self._run() as run:
            step = max([*self.store.index.steps(run.hash), 0]) + 1
            run.save(step, {"n": self._chance.random()})

    def replace(self) -> None:
        if (some := self._some()) and not some.tags:
            with self.store.open_run(some.head.run) as run:
                run.save(some.step, {"n": self._chance.random()}, replace=True)

    def delete(self) -> None:
        if some := self._some():
            self.store.open_run(some.head.run).delete(some.step)

    def tag(self) -> None:
        if some := self._some():
            self._tags += 1
            some.tag(f"tag-{id(self)}-{self._tags}")

    def untag(self) -> None:
        if (some := self._some()) and some.tags:
            some.untag(some.tags[0])

    def rename(self) -> None:
        if some := self._some():
            self.store.open_run(some.head.run).rename(self._chance.choice("abc"))

    def delete_all(self) -> None:
        if (some := self._some()) and self._chance.random() < 0.5:
            self.store.open_run(some.head.run).delete_all()


@pytest.mark.parametrize(
    ("seed", "count"), [(1, 20), *(pytest.param(n, 150, marks=pytest.mark.long) for n in range(8))]
)
def test_each_change_by_one_is_seen_by_others(bucket_url, seed, count, tmp_path):
    chance = random.Random(seed)
    writers = [Actor(bucket_url, chance) for _ in range(2)]
    url = writers[0].store.url
    with writers[0].store.run("a") as run:
        run.save(0, {})
    warm = [Store(Cached(url, tmp_path / f"reader {n}")) for n in range(2)]
    done = 0
    for _ in range(count):
        try:
            chance.choice(writers).act()
            done += 1
        except StandfastError:
            pass  # a tag is in the way, or nothing intact would be left
        if chance.random() < 0.3:
            for writer in writers:  # all is announced, as it is after a moment without changes
                writer.store.backend._versions.flush()  # type: ignore[attr-defined]
        cold = seen(fresh(bucket_url))
        for reader in warm[: chance.randint(1, 2)]:
            assert seen(reader) == cold
    for writer in writers:
        writer.store.close()
    assert done > count // 2
    cold = seen(fresh(bucket_url))
    for reader in (*warm, *(writer.store for writer in writers)):
        assert seen(reader) == cold
    assert orphans(fresh(bucket_url)) == set()


def test_changes_in_quick_succession_are_each_seen(bucket_url, tmp_path, seams):
    seams.bound("moment of a version", 60.0)
    reader = Store(Cached(fresh(bucket_url).url, tmp_path / "reader"))
    run = fresh(bucket_url).run("a")
    for step in range(3):
        run.save(step, {})
        assert seen(reader)[run.hash][3] == list(range(step + 1))


def test_a_folder_in_which_nothing_changes_is_not_listed_again(proxy, bucket_url, tmp_path):
    with Store(bucket_url) as store, store.run("a") as run:
        run.save(1, state(1))
    reader = Store(Cached(store.url, tmp_path / "reader"))
    known = seen(reader)
    proxy.reset()
    assert seen(reader) == known
    prefixes = [request.query["prefix"] for request in proxy.log if is_listing(request)]
    assert len(prefixes) == len(proxy.log) > 0
    assert not any(run.hash in prefix for prefix in prefixes)


@pytest.mark.parametrize("late", [False, True], ids=["before", "after"])
def test_a_change_by_a_process_that_is_killed_beside_it_is_seen(
    proxy, bucket_url, late, worker, tmp_path
):
    with Store(bucket_url) as store, store.run("a") as run:
        run.save(1, state(1))
    reader = Store(Cached(store.url, tmp_path / "reader"))
    assert seen(reader)[run.hash][3] == [1]
    assert kill_a_save(worker, proxy, bucket_url, late, 0, lambda it: is_record(it, 2))
    cold = seen(fresh(bucket_url))
    assert cold[run.hash][3] == ([1, 2] if late else [1])
    assert seen(reader) == cold
    with Store(bucket_url) as store, store.run("a") as run:
        run.save(3, state(3))
    assert seen(reader) == seen(fresh(bucket_url))


def test_a_change_that_failed_may_be_done_yet_and_is_seen_then(proxy, bucket_url, client, tmp_path):
    with Store(bucket_url) as store, store.run("a") as run:
        run.save(1, state(1))
    reader = Store(Cached(store.url, tmp_path / "reader"))
    seen(reader)
    proxy.rule(Answer(400), is_record)
    with pytest.raises(StandfastError), Store(bucket_url) as other, other.run("a") as again:
        again.save(2, state(2))
    seen(reader)
    record = obstore.get(client, names.record_file(run.hash, 1)).bytes()
    obstore.put(client, names.record_file(run.hash, 2), record)  # as a request that comes late
    assert seen(reader)[run.hash][3] == [1, 2]


def test_a_store_that_was_copied_here_is_listed_and_so_is_what_comes_later(
    bucket_url, client, tmp_path
):
    original = Store(tmp_path / "original")
    root = tmp_path / "original" / "checkpoints"

    def copy() -> None:
        """As `aws s3 sync` does."""
        for path in root.rglob("*"):
            if path.is_file() and ".standfast" not in path.parts:
                obstore.put(client, str(path.relative_to(root)), path.read_bytes())

    reader = Store(Cached(fresh(bucket_url).url, tmp_path / "reader"))
    for step in (1, 2, 3):
        with original.run("a") as run:
            run.save(step, state(step))
        copy()
        assert seen(reader)[run.hash][3] == list(range(1, step + 1))
        assert seen(reader) == seen(fresh(bucket_url))
    original.run("b").save(1, state(1))
    copy()
    assert len(seen(reader)) == 2
    obstore.delete(client, names.record_file(run.hash, 1))
    assert seen(reader)[run.hash][3] == [2, 3]


def test_old_announcements_are_deleted(bucket_url, client):
    for step in range(3):
        with alone(bucket_url) as store, store.run("a") as run:
            run.save(step, state(step))
        hash = run.hash
        del store, run
        gc.collect()  # as long as the run is there, another one of it announces in its name
    folder = f"{versions.FOLDER}/{names.run_folder(hash)}/"

    def announced() -> list[str]:
        return [key for key in keys(client) if key.startswith(folder)]

    assert len(announced()) == 3
    store = fresh(bucket_url)
    store.backend.tidy()
    assert len(announced()) == 3
    store.backend._versions.tidy(time.time() + versions._OLD + 60)  # type: ignore[attr-defined]
    assert len(announced()) == 1
    assert seen(store)[hash][3] == [0, 1, 2]
