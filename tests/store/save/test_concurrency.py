"""Threads that save, load and delete in one store get in nobody's way."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from standfast import Store
from standfast.errors import StepExists
from tests.kit.stores import data_files, folder, random_bytes, same


def _state(step: int) -> dict[str, Any]:
    return {
        "step": step,
        "same": random_bytes(100_000, 1),
        "model": {"w": random_bytes(200_000, step), "b": np.full(5, step)},
    }


def _together(*tasks: Callable[[], Any]) -> list[Any]:
    """Do all at once; what one of them raises is raised."""
    start = threading.Barrier(len(tasks))

    def begin(task: Callable[[], Any]) -> Any:
        start.wait(60)
        return task()

    with ThreadPoolExecutor(len(tasks)) as pool:
        return [future.result(60) for future in [pool.submit(begin, task) for task in tasks]]


def test_threads_save_different_steps_of_several_runs(store):
    def save(name: str, first: int) -> None:
        run = store.run(name)
        for step in range(first, 12, 2):
            run.save(step, _state(step))

    _together(*(lambda n=n, first=first: save(n, first) for n in "ab" for first in range(2)))
    runs = [store.run(name) for name in "ab"]
    for run in runs:
        assert sorted(each.step for each in run.checkpoints()) == list(range(12))
        for step in range(12):
            assert same(run.load(step), _state(step))
    numbers = [each.sequence for run in runs for each in run.checkpoints()]
    assert max(numbers) <= len(numbers)


def test_of_threads_that_save_one_step_one_succeeds(run):
    def save(number: int) -> int | None:
        try:
            run.save(1, _state(number))
        except StepExists:
            return None
        return number

    saved = _together(*(lambda n=n: save(n) for n in range(5)))
    (winner,) = (number for number in saved if number is not None)
    assert same(run.load(), _state(winner))
    files = {file.name for file in run.checkpoint().head.files}
    assert set(data_files(run)) == files, "the others left nothing"


def test_one_run_is_made_by_many_at_once(tmp_path):
    runs = _together(*(lambda: Store(tmp_path).run("a", hp={"lr": 1}) for _ in range(8)))
    assert len({run.hash for run in runs}) == 1
    assert len({run.file.created for run in runs}) == 1
    assert len(list(folder(runs[0]).iterdir())) == 1


def test_deleting_and_saving_at_once_leaves_what_is_referred_to(run):
    for step in range(5):
        run.save(step, _state(step))

    def delete() -> None:
        for step in range(4):
            run.delete(step)

    def save() -> None:
        for step in range(5, 12):
            run.save(step, _state(step % 5))

    _together(delete, save)
    assert [each.step for each in run.checkpoints()] == [4, *range(5, 12)]
    for each in run.checkpoints():
        each.verify()
