"""The nine invariants on disk, one test each; `design` and `docs/format.md` state them."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from blake3 import blake3

import standfast
from standfast import Run, Store
from standfast.errors import (
    DigestMismatch,
    FellBack,
    NothingToVerify,
    Protected,
    RefNotFound,
    StandfastError,
    StepExists,
    WriteFailed,
)
from standfast.files import disk
from standfast.files.digests import CHUNK, tensor_digest
from standfast.files.disk import Disk
from standfast.store.backends.local import LocalBackend
from standfast.store.load.reading import read_record
from standfast.store.maintenance.doctor import clean, examine
from standfast.store.schema import names
from standfast.store.schema.record import encode
from tests.kit.stores import (
    MIB,
    chunks,
    data_files,
    data_path,
    flip,
    folder,
    random_bytes,
    record_path,
    same,
)


class LoggingDisk(Disk):
    """A disk that tells what was done, in order, by the names of the files."""

    def __init__(self) -> None:
        self.log: list[tuple[str, str]] = []
        self.placed: list[tuple[str, bytes]] = []

    def sync(self, fd: int) -> None:
        super().sync(fd)
        self.log.append(("sync", Path(os.readlink(f"/proc/self/fd/{fd}")).name))

    def rename(self, source: Path, target: Path) -> None:
        self._note("rename", source, target)
        super().rename(source, target)

    def link(self, source: Path, target: Path) -> None:
        self._note("link", source, target)
        super().link(source, target)

    def sync_folder(self, folder: Path) -> None:
        super().sync_folder(folder)
        self.log.append(("sync_folder", folder.name))

    def remove(self, path: Path) -> None:
        self.log.append(("remove", path.name))
        super().remove(path)

    def _note(self, verb: str, source: Path, target: Path) -> None:
        assert ("sync", source.name) in self.log or source.suffix == ".safetensors"
        self.log.append((verb, target.name))
        if target.suffix == ".safetensors":
            self.placed.append((target.name, source.read_bytes()))

    def at(self, verb: str, name: str) -> int:
        return self.log.index((verb, name))


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> LoggingDisk:
    if sys.platform != "linux":
        pytest.skip("reads /proc")
    logging = LoggingDisk()
    monkeypatch.setattr(disk, "LOCAL", logging)
    return logging


def _state(seed: int) -> dict[str, Any]:
    return {"model": {"w": random_bytes(MIB, seed), "frozen": random_bytes(MIB)}, "step": seed}


def test_invariant_1_a_data_file_is_written_once_and_its_name_never_used_again(
    store: Store, run: Run, logged: LoggingDisk
) -> None:
    for step in (1, 2, 3):
        run.save(step, _state(step))
    for seed in (4, 5):
        run.save(3, _state(seed), replace=True)
    run.delete(1)
    run.save(1, _state(6))
    run.close()
    examine(store.backend, store.index)
    clean(store.backend, store.index)
    run.save(9, _state(9))
    written = [name for name, _ in logged.placed]
    assert len(written) >= 6
    assert len(set(written)) == len(written)
    for name, data in logged.placed:
        path = folder(run) / name
        if path.exists():
            assert path.read_bytes() == data, "it was whole when it got its name, and is still so"
            standfast.verify(path)


@pytest.mark.guarantee("G1")
def test_invariant_2_a_checkpoint_exists_exactly_when_its_record_does(
    store: Store, run: Run, logged: LoggingDisk
) -> None:
    run.save(1, _state(1))
    record = record_path(run, 1).name
    (data,) = data_files(run)
    committed = logged.at("link", record)
    assert logged.at("link", data) < committed
    assert ("sync_folder", run.hash) in logged.log[logged.at("link", data) : committed]
    assert ("sync_folder", run.hash) in logged.log[committed:]
    assert [each for each in logged.log[committed:] if each[1].endswith("safetensors")] == []
    text = record_path(run, 1).read_bytes()
    body = text[: text.rindex(b"\n", 0, -1) + 1]
    assert text == body + b'{"digest":"%b"}\n' % blake3(body).hexdigest().encode()

    with pytest.raises(StepExists):
        run.save(1, _state(2))
    aside = record_path(run, 1).rename(folder(run) / "aside")
    with pytest.raises(RefNotFound):
        run.load(1)
    aside.rename(record_path(run, 1))
    assert same(run.load(1), _state(1))

    # Of two writers of one step that both saw none, one fails and takes nothing from the other.
    exists = LocalBackend.exists
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            LocalBackend,
            "exists",
            lambda self, name: False if name.endswith(record) else exists(self, name),
        )
        with pytest.raises(StepExists, match="another writer"):
            run.save(1, _state(2))
    assert same(run.load(1), _state(1))
    assert list(data_files(run)) == [data]


def test_invariant_3_latest_is_the_highest_sequence_and_falls_back_aloud(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(["2031", "2030", "2029"])
    monkeypatch.setattr(
        "standfast.store.save.saving.now", lambda: f"{next(times)}-01-01T00:00:00.000000Z"
    )
    run.save(30, _state(30), best=True)
    run.save(20, _state(20))
    before = sum(data_files(run).values())
    other = store.run("b")
    other.save(10, {"x": random_bytes(1000), "step": 10})
    assert store.resolve("latest").step == 10
    assert run.load()["step"] == 20
    assert run.load("best")["step"] == 30
    run.checkpoint(30).tag("paper")
    assert sum(data_files(run).values()) == before, "pointers, never copies"
    flip(data_path(other, 10))
    with pytest.warns(FellBack):
        assert store.with_latest(lambda checkpoint: checkpoint.state())["step"] == 20
    path = data_path(run, 30)
    flip(path, path.stat().st_size - 2 * MIB)
    for ref in ("paper", 30, "30"):
        with pytest.raises(DigestMismatch):
            run.load(ref)
    with pytest.warns(FellBack):
        assert run.load("best")["step"] == 20


@pytest.mark.guarantee("G9")
def test_invariant_4_every_byte_is_checked_by_the_digest_of_its_chunk(run: Run) -> None:
    state = {"big": np.concatenate([chunks(1, 2), random_bytes(100)]), "small": random_bytes(50, 3)}
    run.save(1, state)
    assert CHUNK == 16 << 20
    record = read_record(run._store.backend, run.hash, 1)
    for number, name in enumerate(record.names):
        data = state[name].tobytes()
        expected = [blake3(data[at : at + CHUNK]).digest() for at in range(0, len(data), CHUNK)]
        assert record.chunk_digests(number) == b"".join(expected)
    big = b"".join(blake3(part).digest() for part in np.split(state["big"], [CHUNK, 2 * CHUNK]))
    assert tensor_digest(big) == blake3(big).digest()
    path = data_path(run, 1)
    assert run.checkpoint(1).head.files[0].digest.encode() in path.read_bytes()[:4096]
    size = path.stat().st_size
    start = size - run.checkpoint(1).head.files[0].held
    for offset in (start, start + CHUNK, size - 150, size - 50, size - 1):
        flip(path, offset)
        with pytest.raises(DigestMismatch):
            run.load(1)
        with pytest.raises(DigestMismatch):
            run.checkpoint(1).verify()
        flip(path, offset)
    assert same(run.load(1), state)
    safetensors.numpy.save_file({"x": np.ones(1)}, folder(run) / "foreign.safetensors")
    with pytest.raises(NothingToVerify):
        standfast.verify(folder(run) / "foreign.safetensors")


_events: list[str] | None = None


def _audit(event: str, _: Any) -> None:
    runs_code = ("pickle.find_class", "exec", "compile", "import", "marshal.loads", "os.system")
    if _events is not None and event in (*runs_code, "subprocess.Popen", "os.exec"):
        _events.append(event)


@pytest.mark.guarantee("G11")
def test_invariant_5_nothing_that_is_loaded_runs_code(run: Run) -> None:
    global _events
    state = {"x": np.ones(3), "code": "__import__('os').system('x')", "pickle": b"cos\nsystem\n."}
    run.save(1, state)
    run.load(1)  # what is imported at the first use is imported now
    sys.addaudithook(_audit)
    _events = []
    try:
        assert same(run.load(1), state)
        run.checkpoint(1).verify()
        record = read_record(run._store.backend, run.hash, 1)
        for kind in ("os", "subprocess:Popen", "builtins:eval", "standfast.cli"):
            hostile = encode(replace(record, kinds=[kind]))
            run._store.backend.replace(names.record_file(run.hash, 1), hostile)
            with pytest.raises(StandfastError):
                run.load(1)
        found = list(_events)
    finally:
        _events = None
    assert found == []


@pytest.mark.guarantee("G17")
def test_invariant_6_manifest_and_index_are_views(
    store: Store, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget() -> Store:
        run.close()
        shutil.rmtree(Path(store.url) / ".standfast", ignore_errors=True)
        (Path(store.url) / names.MANIFEST).unlink(missing_ok=True)
        return Store(Path(store.url).parent)

    run.save(1, _state(1), best=True)
    forget().resolve("a").tag("paper")
    forget().resolve("paper").note("text")
    forget().run("a").save(2, _state(2))
    again = forget()
    assert same(again.run("a").load("best"), _state(1))
    assert [note.text for note in again.resolve("paper").notes] == ["text"]
    assert again.resolve("latest").sequence == 2

    # Neither is on the way of a commit: where they cannot be written, nobody is worse off.
    write = LocalBackend.replace

    def no_manifest(self: LocalBackend, name: str, data: bytes) -> None:
        if name == names.MANIFEST:
            raise WriteFailed(28, "no space for a manifest")
        write(self, name, data)

    monkeypatch.setattr(LocalBackend, "replace", no_manifest)
    monkeypatch.setattr(LocalBackend, "cache", None)
    last = forget().run("a")
    last.save(3, _state(3))
    assert same(Store(Path(store.url).parent).run("a").load(), _state(3))
    assert not (Path(store.url) / names.MANIFEST).exists()


@pytest.mark.guarantee("G13", "G14")
def test_invariant_7_nothing_is_deleted_too_early_or_that_is_needed_or_not_ours(
    store: Store, run: Run, logged: LoggingDisk
) -> None:
    run.save(1, {"x": random_bytes(MIB, 1)})
    run.save(2, {"x": random_bytes(MIB, 1), "y": random_bytes(MIB, 2)})
    (folder(run) / "notes.txt").write_text("mine")
    first, second = data_path(run, 1).name, data_path(run, 2).name

    logged.log.clear()
    run.save(2, {"x": random_bytes(MIB, 1), "y": random_bytes(MIB, 3)}, replace=True)
    committed = logged.at("rename", record_path(run, 2).name)
    gone = logged.at("remove", second)
    assert ("sync_folder", run.hash) in logged.log[committed:gone], "its successor is durable"
    assert ("remove", first) not in logged.log, "another record refers to it"

    run.checkpoint(1).tag("keep")
    for steps in ((1,), (1, 2)):
        with pytest.raises(Protected):
            run.delete(*steps)
    store.untag("keep")
    with pytest.raises(Protected):
        run.delete(1, 2)
    logged.log.clear()
    third = data_path(run, 2).name
    run.delete(2)
    assert ("sync_folder", run.hash) in logged.log[
        logged.at("remove", record_path(run, 2).name) : logged.at("remove", third)
    ]
    assert same(run.load(), {"x": random_bytes(MIB, 1)})
    run.close()
    examine(store.backend, store.index)
    clean(store.backend, store.index)
    run.delete_all()
    assert [path.name for path in folder(run).iterdir()] == ["notes.txt"]


@pytest.mark.guarantee("G19")
def test_invariant_8_data_files_are_plain_files_that_say_what_they_leave_out(run: Run) -> None:
    run.save(1, _state(1))
    run.save(2, _state(2))
    whole = safetensors.numpy.load_file(data_path(run, 1))
    assert same(whole, {key: _state(1)["model"][key] for key in whole})
    assert sorted(whole) == ["frozen", "w"]
    part = safetensors.numpy.load_file(data_path(run, 2))
    assert same(part, {"w": _state(2)["model"]["w"]})
    for step, left_out in ((1, False), (2, True)):
        with safetensors.safe_open(data_path(run, step), "numpy") as file:
            assert ("left_out" in file.metadata()) is left_out
        standfast.verify(data_path(run, step))


@pytest.mark.guarantee("G19")
def test_invariant_9_saving_the_same_tensors_gives_the_same_bytes(tmp_path: Path) -> None:
    tensors = {"b": np.arange(5.0), "a": random_bytes(100_000), "c": np.ones((0, 3))}
    paths = [tmp_path / name for name in ("one.safetensors", "two.safetensors")]
    for path in paths:
        standfast.save(path, {name: tensor.copy() for name, tensor in tensors.items()}, {"n": 1})
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_a_fall_back_is_said_once_for_each_load(run: Run) -> None:
    run.save(1, {"x": random_bytes(100), "step": 1})
    run.save(2, {"x": random_bytes(200), "step": 2})
    flip(data_path(run, 2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert run.load()["step"] == 1
    assert [each.category for each in caught] == [FellBack]
