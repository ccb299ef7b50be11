"""Verification finds every byte that is not what Standfast wrote, and names the file it is in."""

import errno
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from blake3 import blake3

from standfast import Store
from standfast.cli.commands.verify import verify_all
from standfast.errors import MissingFile
from standfast.formats.seal import sealed
from standfast.store.maintenance.verify import verify_oldest, verify_store
from standfast.store.query.mirrors import remember_mirror
from standfast.store.schema import names
from standfast.store.schema.record import END
from tests.kit.stores import MIB, data_path, flip, folder, random_bytes

_KIND = re.compile(r".*(?:_run\.json|_architecture\.json|\.yaml|\.pth|\.safetensors)")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with every kind of file: a torch file, a safetensors file, marks, companions."""
    store = Store(tmp_path)
    model, data = torch.nn.Linear(2, 1), {"uids": [1, 2], "discarded": [2], "tags": {1: ["a"]}}
    with store.run("gpt", hp={"lr": 0.1, "text": "é\x7f\u2028😀"}, model=model, data=data) as run:
        run.save(1, {"model": {"w": np.arange(4.0)}, "n": 1}, {"loss": 0.5}, format="torch")
        run.save(2, {"model": {"w": np.arange(3.0)}})
        run.checkpoint(1).tag("paper")
        run.checkpoint(1).note("the best so far")
    store.budget = 10**9
    remember_mirror(store.backend, run.hash, "s3://bucket")
    return store


def _files(store: Store) -> Iterator[str]:
    """All files of ours but views; of two names of one file, the data file's."""
    root = Path(store.url)
    for path in sorted(root.rglob("*")):
        is_view = ".standfast" in path.parts or path.suffix == ".pt" or path.name == names.MANIFEST
        if path.is_file() and not is_view:
            yield str(path.relative_to(root))


Reported = Callable[[Store], tuple[int, set[str]]]


@pytest.fixture
def reported(capsys: pytest.CaptureFixture[str]) -> Reported:
    """The exit code of `verify --all`, and the files that it reports."""

    def reported(store: Store) -> tuple[int, set[str]]:
        code = verify_all(store, oldest=False, limit=None, as_json=True)
        damaged = json.loads(capsys.readouterr().out)["damaged"]
        return code, {file for each in damaged for file in each["files"]}

    return reported


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("every", [41, pytest.param(1, marks=pytest.mark.long)])
def test_a_flipped_bit_is_reported_with_its_file(store, reported, every):
    assert reported(store) == (0, set())
    for name in _files(store):
        path = Path(store.url, name)
        before = path.read_bytes()
        for at in {*range(0, len(before), every), len(before) - 1}:
            with path.open("r+b") as file:  # where it lies, as a disk does it
                file.seek(at)
                file.write(bytes([before[at] ^ 1]))
            assert reported(store) == (1, {name}), (name, at)
            path.write_bytes(before)


@pytest.mark.guarantee("G9")
def test_missing_and_cut_files_are_reported(store, reported):
    for name in _files(store):
        path = Path(store.url, name)
        before = path.read_bytes()
        if _KIND.fullmatch(name):  # all else may be missing, or nothing but its name tells of it
            path.unlink()
            assert reported(store) == (1, {name}), name
        path.write_bytes(before[:-1])
        assert reported(store) == (1, {name}), name
        path.write_bytes(before)


@pytest.mark.guarantee("G9")
@pytest.mark.parametrize("what", [".pth .safetensors", ""], ids=["data files", "everything"])
def test_all_damage_of_a_store_is_listed_at_once(store, reported, what):
    data = {name for name in _files(store) if name.endswith((".pth", ".safetensors"))}
    assert len(data) == 2
    files = data if what else {*_files(store)}
    for name in files:
        path = Path(store.url, name)
        path.write_bytes(path.read_bytes()[:-1])
    code, found = reported(store)
    assert code == 1
    # What a damaged record refers to, nothing can tell.
    assert files - found <= (set() if what else data)


def test_what_is_too_new_is_not_verified_and_no_damage(store):
    for name in (name for name in _files(store) if name.endswith(".json")):
        path = Path(store.url, name)
        before = path.read_bytes()
        line, _, rest = before.replace(b' 1","seal"', b' 7","seal"', 1).partition(b"\n")
        newer = sealed(line, line.index(b'"seal":"') + 8) + b"\n" + rest
        if b"\n" + END in newer:
            newer = newer.rpartition(END)[0]
            newer += END + blake3(newer).hexdigest().encode() + b'"}\n'
        path.write_bytes(newer)
        found = verify_store(store)
        assert (len(found.unverified), found.damaged, found.code) == (1, {}, 2), name
        path.write_bytes(before)


@pytest.mark.guarantee("G9")
def test_a_name_of_v3_that_is_a_copy_is_compared(tmp_path, seams, reported):
    seams.backend(link=lambda link, *_, **__: False)
    store = Store(tmp_path)
    with store.run("gpt") as run:
        run.save(1, {"w": np.arange(4.0)}, format="torch")
    name = names.whole_file(run.hash, 1)
    path = Path(store.url, name)
    before = path.read_bytes()
    for at in (0, 1, len(before) // 2, len(before) - 1):
        path.write_bytes(before[:at] + bytes([before[at] ^ 1]) + before[at + 1 :])
        assert reported(store) == (1, {name}), at


def test_a_checkpoint_that_is_replaced_meanwhile_is_read_too(store, seams):
    (run,) = store.runs()
    times = iter([1])

    def replacing(open: Callable[[str], Any], name: str) -> Any:
        """Before the first data file is read, the step is saved again, and damaged."""
        for _ in times:
            saved = run.save(3, {"w": np.ones(3)}, replace=True)
            flip(folder(run) / saved.head.files[0].name)
        return open(name)

    run.save(3, {"w": np.zeros(3)})
    seams.backend(store.backend, open=replacing)
    found = verify_store(store)
    assert list(found.damaged) == [f"{run.hash}@3"]
    assert len(found.intact) == 2


@pytest.mark.guarantee("G8")
@pytest.mark.parametrize("again", ["restored", "made again"])
def test_a_run_that_is_deleted_while_it_is_verified_and_comes_back_is_not_damaged(
    tmp_path, seams, again
):
    store, times = Store(tmp_path), iter([1])
    run = store.run("a")
    run.save(1, {})
    run.close()

    def overtaken(read: Callable[..., bytes], name: str, *given: Any) -> bytes:
        if name in (names.run_file(run.hash), names.data_state_file(run.hash)):
            for _ in times:
                if again == "made again":
                    Store(tmp_path).open_run(run.hash).delete_all()
                    Store(tmp_path).run("a").save(1, {})
                raise MissingFile(errno.ENOENT, name)
        return read(name, *given)

    seams.backend(store.backend, read=overtaken)
    assert verify_store(store).damaged == {}
    assert next(times, None) is None


def test_a_checkpoint_that_is_deleted_meanwhile_is_no_error(tmp_path):
    store = Store(tmp_path)
    run, deletions = store.run("a"), iter([2])
    for step in (1, 2, 3):
        run.save(step, {"x": np.full(9, step)})

    def progress(nbytes: int) -> None:
        for step in deletions:  # while the files of the first one are read
            run.delete(step)

    found = verify_store(Store(tmp_path), progress)
    assert (found.damaged, found.unverified) == ({}, {})
    assert found.intact == [f"{run.hash}@1", f"{run.hash}@3"]


# The checkpoints that were not verified for the longest time


def test_the_oldest_are_verified_first_and_the_check_is_recorded(tmp_path):
    store = Store(tmp_path)
    run = store.run("a")
    for step in (1, 2, 3):
        run.save(step, {"x": random_bytes(70_000, step)})
    run.checkpoint(1).verify()
    order = []
    for _ in range(4):
        order += verify_oldest(store, 0).intact  # time for one
    assert order == [f"{run.hash}@{step}" for step in (2, 3, 1, 2)]
    run.checkpoint(3).note("diverged")
    Path(store.url, names.marks_file(run.hash, 3)).write_bytes(b"garbage")
    assert verify_oldest(store, 0).intact == [f"{run.hash}@1"], "it cannot be recorded of step 3"
    assert len(verify_oldest(store, None).intact) == 3


def test_what_several_refer_to_is_read_once(tmp_path):
    run = Store(tmp_path).run("a")
    for step in (1, 2, 3):
        run.save(step, {"frozen": random_bytes(MIB), "own": random_bytes(70_000, step)})
    assert verify_oldest(run.store, None).nbytes == MIB + 3 * 70_000


@pytest.mark.guarantee("G9")
def test_rot_that_is_found_is_never_referred_to_again(tmp_path):
    store = Store(tmp_path)
    run = store.run("a")
    run.save(1, {"frozen": random_bytes(MIB)})
    flip(data_path(run, 1))
    found = verify_oldest(store, None)
    assert (list(found.damaged), found.intact) == ([f"{run.hash}@1"], [])
    run.save(2, {"frozen": random_bytes(MIB)})
    run.checkpoint(2).verify()
    assert verify_oldest(store, 0).intact == [f"{run.hash}@2"], "the known one comes last"
