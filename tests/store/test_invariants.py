"""What holds on disk at every moment: of data files, records and views."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from blake3 import blake3

import standfast
from standfast import errors
from standfast.files.digests import CHUNK, tensor_digest
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


def _state(seed: int) -> dict[str, Any]:
    return {"model": {"w": random_bytes(MIB, seed), "frozen": random_bytes(MIB)}, "step": seed}


def test_a_data_file_and_its_name_are_written_once(store, run, seams):
    placed: list[tuple[Path, bytes]] = []

    def link(do: Any, source: Path, target: Path) -> None:
        if target.suffix == ".safetensors":
            placed.append((target, source.read_bytes()))
        do(source, target)

    seams.disk(link=link)
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
    assert len({path for path, _ in placed}) == len(placed) >= 6
    for path, data in placed:
        if path.exists():
            assert path.read_bytes() == data, "it was whole when it got its name, and is still so"
            standfast.verify(path)


@pytest.mark.guarantee("G1")
def test_of_two_writers_of_one_step_that_both_saw_none_one_fails(run, seams):
    run.save(1, _state(1))
    record, files = record_path(run, 1).name, data_files(run)
    seams.backend(exists=lambda exists, name: not name.endswith(record) and exists(name))
    with pytest.raises(errors.StepExists):
        run.save(1, _state(2))
    assert same(run.load(1), _state(1))
    assert data_files(run) == files


@pytest.mark.guarantee("G9")
def test_every_byte_is_checked_by_the_digest_of_its_chunk(run):
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
    file = run.checkpoint(1).head.files[0]
    assert file.digest.encode() in path.read_bytes()[:4096]
    start = path.stat().st_size - file.held
    for offset in (start, start + CHUNK, -150, -50, -1):
        flip(path, offset)
        with pytest.raises(errors.DigestMismatch):
            run.load(1)
        flip(path, offset)
    safetensors.numpy.save_file({"x": np.ones(1)}, folder(run) / "foreign.safetensors")
    with pytest.raises(errors.NothingToVerify):
        standfast.verify(folder(run) / "foreign.safetensors")


_events: list[str] | None = None


def _audit(event: str, _: Any) -> None:
    runs_code = ("pickle.find_class", "exec", "compile", "import", "marshal.loads", "os.system")
    if _events is not None and event in (*runs_code, "subprocess.Popen", "os.exec"):
        _events.append(event)


@pytest.mark.guarantee("G11")
def test_nothing_that_is_loaded_runs_code(run):
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
            with pytest.raises(errors.StandfastError):
                run.load(1)
        found = list(_events)
    finally:
        _events = None
    assert found == []


@pytest.mark.guarantee("G13", "G14")
def test_nothing_is_deleted_that_is_needed_or_not_ours(store, run):
    run.save(1, {"x": random_bytes(MIB, 1)})
    for seed in (2, 3):
        state = {"x": random_bytes(MIB, 1), "y": random_bytes(MIB, seed)}
        run.save(2, state, replace=True)
    (folder(run) / "notes.txt").write_text("mine")
    assert data_files(run).keys() == {data_path(run, 1).name, data_path(run, 2).name}
    run.checkpoint(1).tag("keep")
    with pytest.raises(errors.Protected):
        run.delete(1)
    store.untag("keep")
    with pytest.raises(errors.Protected):  # the last one of a run
        run.delete(1, 2)
    run.delete(2)
    assert same(run.load(), {"x": random_bytes(MIB, 1)})
    run.close()
    examine(store.backend, store.index)
    clean(store.backend, store.index)
    run.delete_all()
    assert [path.name for path in folder(run).iterdir()] == ["notes.txt"]


@pytest.mark.guarantee("G19")
def test_saving_the_same_tensors_gives_the_same_bytes(tmp_path):
    paths = [tmp_path / name for name in ("one.safetensors", "two.safetensors")]
    for path in paths:
        tensors = {"b": np.arange(5.0), "a": random_bytes(100_000), "c": np.ones((0, 3))}
        standfast.save(path, tensors, {"n": 1})
    assert paths[0].read_bytes() == paths[1].read_bytes()
