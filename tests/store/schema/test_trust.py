"""What is believed, and of whom: an index, a link, an error that passes, a record of others."""

import errno
import os
import shutil
import signal
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from standfast import Store, errors
from standfast.store.index import database
from standfast.store.load.reading import read_record
from standfast.store.save import known
from standfast.store.schema import names
from standfast.store.schema.record import Part, encode
from tests.kit.seams import Seams
from tests.kit.stores import MIB, data_path, folder, overwrite, random_bytes, record_path, same
from tests.store.meanwhile import again


def _sql(store: Store, statement: str) -> None:
    store.index.close()
    with sqlite3.connect(Path(store.url) / ".standfast" / database.NAME) as connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()


def test_a_run_folder_that_is_a_link_is_only_read(store, run, tmp_path):
    run.save(1, {"w": random_bytes(MIB)}).tag("keep")
    run.close()
    shutil.move(folder(run), tmp_path / "moved")
    folder(run).symlink_to(tmp_path / "moved")
    other = again(store)
    with pytest.raises(errors.WriteFailed):
        other.run("a").save(2, {"w": 1})
    assert same(other.resolve("keep").state(), {"w": random_bytes(MIB)})
    assert other.resolve("a").step == 1


def _failing(seams: Seams, marks: str, number: int, operation: str = "open") -> None:
    """Let an operation of all backends fail on names in which this text is."""

    def failing(do: Any, name: str, *more: Any) -> Any:
        if marks in name:
            raise errors.UnreadableFile(number, os.strerror(number))
        return do(name, *more)

    seams.backend(**{operation: failing})


def test_an_error_that_passes_is_not_remembered(store, run):
    run.save(1, {"n": 1})
    run.save(2, {"n": 2})
    os.utime(folder(run), ns=(1, 1))
    store.index.rebuild()
    with Seams.until_end() as seams:
        _failing(seams, names.record_file(run.hash, 2), errno.EIO)
        store.index.rebuild()
        assert [step for _, step, _ in store.index.unreadable()] == [2]
    assert again(store).resolve("latest").step == 2


@pytest.mark.guarantee("G10")
def test_too_many_open_files_are_no_reason_to_fall_back(run, seams):
    run.save(1, {"n": np.ones(3)})
    run.save(2, {"n": np.ones(3)})
    _failing(seams, data_path(run, 2).name, errno.EMFILE)
    with pytest.raises(errors.UnreadableFile) as caught:
        run.load()
    assert caught.value.errno == errno.EMFILE


def test_a_checkpoint_does_not_lie_in_ever_more_files(run, seams):
    seams.bound("files of a parent", 8)
    state = {f"x{i}": random_bytes(known.SMALL, i) for i in range(30)}
    for step in range(30):
        state[f"x{step}"] = random_bytes(known.SMALL, 100 + step)
        assert len(run.save(step, state).head.files) <= 9
    assert same(run.load(), state)


def test_nothing_is_deleted_because_the_index_says_so(store, run):
    run.save(1, {"w": random_bytes(MIB, 1)})
    run.save(2, {"w": random_bytes(MIB, 2)})
    run.close()
    _sql(store, "UPDATE files SET name = replace(name, '.state.', '.other.') WHERE step = 1")
    other = again(store).run("a")
    other.save(3, {"w": random_bytes(MIB, 3)})
    other.delete(2)
    assert same(other.load(1), {"w": random_bytes(MIB, 1)})


def test_a_hint_of_the_index_that_is_wrong_is_not_followed(store, run):
    state = {"w": random_bytes(MIB), "v": random_bytes(MIB, 1)}
    run.save(1, state)
    for wrong in ("start + 64", "start + 1000000000", "-1"):
        _sql(store, f"UPDATE chunks SET start = {wrong}")
        other = again(store).run(f"other {wrong}")
        other.save(1, state)
        assert same(other.load(), state)


def test_what_could_not_be_read_again_is_not_written(store, run):
    checkpoint = run.save(1, {"n": 1})
    with Seams.until_end() as seams:
        for what in ("a head", "marks", "a run file"):
            seams.bound(f"bytes of {what}", 2000)
        with pytest.raises(errors.RefusedState, match="metrics"):
            run.save(2, {"n": 2}, metrics={f"metric {i}": 0.5 for i in range(200)})
        with pytest.raises(errors.BadLabel, match="notes"):
            checkpoint.note("x" * 2000)
        with pytest.raises(errors.RefusedState, match="hyperparameters"):
            store.run(hp={"vocabulary": "x" * 2000})
    assert run.load() == {"n": 1}
    assert len(store.runs()) == 1


@pytest.mark.guarantee("G11")
@pytest.mark.parametrize("label", ["/tmp/model", "../model", "", "a" * 41, "A"])
def test_the_label_of_a_part_is_no_path(run, label):
    run.save(1, {"m": {"w": np.ones(3)}})
    old = read_record(run._store.backend, run.hash, 1)
    head = msgspec.structs.replace(old.head, parts=[Part("m", label, 0, 1)])
    overwrite(record_path(run, 1), encode(replace(old, head=head)))
    with pytest.raises(errors.DamagedFile, match="label"):
        run.load(1)


def test_a_folder_that_cannot_be_read_hides_no_others(store, run, seams):
    run.save(1, {"n": 1})
    locked = store.run("b")
    locked.save(1, {"n": 2})
    _failing(seams, names.run_folder(locked.hash), errno.EACCES, "list")
    other = again(store)
    assert other.resolve("a").state() == {"n": 1}
    other.run("a").save(2, {"n": 3})
    assert other.resolve("a").step == 2


def test_best_says_so_if_another_may_have_been_the_best(store, run):
    run.save(1, {"n": 1}, best=True)
    run.save(2, {"n": 2}, best=True)
    overwrite(record_path(run, 2), b"garbage")
    with pytest.warns(errors.FellBack, match="step_000002"):
        assert run.load("best") == {"n": 1}


def test_a_tag_whose_record_is_gone_can_be_given_again(store, run):
    run.save(1, {"n": 1}).tag("paper")
    run.save(2, {"n": 2})
    record_path(run, 1).unlink()
    with pytest.raises(errors.RefNotFound):
        store.untag("paper")
    store.resolve("a@2").tag("paper")
    assert store.resolve("paper").step == 2


def test_a_run_file_that_leads_nowhere_is_an_error(store, run):
    path = Path(store.url, names.run_file(run.hash))
    path.unlink()
    path.symlink_to("nowhere")
    with pytest.raises(errors.StandfastError):
        again(store).run("a")


def test_a_fork_does_not_wait_for_a_thread_that_it_has_not(store, run):
    run.save(1, {"n": 1})
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store.index._database._guard:
            inside.set()
            leave.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait()
    child = os.fork()
    if not child:
        signal.alarm(10)
        os._exit(0 if store.resolve("latest").step == 1 else 1)
    leave.set()
    thread.join()
    assert os.waitpid(child, 0)[1] == 0


def test_a_module_given_to_be_filled_is_an_error(run):
    module = torch.nn.Linear(2, 2)
    run.save(1, {"model": module.state_dict()})
    with pytest.raises(errors.RefusedState, match="state_dict"):
        run.load(into={"model": module}, strict=False)
