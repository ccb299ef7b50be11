"""StandfastIO: ModelCheckpoint and trainer.save_checkpoint over a store."""

import json
import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import standfast
from standfast import errors
from tests.kit.stores import flip, same
from tests.store.schema.test_versions import of_version_2

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("lightning.pytorch")
    from lightning.pytorch.callbacks import ModelCheckpoint

    from standfast.lightning import StandfastIO
    from tests.lightning.programs.training import QUIET, Data, Net, fit, trainer_of

pytestmark = QUIET


def stored(store: Path) -> list[tuple[str, int]]:
    """All checkpoints of a store."""
    runs = standfast.Store(store).runs()
    return sorted((run.hash, each.step) for run in runs for each in run.checkpoints())


def pointed(folder: Path) -> list[tuple[str, int]]:
    """All checkpoints that the files of a folder lead to."""
    files = [json.loads(path.read_text()) for path in folder.iterdir()]
    return sorted((each["run"], each["step"]) for each in files)


def checkpoint(step: int = 1, value: float = 1.0) -> dict[str, Any]:
    return {
        "global_step": step,
        "epoch": 0,
        "state_dict": {"w": torch.full((3,), value), "frozen": torch.ones(40_000)},
    }


def test_modelcheckpoint_writes_into_the_store_and_deletes_from_it(tmp_path):
    store, folder = tmp_path / "store", tmp_path / "files"
    best = ModelCheckpoint(folder, monitor="val", save_top_k=2, save_last=True)
    _, trainer = fit(best, Net(plateau=False), plugins=[StandfastIO(store, "net")], max_epochs=5)
    names = {path.name for path in folder.iterdir()}
    assert len(names) == 3
    assert "last.ckpt" in names
    assert stored(store) == pointed(folder)
    assert all(path.stat().st_size < 500 for path in folder.iterdir())

    other = Net()
    trainer.validate(other, datamodule=Data(), ckpt_path=best.best_model_path, verbose=False)
    wanted = StandfastIO(store).load_checkpoint(best.best_model_path)
    assert same(dict(wanted["state_dict"]), dict(other.state_dict()))

    last = folder / "last.ckpt"
    further = trainer_of(
        plugins=[StandfastIO(store, "net")], max_epochs=6, default_root_dir=tmp_path
    )
    model = Net(plateau=False)
    further.fit(model, datamodule=Data(), ckpt_path=str(last))
    first = json.loads(last.read_text())["step"]
    assert [each[0] for each in model.seen] == list(range(first, 30))


def test_a_file_that_is_written_over_leaves_nothing_behind(tmp_path):
    io, path = StandfastIO(tmp_path / "store"), tmp_path / "a" / "last.ckpt"
    io.save_checkpoint(checkpoint(1), path)
    io.save_checkpoint(checkpoint(1), tmp_path / "a" / "one.ckpt")  # the same step once more
    assert len(stored(tmp_path / "store")) == 2
    io.save_checkpoint(checkpoint(2, 2.0), path)
    io.save_checkpoint(checkpoint(2, 3.0), path)
    assert stored(tmp_path / "store") == pointed(tmp_path / "a")
    assert io.load_checkpoint(path)["state_dict"]["w"].tolist() == [3.0, 3.0, 3.0]
    io.remove_checkpoint(path)
    io.remove_checkpoint(tmp_path / "a" / "one.ckpt")
    io.remove_checkpoint(path)  # it is gone already
    assert list((tmp_path / "a").iterdir()) == []
    assert stored(tmp_path / "store") == []
    io.teardown()


def test_what_has_a_tag_stays_in_the_store(tmp_path):
    io = StandfastIO(tmp_path / "store")
    for step in (1, 2):
        io.save_checkpoint(checkpoint(step), tmp_path / f"{step}.ckpt")
    size = sum(path.stat().st_size for path in (tmp_path / "store").rglob("*.safetensors"))
    assert 160_000 < size < 200_000  # equal tensors are written once
    standfast.Store(tmp_path / "store").resolve("latest").tag("paper")
    io.remove_checkpoint(tmp_path / "1.ckpt")
    io.save_checkpoint(checkpoint(3), tmp_path / "2.ckpt")
    assert [step for _, step in stored(tmp_path / "store")] == [2, 3]
    io.remove_checkpoint(tmp_path / "2.ckpt")
    assert [step for _, step in stored(tmp_path / "store")] == [2]
    io.teardown()


@pytest.mark.guarantee("G14")
@pytest.mark.parametrize("unreadable", [1, 2])
def test_a_run_stays_whose_other_record_cannot_be_read(tmp_path, unreadable):
    io = StandfastIO(tmp_path / "store")
    for step in (1, 2):
        io.save_checkpoint(checkpoint(step, step), tmp_path / f"{step}.ckpt")
    io.teardown()
    [run] = standfast.Store(tmp_path / "store").runs()
    record = next((tmp_path / "store").rglob(f"*_step_00000{unreadable}.json"))
    text = record.read_bytes()
    record.write_bytes(b"cannot be read at this moment\n")
    io.remove_checkpoint(tmp_path / f"{3 - unreadable}.ckpt")
    record.write_bytes(text)
    state = io.load_checkpoint(tmp_path / f"{unreadable}.ckpt")
    assert state["state_dict"]["w"].tolist() == [unreadable] * 3
    assert standfast.Store(tmp_path / "store").resolve(f"{run.hash}@{unreadable}").verify().nbytes
    io.teardown()


def test_a_damaged_or_lost_checkpoint_is_not_loaded(tmp_path):
    io, path = StandfastIO(tmp_path / "store"), tmp_path / "one.ckpt"
    io.save_checkpoint(checkpoint(), path)
    io.teardown()
    sound = path.read_text()
    for wrong in (
        sound[:-3],
        sound.replace('"step":1', '"step":-1'),
        sound.replace('"standfast":1', '"standfast":0'),
        json.dumps({**json.loads(sound), "run": "../../other"}),
    ):
        path.write_text(wrong)
        with pytest.raises(errors.BadField):
            io.load_checkpoint(path)
    path.write_text(json.dumps({**json.loads(sound), "sequence": 77}))
    with pytest.raises(errors.RefNotFound):
        io.load_checkpoint(path)
    path.write_text(sound)
    with pytest.raises(errors.RefNotFound):
        StandfastIO(tmp_path / "other").load_checkpoint(path)
    with pytest.raises(errors.MissingFile):
        io.load_checkpoint(tmp_path / "none.ckpt")
    for file in (tmp_path / "store").rglob("*.safetensors"):
        flip(file)
    with pytest.raises(errors.DamagedFile):
        io.load_checkpoint(path)


def test_what_a_newer_version_wrote_is_neither_replaced_nor_deleted(tmp_path):
    io, path, other = StandfastIO(tmp_path / "store"), tmp_path / "1.ckpt", tmp_path / "2.ckpt"
    io.save_checkpoint(checkpoint(1), path)
    io.save_checkpoint(checkpoint(2), other)
    io.teardown()
    path.write_text(json.dumps({**json.loads(path.read_text()), "colour": "blue"}))
    assert io.load_checkpoint(path)["global_step"] == 1
    of_version_2(next((tmp_path / "store").rglob("*_step_000001.json")))
    with pytest.raises(errors.TooNew):
        io.remove_checkpoint(other)
    assert io.load_checkpoint(other)["global_step"] == 2
    path.write_text('{"standfast":2}')
    for use in (
        lambda: io.load_checkpoint(path),
        lambda: io.save_checkpoint(checkpoint(2), path),
        lambda: io.remove_checkpoint(path),
    ):
        with pytest.raises(errors.TooNew):
            use()
    assert path.read_text() == '{"standfast":2}'
    assert [step for _, step in stored(tmp_path / "store")] == [2]


class Code:
    def __reduce__(self) -> Any:
        return os.mkdir, ("run",)


def test_ordinary_files_are_loaded_and_no_code_of_theirs_is_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    io = StandfastIO("store")
    torch.save(checkpoint(), "plain.ckpt")
    assert same(io.load_checkpoint("plain.ckpt"), checkpoint())
    torch.save({**checkpoint(), "code": Code()}, "code.ckpt")
    with pytest.raises(errors.RefusedPickle):
        io.load_checkpoint("code.ckpt")
    Path("old.ckpt").write_bytes(pickle.dumps(Code()))
    with pytest.raises(errors.RefusedPickle):
        io.load_checkpoint("old.ckpt")
    assert not Path("run").exists()
    io.remove_checkpoint("plain.ckpt")
    assert not Path("plain.ckpt").exists()


def test_what_cannot_be_kept_leaves_the_old_file_as_it_was(tmp_path):
    io, path = StandfastIO(tmp_path / "store"), tmp_path / "one.ckpt"
    io.save_checkpoint(checkpoint(), path)
    before = path.read_text()
    with pytest.raises(errors.RefusedState, match=r"hyper_parameters\.odd"):
        io.save_checkpoint({**checkpoint(2), "hyper_parameters": {"odd": object()}}, path)
    assert path.read_text() == before
    assert io.load_checkpoint(path)["global_step"] == 1
    with pytest.raises(errors.BadOption):
        io.save_checkpoint(checkpoint(), path, storage_options={})
    io.teardown()
