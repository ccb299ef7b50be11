"""A checkpoint as one whole torch file, under the name that layout V3 has for it."""

import errno
import os
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import Run, Store, errors
from standfast.store.backends.memory import MemoryBackend
from standfast.store.maintenance.doctor import examine
from standfast.store.schema import names
from standfast.store.v3 import torch_names
from tests.kit.cases import kept
from tests.kit.disk_faults import raising
from tests.kit.fault_states import Faulty
from tests.kit.seams import Seams
from tests.kit.stores import MIB, chunks, data_files, flip, folder, overwrite, random_bytes, same


def named(run: Run, step: int) -> Path:
    """The V3 name of a step."""
    return folder(run) / f"{run.hash}_step_{step:06d}.pt"


def whole_files(run: Run) -> list[Path]:
    return sorted(folder(run).glob("*.pth"))


def training_state() -> dict[str, Any]:
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.rand(3, 6)).sum().backward()
    optimizer.step()
    return {
        "step": 100,
        "model_state_dict": model.state_dict(),
        "optimizer_state_dict": optimizer.state_dict(),
        "metadata": {1: "one", "list": [1, 2.5, None, True], "tuple": (1, "é"), "raw": b"\0\xff"},
        "counts": Counter(cat=2),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "half": torch.ones(3, dtype=torch.bfloat16),
        "parameter": torch.nn.Parameter(torch.ones(2)),
        "leaf": torch.ones(2, requires_grad=True),
    }


def weight(value: float) -> dict[str, Any]:
    return {"weight": torch.full((3,), float(value))}


def loaded(path: Path) -> Any:
    return torch.load(path, weights_only=True)


def test_torch_and_the_store_read_the_state_with_its_types(run):
    state = training_state()
    checkpoint = run.save(100, state, format="torch")
    back = loaded(named(run, 100))
    assert same(back, state)
    assert type(back["parameter"]) is torch.nn.Parameter
    model = torch.nn.Sequential(torch.nn.Linear(6, 4), torch.nn.BatchNorm1d(4))
    model.load_state_dict(back["model_state_dict"])
    checkpoint.verify()
    assert same(Store(Path(run.store.url).parent).run("a").load(), state)
    assert data_files(run) == {}, "there is no other data file"
    (path,) = whole_files(run)
    assert path.stat().st_ino == named(run, 100).stat().st_ino
    assert [file.name for file in checkpoint.head.files] == [path.name]


def test_it_holds_our_digests(run):
    run.save(1, training_state(), format="torch")
    assert standfast.verify(named(run, 1)).tensors == 24
    tensors = standfast.load(named(run, 1))
    assert np.array_equal(tensors["half"].astype(np.float32), np.ones(3))
    flip(named(run, 1), named(run, 1).read_bytes().index(np.ones(2, np.float32).tobytes()))
    with pytest.raises(errors.DamagedFile):
        standfast.verify(named(run, 1))


SHARED = {
    "the same twice": lambda base: {"a": base, "b": base},
    "a view of a whole": lambda base: {"a": base, "b": base[100:200]},
    "transposed": lambda base: {"a": base.view(40, 25), "b": base.view(40, 25).T},
    "views of what is not there": lambda base: {"a": base[10:20], "b": base[15:60:3]},
    "with a gap between": lambda base: {"a": base[0:10], "b": base[5:8], "c": base[4:30:12]},
    "of two dtypes": lambda base: {"a": base, "b": base.view(torch.int32)[3:6]},
}


@pytest.mark.parametrize("name", SHARED)
def test_tied_tensors_stay_tied(name, run):
    state = SHARED[name](torch.arange(1000.0))
    run.save(1, state, format="torch").verify()
    back = loaded(named(run, 1))
    assert same(back, state)
    assert len({tensor.untyped_storage().data_ptr() for tensor in back.values()}) == 1
    assert same(run.load(1), state)
    standfast.verify(named(run, 1))
    if "gap" in name:
        path = named(run, 1)
        flip(path, path.read_bytes().index(torch.arange(28.0).numpy().tobytes()) + 4 * 17)
        with pytest.raises(errors.DamagedFile):
            standfast.verify(path)


def test_arrays_become_tensors_in_the_file(run):
    state = {"a": np.arange(6, dtype=np.int16).reshape(2, 3).T}
    run.save(1, state, format="torch")
    assert same(run.load(1), state)
    assert same(loaded(named(run, 1)), {"a": torch.tensor([[0, 3], [1, 4], [2, 5]]).short()})


STATES: list[Any] = [
    *({}, {"a": 1}, 5, [], {"t": torch.empty(0)}),
    {"a.b": torch.ones(2), "a": {"b": torch.zeros(2)}, 1: torch.ones(1), "1": 2},
    {"a": torch.from_numpy(chunks(1, 2)[: -5 * MIB]), "b": torch.from_numpy(chunks(3))},
]


@pytest.mark.parametrize("number", range(len(STATES)))
def test_a_state_without_bytes_with_one_path_twice_or_of_many_chunks_comes_back(run, number):
    run.save(1, STATES[number], format="torch").verify()
    assert same(loaded(named(run, 1)), STATES[number])
    assert same(run.load(1), STATES[number])
    assert len(run.checkpoint(1).head.files) == 1
    assert examine(run.store.backend, run.store.index).sound


def test_what_torch_cannot_read_is_refused_before_anything_is_written(run):
    before = sorted(os.listdir(folder(run)))
    array = np.arange(10.0)
    for state, leaf in (
        ({"a": array, "b": array[::-1]}, "b"),
        ({"w": torch.ones(3), "metrics": [np.float32(0.5)]}, "metrics.0"),
    ):
        with pytest.raises(errors.RefusedState, match=f"^{leaf}:"):
            run.save(1, state, format="torch")
    with pytest.raises(errors.BadOption, match="torch"):
        run.save(1, {}, format="zarr")
    assert sorted(os.listdir(folder(run))) == before


def test_what_does_not_fit_is_not_begun(run, seams):
    seams.backend(free=lambda _: 2 * MIB)
    run.save(1, {"w": random_bytes(MIB - 4096)}, format="torch")
    with pytest.raises(errors.NotEnoughSpace):
        run.save(2, {"w": random_bytes(MIB)}, format="torch")
    assert len(whole_files(run)) == 1


def test_later_saves_and_other_runs_refer_to_its_chunks(store, run):
    weight = random_bytes(MIB)
    run.save(1, {"w": weight, "n": random_bytes(100)}, format="torch")
    run.save(2, {"w": weight}).verify()
    assert data_files(run) == {}
    assert run.checkpoint(2).head.files[0].name == whole_files(run)[0].name
    assert same(run.load(2), {"w": weight})
    assert not named(run, 2).exists()
    other = store.run("other")
    other.save(1, {"w": weight})
    shutil.rmtree(folder(run))
    assert same(other.load(1), {"w": weight})
    assert list(folder(other).glob("*.pt")) == []


def test_a_whole_file_is_always_whole(run):
    state = {"w": random_bytes(MIB)}
    run.save(1, state)
    for step in (2, 3):
        run.save(step, state, format="torch")
    assert len(whole_files(run)) == 2
    assert all(path.stat().st_size > MIB for path in whole_files(run))


def test_a_replaced_step_has_its_name_on_the_new_file_or_none(run):
    for value in (1, 2):
        run.save(1, weight(value), format="torch", replace=True)
        assert same(loaded(named(run, 1)), weight(value))
    assert len(whole_files(run)) == 1
    run.save(2, weight(4), format="torch")
    run.save(1, weight(3), replace=True)
    assert not named(run, 1).exists()
    assert [file.name for file in run.checkpoint(1).head.files] == [*data_files(run)]
    assert same(run.load(1), weight(3))
    assert same(loaded(named(run, 2)), weight(4))
    run.delete(2)
    assert not named(run, 2).exists()
    assert whole_files(run) == []


def test_a_foreign_file_of_that_name_and_a_copy_by_hand_of_another_step_stay(run):
    named(run, 1).write_bytes(b"mine")
    run.save(1, weight(1), format="torch")
    run.save(2, weight(2), format="torch")
    shutil.copy(named(run, 2), named(run, 7))
    assert torch_names.our_names(run.store.backend, run.hash) == {
        named(run, 2).name: run.checkpoint(2).head.files[0].name
    }
    found = examine(run.store.backend, run.store.index).foreign
    assert sorted(found) == [
        f"{names.run_folder(run.hash)}/{named(run, step).name}" for step in (1, 7)
    ]
    assert named(run, 1).read_bytes() == b"mine"


@pytest.mark.parametrize("who", ["the next writer", "doctor"])
def test_a_name_that_is_gone_is_made_again(who, run, tmp_path):
    run.save(1, weight(1), format="torch")
    run.close()
    named(run, 1).unlink()
    if who == "doctor":
        found = examine(run.store.backend, run.store.index)
        assert names.whole_file(run.hash, 1) in found.restored
        assert found.sound
    else:
        Store(tmp_path).run("a").save(2, weight(2))
    assert same(loaded(named(run, 1)), weight(1))


def test_names_on_the_wrong_file_and_of_nothing_are_put_right(run):
    for step in (1, 2):
        run.save(step, weight(step), format="torch")
    named(run, 1).unlink()
    for step in (1, 5):
        os.link(named(run, 2), named(run, step))
    examine(run.store.backend, run.store.index)
    assert not named(run, 5).exists()
    for step in (1, 2):
        assert same(loaded(named(run, step)), weight(step))


def test_without_links_the_name_is_a_copy(mount):
    run = Store(mount(links=False)).run("a")
    state = {"w": torch.from_numpy(random_bytes(20 * MIB + 77))}
    run.save(1, state, format="torch")
    assert named(run, 1).stat().st_ino != whole_files(run)[0].stat().st_ino
    assert same(loaded(named(run, 1)), state)
    assert torch_names.is_our_name(run.store.backend, run.hash, named(run, 1).name)
    run.save(1, weight(2), format="torch", replace=True)
    assert same(loaded(named(run, 1)), weight(2))
    run.save(1, weight(3), replace=True)
    assert not named(run, 1).exists()


def test_it_works_in_memory():
    run = Store(MemoryBackend()).run("a")
    run.save(1, weight(1), format="torch").verify()
    assert same(run.load(1), weight(1))
    assert torch_names.is_our_name(run.store.backend, run.hash, f"{run.hash}_step_000001.pt")


HARM: dict[str, Callable[[Run, Path], bytes | int]] = {
    "data.pkl": lambda run, path: path.read_bytes().index(b"weight"),
    "standfast.json": lambda run, path: path.read_bytes().index(b"metadata"),
    "directory": lambda run, path: path.read_bytes().index(b"PK\1\2") + 16,  # the first checksum
    "another file": lambda run, path: named(run, 2).read_bytes(),
    "no seal": lambda run, path: named(run, 9).read_bytes(),
}


@pytest.mark.parametrize("how", HARM)
def test_damage_around_the_tensors_is_found(how, run):
    checkpoint = run.save(1, weight(1), format="torch")
    (path,) = whole_files(run)
    run.save(2, weight(2), format="torch")
    standfast.save(named(run, 9), weight(1), extras=False)
    harm = HARM[how](run, path)
    if isinstance(harm, int):
        flip(path, harm)
    else:
        overwrite(path, harm)
    with pytest.raises((errors.DamagedFile, errors.IndexMismatch)):
        checkpoint.verify()
    if isinstance(harm, int):
        assert same(run.load(1), weight(1))


@pytest.mark.parametrize("first", kept(range(1, 4), 1))
@pytest.mark.parametrize("replace", [False, True])
def test_a_failure_at_any_operation_leaves_old_or_new(replace, first, tmp_path, seams):
    seams.no_manifest()
    outcomes = set()
    for at in range(first, 100, 3):
        store = Store(tmp_path / str(at))
        run = store.run("a")
        if replace:
            run.save(1, weight(1), format="torch")
        with Seams.until_end() as inner:
            faulty = inner.disk(Faulty(at, raising(OSError(errno.EIO, "Input/output error"))))
            with suppress(errors.WriteFailed):
                run.save(1, weight(2), format="torch", replace=True)
        run.close()
        if faulty.struck is None:
            break
        if named(run, 1).exists():
            outcomes.add(float(loaded(named(run, 1))["weight"][0]))
        again = Store(tmp_path / str(at)).run("a")
        again.save(3, weight(3), format="torch")
        steps = {each.step: each.state() for each in again.checkpoints()}
        for step, state in steps.items():
            assert same(loaded(named(again, step)), state)
        assert sorted(folder(again).glob("*.pt")) == [named(again, step) for step in sorted(steps)]
        assert len(whole_files(again)) == len(steps)
        again.close()
    assert at > 8
    assert outcomes == ({1.0, 2.0} if replace else {2.0})


@pytest.mark.parametrize("format", ["torch", "safetensors"])
@pytest.mark.parametrize("then", ["delete", "retain"])
def test_whoever_deletes_after_a_kill_puts_the_name_right_first(run, format, then):
    for step in (1, 2, 3):
        run.save(step, weight(step), format="torch")

    def killed(operation: Callable[..., None], *paths: Path) -> None:
        if paths[-1] == named(run, 2):
            raise KeyboardInterrupt
        operation(*paths)

    with Seams.until_end() as seams:
        seams.disk(link=killed, rename=killed, remove=killed)
        with pytest.raises(KeyboardInterrupt):
            run.save(2, weight(22), format=format, replace=True)
    assert same(loaded(named(run, 2)), weight(2)), "the record is new, and its name old"
    other = Store(run.store.url.removesuffix("/checkpoints")).run("a")
    if then == "delete":
        other.delete(3)
    else:
        other.retain(standfast.KeepLast(2))
    if format == "torch":
        assert same(loaded(named(run, 2)), weight(22))
    else:
        assert not named(run, 2).exists()
    assert examine(run.store.backend, run.store.index).foreign == []


@pytest.mark.parametrize("format", ["torch", "safetensors"])
def test_what_is_deleted_while_it_is_verified_is_gone_and_not_damaged(run, format, seams):
    for step in (1, 2):
        run.save(step, weight(step), format=format)
    checkpoint, backend = run.checkpoint(1), run.store.backend
    (file,) = (each.name for each in checkpoint.head.files)
    record = names.record_file(run.hash, 1)

    def deleted_first(size: Callable[[str], int | None], name: str) -> int | None:
        if name.endswith(file) and backend.exists(record):
            backend.delete([record, name])
        return size(name)

    seams.backend(size=deleted_first)
    with pytest.raises(errors.RefNotFound, match="1"):
        checkpoint.verify()
