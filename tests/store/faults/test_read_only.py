"""A store that cannot be written is read as any other; a save says why it fails."""

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from standfast.errors import WriteFailed
from standfast.store import Store
from tests.kit.disk_faults import OPERATIONS
from tests.kit.fault_states import check_between, check_next_save, state
from tests.kit.fuse import why_not
from tests.kit.fuse.fixtures import NOT_RUN
from tests.kit.power import Tree, read_tree
from tests.kit.seams import Seams
from tests.store.faults.damage import HELD, Damaged


def refused(*args: Any, **options: Any) -> None:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


CHANGING = {name: refused for name in OPERATIONS if name not in ("free", "abandoned", "close")}
CHANGES: dict[str, Callable[[Store], object]] = {
    "save": lambda store: store.run("first").save(10, state(10)),
    "replace": lambda store: store.run("first").save(3, state(10), replace=True),
    "first save": lambda store: store.run("third").save(1, state(10)),
    "delete": lambda store: store.run("first").delete(1),
    "delete a run": lambda store: store.run("first").delete_all(),
    "tag": lambda store: store.run("first").checkpoint(1).tag("paper"),
    "note": lambda store: store.run("first").checkpoint(1).note("a note"),
    "rename": lambda store: store.run("first").rename("another"),
}


def truth(store: Damaged) -> Tree:
    """All files but those that may vanish."""
    tree = read_tree(store.checkpoints)
    return {name: data for name, data in tree.items() if not name.startswith(".standfast")}


def check_read_only(store: Damaged) -> None:
    before = truth(store)
    assert check_between(Store(store.path), {}, HELD)
    for name, change in CHANGES.items():
        with pytest.raises(WriteFailed) as raised:
            change(Store(store.path))
        assert raised.value.errno == errno.EROFS, name
    assert check_between(Store(store.path), {}, HELD)
    assert truth(store) == before


def test_a_store_on_a_disk_that_refuses_every_change_is_read(folder, store, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    with Seams.until_end() as seams:
        seams.disk(**CHANGING)
        check_read_only(store)
    check_next_save(Store(store.path), HELD)


@pytest.fixture
def mounted(folder: Path, store: Damaged) -> Iterator[Damaged]:
    """A store, mounted read-only at another place."""
    place = folder / "mounted"
    place.mkdir()
    mount = ["mount", "--bind", "-o", "ro", str(store.path), str(place)]
    if reason := why_not("tmpfs"):
        pytest.skip(f"{NOT_RUN}{reason}")
    subprocess.run(mount, check=True)
    try:
        store.path = place
        yield store
    finally:
        subprocess.run(["umount", str(place)], check=True)


@pytest.mark.parametrize("has_cache", [True, False], ids=["with a cache", "without a cache"])
def test_a_store_that_is_mounted_read_only_is_read(has_cache, mounted, folder, monkeypatch):
    cache = folder / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache) if has_cache else "/proc/nowhere")
    check_read_only(mounted)
    assert cache.exists() == has_cache
