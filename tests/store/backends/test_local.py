"""The backend in a folder: the suite, and what disks add to it."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from standfast import Store
from standfast.errors import AlreadyExists, UnreadableFile, WriteFailed
from standfast.files.disk import ALIGNMENT
from standfast.store.backends.backend import Backend
from standfast.store.backends.local import LocalBackend
from tests.kit.disk_faults import FaultyDisk, raising
from tests.kit.seams import Seams
from tests.store.backends.backend_suite import RUN, BackendSuite, new_file, refusing

FAULTS = {
    "ENOSPC": OSError(errno.ENOSPC, "No space left on device"),
    "EIO": OSError(errno.EIO, "Input/output error"),
    "Ctrl-C": KeyboardInterrupt(),
}
OLD, NEW = b"old content", b"the new content" * 1000
NAME = f"{RUN}/file"


class TestLocalBackend(BackendSuite):
    @pytest.fixture
    def backend(self, root: Path) -> Backend:
        return LocalBackend(root)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store" / "checkpoints"


@pytest.fixture
def backend(root: Path) -> LocalBackend:
    return LocalBackend(root)


def hidden(root: Path) -> list[Path]:
    """Files that are on their way in, or were left behind."""
    return [path for path in root.rglob(".*") if path.is_file()]


CHANGES: dict[str, Callable[[LocalBackend], None]] = {
    "new": lambda backend: new_file(backend, NAME, NEW),
    "create": lambda backend: backend.create(NAME, NEW),
    "replace": lambda backend: backend.replace(NAME, NEW),
    "replace an old one": lambda backend: backend.replace(NAME, NEW),
}
OPERATIONS = {
    "new": "make_folder create link remove reserve write truncate sync close sync_folder",
    "create": "make_folder create write sync link remove close sync_folder",
    "replace": "make_folder create write sync rename close sync_folder",
    "replace an old one": "create write sync rename close sync_folder",
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_that_fails_at_any_operation_leaves_the_old_file_or_the_new_one(
    change, fault, tmp_path
):
    struck = []
    for at in range(1, 100):
        root = tmp_path / str(at) / "checkpoints"
        old = OLD if "old" in change else None
        if old:
            LocalBackend(root).create(NAME, old)
        faulty = FaultyDisk(at, raising(FAULTS[fault]))
        caught: BaseException | None = None
        with Seams.until_end() as seams:
            seams.disk(faulty)
            try:
                CHANGES[change](LocalBackend(root))
            except (WriteFailed, KeyboardInterrupt) as error:
                caught = error
        if faulty.struck is None:
            assert caught is None
            break
        struck.append(faulty.struck)
        again = LocalBackend(root)
        content = again.read(NAME) if again.exists(NAME) else None
        assert content in (old, NEW)
        # What was synced and has its name is whole, whatever a close or a removal says.
        if caught is None:
            assert faulty.struck in ("close", "remove")
            assert content == NEW
        elif fault == "Ctrl-C":
            assert isinstance(caught, KeyboardInterrupt)
        else:
            assert isinstance(caught, WriteFailed)
            assert caught.errno == getattr(errno, fault)
            assert content != NEW or faulty.struck == "sync_folder"
        if faulty.struck == "remove" and fault != "Ctrl-C":
            assert len(hidden(root)) == 1
            assert again.sweep(RUN) == 1
        assert hidden(root) == []
        if change != "new":
            again.replace(NAME, NEW)
            assert again.read(NAME) == NEW
    assert set(OPERATIONS[change].split()) <= set(struck)
    assert at > 8


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK])
def test_where_there_are_no_links_create_is_still_exclusive(number, backend, root, seams):
    seams.disk(link=refusing(number))
    backend.create("a", b"first")
    with pytest.raises(AlreadyExists):
        backend.create("a", b"second")
    assert backend.read("a") == b"first"
    assert not backend.link("a", "b")
    assert not backend.exists("b")
    assert hidden(root) == []


def test_a_link_is_one_if_the_answer_got_lost_and_none_if_another_was_first(backend, root, seams):
    def twice(link: Callable[..., None], source: Path, target: Path) -> None:
        link(source, target)
        link(source, target)

    def late(sync: Callable[[int], None], fd: int) -> None:
        sync(fd)
        (root / "b").write_bytes(b"first")

    seams.disk(link=twice)
    backend.create("a", b"content")
    seams.disk(sync=late)
    with pytest.raises(AlreadyExists):
        backend.create("b", b"second")
    assert (backend.read("a"), backend.read("b")) == (b"content", b"first")
    assert hidden(root) == []


RACER = """
import sys
from pathlib import Path
from standfast.errors import AlreadyExists
from standfast.store.backends.local import LocalBackend
for line in sys.stdin:
    root, change, name = line.rstrip("\\n").split("\\t")
    backend = LocalBackend(Path(root))
    try:
        if change == "create":
            backend.create(name, sys.argv[1].encode())
        else:
            with backend.new(name) as file:
                file.fill(sys.argv[1].encode())
                file.place()
    except AlreadyExists:
        print("lost", flush=True)
    else:
        print("won", flush=True)
"""


@pytest.fixture(scope="module")
def racers() -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes that create the names that they are told, at the same time."""
    command = [sys.executable, "-c", RACER]
    started = [
        subprocess.Popen([*command, str(i)], stdin=-1, stdout=-1, text=True) for i in range(2)
    ]
    yield started
    for racer in started:
        racer.communicate()


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("change", ["create", "new"])
def test_of_two_processes_that_create_one_name_one_wins(change, links, tmp_path, mount, racers):
    root = (tmp_path if links else mount(links=False)) / "checkpoints"
    for number in range(50):
        for racer in racers:
            print(root, change, f"models/{number}", sep="\t", file=racer.stdin, flush=True)
        told = [racer.stdout.readline().strip() for racer in racers]
        assert sorted(told) == ["lost", "won"]
        assert (root / "models" / str(number)).read_text() == str(told.index("won"))
    assert hidden(root) == []


def _files(store: Path) -> dict[Path, bytes]:
    files = (path for path in store.rglob("*") if path.is_file())
    return {path: path.read_bytes() for path in files if ".standfast" not in path.parts}


@pytest.mark.guarantee("G3")
def test_nothing_is_saved_where_no_name_can_be_exclusive_and_all_can_be_read(tmp_path, mount):
    Store(tmp_path / "store").run(name="old").save(1, {"w": OLD})
    place = shutil.copytree(tmp_path / "store", mount(links=False, rename2=False) / "store")
    store = Store(place)
    assert store.run(name="old").load()["w"] == OLD
    before = _files(place)
    for name in ("old", "new"):
        with pytest.raises(WriteFailed) as raised:
            store.run(name=name).save(2, {"w": NEW})
        assert raised.value.errno == errno.ENOTSUP
        with pytest.raises(WriteFailed) as raised:
            store.backend.new(f"models/{name}/file")  # not only when all is written
        assert raised.value.errno == errno.ENOTSUP
    assert _files(place) == before
    assert Store(place).run(name="old").load()["w"] == OLD


def test_links_and_pipes_are_listed_folders_and_names_that_are_no_text_are_not(backend, root):
    backend.create("models/run/file", b"x")
    os.symlink("file", root / "models/run/link")
    os.symlink("run", root / "models/linked")
    os.mkfifo(root / "models/run/pipe")
    (root / "models/run" / os.fsdecode(b"\xff")).write_bytes(b"x")
    (root / "models/run/folder").mkdir()
    listed = [entry.name for entry in backend.list("models/run")]
    assert sorted(listed) == ["file", "link", "pipe"]
    assert sorted(backend.folders("models")) == ["linked", "run"]
    with pytest.raises(UnreadableFile):
        backend.read("models/run/pipe")
    assert backend.size("models/run/pipe") is None
    os.symlink("loop", root / "models/loop")
    assert not backend.exists("models/loop")
    assert not backend.link("models/run/link", "models/run/second")


def test_listing_looks_at_no_file(backend, seams):
    for i in range(5):
        backend.create(f"models/{i}", b"x")
    seams.system(os, stat=None, lstat=None)
    assert len(backend.list("models")) == 5


def test_a_folder_that_cannot_be_opened_is_no_empty_one(backend, seams):
    backend.create(NAME, b"x")
    seams.system(os, scandir=refusing(errno.EACCES))
    for look in (backend.list, backend.folders, backend.exists):
        with pytest.raises(UnreadableFile):
            look(RUN)
    seams.system(os, stat=refusing(errno.EACCES))
    for ask in (backend.exists, backend.size, backend.version):
        with pytest.raises(UnreadableFile):
            ask(NAME)


@pytest.mark.guarantee("G16")
def test_a_sweep_removes_what_dead_processes_left_and_nothing_else(backend, root):
    child = os.fork()
    if child == 0:
        _left = backend.new(f"{RUN}/x")
        os._exit(0)
    os.waitpid(child, 0)
    (left,) = hidden(root)
    others = [".notes.standfast", ".0123.standfast", ".01234567.tmp", "01234567.standfast"]
    for name in others:
        (root / RUN / name).write_bytes(b"not ours")
    os.mkfifo(root / RUN / ".01234567.standfast")
    with backend.lock("a") as lock:
        assert backend.sweep("") == 0, "the folder of the locks is no leftover"
        assert backend.sweep("models") == 0
        assert backend.sweep(RUN) == 1
        assert lock.is_held()
    assert not left.exists()
    assert sorted(os.listdir(root / RUN)) == sorted([*others, ".01234567.standfast"])


def test_a_new_file_that_is_dropped_leaves_nothing_and_a_lost_folder_is_made_again(backend, root):
    file = backend.new(NAME)
    assert len(hidden(root)) == 1
    del file
    assert hidden(root) == []
    (root / RUN).rmdir()
    backend.create(NAME, b"second")
    assert backend.read(NAME) == b"second"


def test_a_forked_child_does_not_remove_its_parents_file(backend, root):
    with backend.new(NAME) as file:
        file.write(np.ones(ALIGNMENT, np.uint8), 0)
        child = os.fork()
        if child == 0:
            file.discard()
            os._exit(0)
        os.waitpid(child, 0)
        file.finish(2)
        file.place()
    assert backend.read(NAME) == b"\1\1"


def test_a_relative_root_stays_where_it_was(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    backend = LocalBackend(Path("store"))
    monkeypatch.chdir("/")
    backend.create("a", b"x")
    assert (tmp_path / "store" / "a").read_bytes() == b"x"
    assert backend.url == str(tmp_path / "store")
    assert backend.path("a") == tmp_path / "store" / "a"


def test_a_file_has_the_mode_that_umask_gives(backend, root):
    before = os.umask(0o027)
    try:
        backend.create("a", b"x")
        backend.replace("b", b"x")
        new_file(backend, "c", b"x")
    finally:
        os.umask(before)
    assert {oct((root / name).stat().st_mode & 0o777) for name in "abc"} == {"0o640"}


def test_free_space_is_that_of_the_disk_that_the_store_will_be_on(backend, tmp_path, root, seams):
    asked = []
    seams.disk(free=lambda free, folder: asked.append(folder) or free(folder))
    assert (backend.free() or 0) > 0
    backend.create("a", b"x")
    assert (backend.free() or 0) > 0
    assert asked == [tmp_path, root]
    seams.disk(free=refusing(errno.EIO))
    assert backend.free() is None


def without_rights(work: Callable[[], None]) -> int:
    """Do some work as a user who owns nothing; returns 0 if it went well."""
    child = os.fork()
    if child == 0:
        try:
            if os.getuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.fixture
def read_only(backend: LocalBackend, root: Path) -> Iterator[LocalBackend]:
    backend.create(NAME, b"content")
    (root / ".standfast").mkdir()
    folders = [root, *(path for path in root.rglob("*") if path.is_dir())]
    above = [path for path in root.parents if path.stat().st_uid == os.getuid()]
    modes = {path: path.stat().st_mode for path in above}
    for folder in above:
        if folder != Path("/"):
            folder.chmod(modes[folder] | 0o011)
    for folder in folders:
        folder.chmod(0o555)
    yield LocalBackend(root)
    for folder in folders:
        folder.chmod(0o755)
    for folder, mode in modes.items():
        folder.chmod(mode)


def test_a_read_only_store_is_read_in_full_and_not_written(read_only, tmp_path):
    def work() -> None:
        os.environ["XDG_CACHE_HOME"] = str(tmp_path / "nowhere")
        assert read_only.read(NAME) == b"content"
        assert read_only.open(NAME).size == 7
        assert [entry.name for entry in read_only.list(RUN)] == ["file"]
        assert list(read_only.folders("models")) == ["0123"]
        assert read_only.version(RUN) is not None
        assert read_only.free() is not None
        assert read_only.sweep(RUN) == 0
        assert read_only.cache is None
        assert read_only.holder("a") is None
        for change in (
            lambda: read_only.create(f"{RUN}/b", b"x"),
            lambda: read_only.create("models/another/b", b"x"),
            lambda: read_only.replace(NAME, b"x"),
            lambda: read_only.new(f"{RUN}/b"),
            lambda: read_only.delete([NAME]),
            lambda: read_only.lock("a"),
        ):
            with pytest.raises(WriteFailed) as caught:
                change()
            assert caught.value.errno == errno.EACCES
        with suppress(WriteFailed):  # or it is said to be impossible, because of whose file it is
            assert not read_only.link(NAME, f"{RUN}/b")

    assert without_rights(work) == 0
    assert not read_only.exists(f"{RUN}/b")
    assert read_only.read(NAME) == b"content"


def test_the_cache_lies_in_the_store_and_comes_back(backend, root, tmp_path, monkeypatch):
    assert backend.cache is None, "there is no store yet, and looking makes none"
    assert not root.exists()
    backend.create("a", b"x")
    own = root / ".standfast"
    assert backend.cache == own
    own.rmdir()
    assert backend.cache == own
    assert own.is_dir()
    own.rmdir()
    own.write_bytes(b"somebody's")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert backend.cache.parent == tmp_path / "cache" / "standfast"
    with pytest.raises(WriteFailed, match=r"a\.lock"):
        backend.lock("a")
    assert own.read_bytes() == b"somebody's"


def test_the_cache_is_the_users_own_on_a_network(backend, root, tmp_path, seams, monkeypatch):
    backend.create("a", b"x")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    seams.bound("network file systems", {each.split(" - ")[1].split()[0] for each in mounts})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    mine = backend.cache
    assert mine.parent == tmp_path / "cache" / "standfast"
    assert mine.is_dir()
    assert not (root / ".standfast").exists()
    (tmp_path / "another way").symlink_to(root)
    assert LocalBackend(tmp_path / "another way").cache == mine
    (tmp_path / "other").mkdir()
    assert LocalBackend(tmp_path / "other").cache not in (None, mine)
    with backend.lock("a"):
        assert (root / ".standfast" / "locks" / "a.lock").exists(), "locks lie with the store"
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert backend.cache.parent == tmp_path / "home" / ".cache" / "standfast"
    (tmp_path / "a file").write_bytes(b"")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a file"))
    assert backend.cache is None


@pytest.mark.guarantee("G7")
def test_a_change_is_seen_though_the_kernel_remembers_the_folder(mount, seams):
    """FUSE lets the kernel keep attributes for a second, NFS for a minute."""
    seams.bound("settled folder", -1)  # other folders have changed since this one
    folder = mount("fuse")
    store, elsewhere = Store(folder), Store(folder.with_name(folder.name + ".backing"))
    run = store.run("a")
    run.save(1, {"n": 1})
    run.close()
    store.index.refresh()
    os.stat(store.backend.path(f"models/{run.hash}"))
    with elsewhere.find_run("a") as same:  # as a server does for another client
        same.save(2, {"n": 2})
    assert store.resolve("latest").step == 2
