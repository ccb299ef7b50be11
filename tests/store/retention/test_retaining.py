"""What a run keeps: policies are carried out, explained, remembered, and never go too far."""

import errno
import subprocess
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import KeepAll, KeepBest, KeepLast, KeepTagged, Run, Store
from standfast.errors import (
    BadField,
    BadOption,
    DamagedFile,
    FellBack,
    NotDeleted,
    Protected,
    UnreadableFile,
)
from standfast.policies import retention
from standfast.store.maintenance.doctor import examine
from standfast.store.retention import retaining
from standfast.store.retention.history import read_deletions
from standfast.store.retention.pins import pin, pinned_steps
from standfast.store.retention.trash import Trash
from tests.kit.seams import Seams
from tests.kit.stores import (
    MIB,
    data_files,
    data_path,
    flip,
    folder,
    random_bytes,
    record_path,
    same,
)
from tests.store.retention.states import steps


@pytest.fixture
def run(store: Store) -> Iterator[Run]:
    with store.run("a") as run:
        yield run


def fill(run: Run, *steps: int, size: int = MIB) -> None:
    for step in steps:
        run.save(step, state(step, size), metrics={"loss": abs(step - 30) / 10})


def state(step: int, size: int = MIB) -> dict[str, Any]:
    return {
        "model": {"weight": random_bytes(size, step)},
        "optimizer": {"moments": random_bytes(2 * size, step + 1000)},
        "step": step,
    }


def taken(run: Run) -> int:
    """The bytes of its files, less the one that says what it is."""
    paths = (path for path in folder(run).iterdir() if not path.name.endswith("_run.json"))
    return sum(path.stat().st_size for path in paths)


def before_data_is_read(seams: Seams, run: Run, act: Callable[[], object]) -> None:
    """Let another process do something before the first data file is verified."""
    acts = iter([act])

    def slowly(open: Callable[[str], Any], name: str) -> Any:
        if name.endswith(".safetensors"):
            for each in acts:
                each()
        return open(name)

    seams.backend(run.store.backend, open=slowly)


def test_what_is_not_kept_is_deleted_and_its_bytes_are_free(run):
    fill(run, 10, 20, 30, 40, 50)
    run.checkpoint(50).verify()
    before = taken(run)
    done = run.retain(KeepLast(1) | KeepBest(1, "loss"))
    assert done.deleted == [40, 20, 10]
    assert steps(run) == [30, 50]
    assert done.freed == before - taken(run) > 9 * MIB
    assert Trash(run.store.backend).entries() == [], "policies bypass the trash"
    assert examine(run.store.backend, run.store.index).sound
    for step in (30, 50):
        assert same(run.load(step), state(step))


def test_it_holds_for_every_save_after_it_and_for_whoever_opens_the_run_again(run, tmp_path):
    fill(run, 10, 20)
    run.retain(KeepLast(2))
    fill(run, 30, 40)
    assert steps(run) == [30, 40]
    run.close()
    again = Store(tmp_path).run("a")
    assert str(again.retention) == "the last 2"
    assert again.store.run("b", parent=again.checkpoint(40)).retention == again.retention, (
        "a branch keeps as much"
    )
    fill(again, 50)
    assert steps(again) == [40, 50]
    again.retain(KeepAll())
    fill(again, 60, 70)
    assert steps(again) == [40, 50, 60, 70]


@pytest.mark.guarantee("G12", "G13")
def test_the_latest_the_best_and_the_tagged_stay_whatever_is_said(run):
    fill(run, 10, 20, 30)
    run.save(40, state(40), best=True)
    fill(run, 50, 60)
    run.checkpoint(20).tag("paper")
    verdicts = {each.step: each for each in run.verdicts(KeepTagged())}
    assert [step for step, each in verdicts.items() if each.protected] == [60, 40, 20]
    assert verdicts[20].why == ("tagged 'paper'", "tagged")
    run.retain(KeepTagged())
    assert steps(run) == [20, 40, 60]


def test_marks_that_cannot_be_read_may_be_a_tag(run):
    fill(run, 10, 20, 30)
    run.checkpoint(10).tag("paper")
    (marks,) = folder(run).glob("*.marks.json")
    flip(marks, 30)
    run.retain(KeepLast(1))
    assert steps(run) == [10, 30]


def test_metrics_that_come_late_count(run):
    fill(run, 10, 20, 30)
    run.checkpoint(10).add_metrics({"loss": -5.0})
    run.retain(KeepBest(1, "loss"))
    assert steps(run) == [10, 30]


def test_an_infinite_metric_is_the_worst_and_not_a_number_is_none(run):
    for step, loss in ((1, np.inf), (2, np.nan), (3, 5.0), (4, -np.inf), (5, 0.0)):
        run.save(step, {"x": np.zeros(3)}, metrics={"loss": loss})
    run.retain(KeepBest(3, "loss"))
    assert steps(run) == [3, 4, 5]
    run.save(6, {"x": np.zeros(3)}, metrics={"loss": np.inf})
    assert steps(run) == [3, 4, 5, 6]


# The last verified one


@pytest.mark.guarantee("G13")
def test_nothing_is_deleted_unless_one_that_stays_was_verified(run):
    run.retain(KeepLast(3))
    read: list[int] = []
    for step in range(1, 10):
        fill(run, step)
        read += [each for each in run.store.index.verified(run.hash) if each not in read]
    assert steps(run) == [7, 8, 9]
    assert read == [4, 7], "one of three is read now and then, not every one"


def test_a_damaged_checkpoint_is_no_reason_to_delete_an_intact_one(run):
    fill(run, 10, 20, 30)
    flip(data_path(run, 30, "model"))
    done = run.retain(KeepLast(1))
    assert steps(run) == [10, 20, 30]
    assert not done
    (problem,) = done.problems
    assert "model.weight" in problem


def test_a_save_warns_if_nothing_could_be_deleted(run):
    def damaged(open: Callable[[str], Any], name: str) -> Any:
        if name.endswith(".safetensors"):
            raise DamagedFile("a-flipped-bit")
        return open(name)

    run.retain(KeepLast(1))
    fill(run, 10)
    with Seams.until_end() as seams:
        seams.backend(run.store.backend, open=damaged)
        with pytest.warns(NotDeleted, match="a-flipped-bit"):
            fill(run, 20)
    assert steps(run) == [10, 20]
    fill(run, 30)
    assert steps(run) == [30]


def test_a_replaced_checkpoint_is_not_the_one_that_was_verified(run):
    fill(run, 10, 20)
    run.retain(KeepLast(1))
    run.store.index.refresh()
    assert [*run.store.index.verified(run.hash)] == [20]
    run.retain(KeepAll())
    fill(run, 30)
    run.save(20, state(21), replace=True)
    flip(data_path(run, 20, "model"))
    assert run.retain(KeepLast(1)).problems
    assert steps(run) == [30, 20]


# In use


@pytest.mark.guarantee("G13")
def test_a_checkpoint_in_use_stays_and_goes_when_it_is_not(run):
    fill(run, 10, 20, 30)
    lock = pin(run.store.backend, run.hash, 10)
    assert lock is not None
    with run.checkpoint(20).data() as data:
        assert pinned_steps(run.store.backend, run.hash) == {10, 20}
        run.retain(KeepLast(1))
        assert steps(run) == [10, 20, 30]
        assert bytes(data.array(0).tobytes()) == state(20)["model"]["weight"].tobytes()
    lock.release()
    assert pinned_steps(run.store.backend, run.hash) == set()
    run.retain()
    assert steps(run) == [30]
    locks = folder(run).parents[1] / ".standfast" / "locks"
    assert not list(locks.glob("*.pin.*")), "pins leave nothing behind"


READER = """
import sys, standfast
with standfast.Store(sys.argv[1]).resolve("a@10").data() as data:
    print("open", flush=True)
    sys.stdin.readline()
    print(int(data.array(0)[:8].sum()), flush=True)
    sys.stdin.readline()
"""


def test_a_reader_in_another_process_keeps_it_and_a_dead_one_does_not(run, tmp_path):
    fill(run, 10, 20)
    command = [sys.executable, "-c", READER, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as reader:
        assert reader.stdin is not None
        assert reader.stdout is not None
        assert reader.stdout.readline() == "open\n"
        run.retain(KeepLast(1))
        assert steps(run) == [10, 20]
        reader.stdin.write("\n")
        reader.stdin.flush()
        assert int(reader.stdout.readline()) == int(state(10)["model"]["weight"][:8].sum())
        reader.kill()
    run.retain()
    assert steps(run) == [20]


# Parts


def test_the_optimizer_is_kept_for_the_last_only(run):
    fill(run, 10, 20, 30)
    before = sum(data_files(run).values())
    done = run.retain(KeepAll(without="optimizer") | KeepLast(1))
    assert done.dropped == {20: ("optimizer",), 10: ("optimizer",)}
    assert 4 * MIB < done.freed == before - sum(data_files(run).values())
    assert steps(run) == [10, 20, 30]
    for step in (10, 20):
        checkpoint = run.checkpoint(step)
        checkpoint.verify()
        assert checkpoint.head.dropped == ["optimizer"]
        left = {key: value for key, value in state(step).items() if key != "optimizer"}
        assert same(run.load(step), left)
    assert same(run.load(30), state(30))
    assert not run.retain()
    assert examine(run.store.backend, run.store.index).sound
    fill(run, 40)
    assert [each.head.dropped for each in run.checkpoints()] == [["optimizer"]] * 3 + [[]]


def test_protected_checkpoints_stay_whole(run):
    fill(run, 10, 20, 30)
    run.checkpoint(10).tag("paper")
    run.retain(KeepAll(without="optimizer"))
    assert [each.head.dropped for each in run.checkpoints()] == [[], ["optimizer"], []]


def test_a_part_that_others_need_is_not_dropped(run):
    shared = random_bytes(2 * MIB, 1)
    tied = {"model": {"a": shared[: MIB + 64]}, "optimizer": {"b": shared}}
    run.save(1, tied)
    fill(run, 20)
    done = run.retain(KeepAll(without="optimizer"))
    assert done.dropped == {}
    assert same(run.load(1), tied)


@pytest.mark.parametrize(
    "given",
    [
        {"model": {"x": np.arange(9.0)}, "optimizer": {1: np.ones(3), "lr": 1e-05}, "r": 1e-05},
        {1: {"x": np.arange(9.0)}, "optimizer": {"m": np.ones(3)}, "é\u2028": (1.5e300, None)},
        {"optimizer": {"m": np.ones(3)}, "loose": np.arange(4.0), "t": (np.zeros(2), 2**70)},
        OrderedDict(model=OrderedDict(w=np.arange(5)), optimizer={"m": np.ones(2)}, last=3),
    ],
    ids=["names", "numbers", "loose", "ordered"],
)
def test_all_else_of_the_state_stays_as_it_was(run, given):
    run.save(1, given)
    fill(run, 20)
    run.retain(KeepAll(without=("optimizer", "nothing")))
    left = type(given)((key, value) for key, value in given.items() if key != "optimizer")
    assert same(run.load(1), left)
    run.checkpoint(1).verify()


# Budgets


def test_beyond_the_budget_the_oldest_go(run):
    fill(run, 10, 20, 30, 40)
    run.checkpoint(10).tag("paper")
    verdicts = {each.step: each for each in run.verdicts(budget=7 * MIB)}
    assert [step for step, each in verdicts.items() if not each.keep] == [30, 20]
    assert verdicts[20].by == "budget"
    run.retain(budget=7 * MIB)
    assert steps(run) == [10, 40]
    fill(run, 50)
    assert steps(run) == [10, 50]
    assert taken(run) < 7 * MIB


def test_a_budget_that_cannot_be_met_deletes_all_that_it_may_and_says_so(run):
    fill(run, 10, 20)
    done = run.retain(budget=MIB)
    assert steps(run) == [20]
    (problem,) = done.problems
    assert "1,048,576" in problem


def test_what_is_in_the_trash_counts_and_goes_first(run):
    fill(run, 10, 20, 30)
    run.delete(10, trash="rm")
    assert len(Trash(run.store.backend).entries()) == 1
    run.retain(budget=7 * MIB)
    assert steps(run) == [20, 30]
    assert Trash(run.store.backend).entries() == []


def test_a_budget_of_the_store_takes_the_oldest_of_any_run(store, run):
    fill(run, 10, 20, 30)
    other = store.run("b")
    store.budget = 10 * MIB
    assert Store(store.url.removesuffix("/checkpoints")).budget == 10 * MIB
    fill(other, 11, 12)
    assert (steps(run), steps(other)) == ([30], [11, 12])
    fill(other, 13)
    assert (steps(run), steps(other)) == ([30], [12, 13])
    assert Trash(store.backend).entries() == []
    assert len(read_deletions(store, run.hash)) == 2
    store.budget = None
    fill(other, 14)
    assert steps(other) == [12, 13, 14]
    store.budget = "7 MB"
    assert store.retain().deleted == [12, 13]


def test_a_budget_of_the_store_that_cannot_be_kept_is_said(store, run):
    fill(run, 10)
    store.budget = MIB
    (problem,) = store.retain().problems
    assert "1,048,576" in problem
    with pytest.warns(NotDeleted, match="1,048,576"):
        fill(run, 20)
    with pytest.raises(BadOption):
        store.budget = "much"


def test_settings_that_were_changed_by_hand_are_not_believed(store, run):
    fill(run, 10)
    store.budget = 100 * MIB
    assert examine(store.backend, store.index).sound
    path = store.backend.path("store.json")
    assert path is not None
    path.write_bytes(path.read_bytes().replace(b'"budget":1', b'"budget":0'))
    assert list(examine(store.backend, store.index).damaged) == ["store.json"]
    with pytest.raises(DamagedFile, match=r"store\.json"):
        _ = store.budget
    with pytest.warns(NotDeleted, match=r"store\.json"):
        fill(run, 20)
    assert steps(run) == [10, 20]


# What was done


def test_every_deletion_can_be_explained(store, run):
    fill(run, 10, 20, 30, 40)
    run.delete(10)
    run.retain(KeepLast(2))
    run.retain(KeepAll(without="optimizer"))
    found = read_deletions(store, run.hash)
    assert [(each.step, each.by, each.parts) for each in found] == [
        (30, "policy", ("optimizer",)),
        (20, "policy", ()),
        (10, "program", ()),
    ]
    assert found[1].freed > 3 * MIB


def test_what_was_noted_and_is_still_there_was_not_deleted(store, run):
    def interrupted(remove: object, path: Path) -> None:
        raise KeyboardInterrupt

    fill(run, 10, 20)
    with Seams.until_end() as seams:
        seams.disk(remove=interrupted)
        with pytest.raises(KeyboardInterrupt):
            run.retain(KeepLast(1))
    assert read_deletions(store, run.hash) == []
    run.retain()
    assert [each.step for each in read_deletions(store, run.hash)] == [10]


def test_a_history_that_was_changed_by_hand_is_refused(store, run):
    fill(run, 10)
    assert store.logs is not None
    store.logs.mkdir(exist_ok=True)
    (store.logs / f"{run.hash}_retention.jsonl").write_bytes(b'{"step": "ten"}\n')
    with pytest.raises(BadField, match=r"_retention\.jsonl"):
        read_deletions(store, run.hash)


def test_what_becomes_protected_in_the_last_moment_stays(run, seams):
    def meanwhile() -> None:
        run.checkpoint(10).tag("paper")
        run.delete(20)
        run.save(30, state(31), replace=True)

    fill(run, 10, 20, 30, 40)
    before_data_is_read(seams, run, meanwhile)
    retaining.retain(run.store, run.hash, retention(KeepLast(1)))
    assert steps(run) == [10, 30], "which is the last by now"
    assert same(run.load(30), state(31))


@pytest.mark.guarantee("G13")
def test_what_is_kept_since_the_last_moment_must_be_intact(run, seams):
    def meanwhile() -> None:
        fill(run, 30)
        flip(data_path(run, 30, "model"))

    fill(run, 10, 20)
    before_data_is_read(seams, run, meanwhile)
    assert retaining.retain(run.store, run.hash, retention(KeepLast(1))).problems
    assert steps(run) == [10, 20, 30]


def test_the_names_of_other_frameworks_are_taken(run):
    fill(run, 10, 20, 30, 40)
    run.retain(save_top_k=2, monitor="loss", mode="max")
    assert steps(run) == [10, 20, 40]
    with pytest.raises(BadOption, match="save_top_k"):
        run.retain(save_topk=1)


def test_a_metric_that_no_checkpoint_has_deletes_nothing(run):
    fill(run, 10, 20, 30)
    done = run.retain(KeepLast(1) | KeepBest(1, "los"))
    assert steps(run) == [10, 20, 30]
    (problem,) = done.problems
    assert "'los'" in problem
    with pytest.warns(NotDeleted, match="'los'"):
        fill(run, 40)
    run.checkpoint(20).add_metrics({"los": 1.0})
    run.retain()
    assert steps(run) == [20, 40]


def test_a_part_that_no_checkpoint_has_is_said(run):
    fill(run, 10, 20)
    (problem,) = run.retain(KeepAll(without="optimiser")).problems
    assert "optimiser" in problem


@pytest.mark.guarantee("G13")
def test_one_that_was_verified_and_is_damaged_by_now_does_not_count(run):
    fill(run, 10, 20, 30, 40)
    run.retain(KeepLast(3))
    run.store.index.refresh()
    assert 40 in run.store.index.verified(run.hash)
    run.retain(KeepAll())
    fill(run, 50)
    for step in (40, 50):
        flip(data_path(run, step, "model"))
    with pytest.warns(FellBack):
        run.load()
    assert run.retain(KeepLast(2)).problems
    assert 30 in steps(run), "the only one that is intact"


def test_what_other_runs_share_does_not_count_against_a_budget_once_it_is_deleted(store, run):
    fill(run, *range(1, 11))
    other = store.run("b")
    fill(other, *range(1, 11))
    assert taken(other) > 30 * MIB
    done = other.retain(budget=26 * MIB)
    assert done.deleted == [2, 1]
    assert done.problems == []
    assert done.freed < MIB, "the other run has it still"


def test_a_backup_by_links_does_not_make_a_budget_delete_more(store, run, tmp_path):
    fill(run, *range(1, 11))
    subprocess.run(["cp", "-al", str(tmp_path), f"{tmp_path}.backup"], check=True)
    store.budget = 26 * MIB
    assert store.retain().problems == []
    assert steps(run) == [3, 4, 5, 6, 7, 8, 9, 10]


@pytest.mark.guarantee("G14")
def test_of_a_run_with_a_record_that_cannot_be_read_nothing_is_deleted(run):
    fill(run, 10, 20, 30, 40)
    flip(record_path(run, 20), 100)
    for options in ({"keep": KeepLast(1)}, {"budget": 4 * MIB}):
        done = run.retain(**options)  # type: ignore[arg-type]
        assert "20" in done.problems[0]
        assert steps(run) == [10, 30, 40]


def test_the_parent_of_a_run_that_is_written_into_stays(store, run):
    fill(run, 10, 20, 30)
    branch = store.run("b", parent=run.checkpoint(10))
    fill(branch, 11)
    run.retain(KeepLast(1))
    assert steps(run) == [10, 30]
    with pytest.raises(Protected, match="10"):
        run.delete(10)
    branch.close()
    run.retain()
    assert steps(run) == [30]


def test_of_a_whole_file_no_part_goes(run):
    torch = pytest.importorskip("torch")
    for step in (1, 2, 3):
        given = {"model": {"w": torch.ones(9)}, "optimizer": {"m": torch.ones(9) * step}}
        run.save(step, given, format="torch")
    done = run.retain(KeepAll(without="optimizer"))
    assert done.dropped == {}
    assert len(list(folder(run).glob("*.pt"))) == 3
    assert run.load(1)["optimizer"]["m"].tolist() == [1.0] * 9


def test_a_save_is_not_failed_by_what_goes_wrong_with_old_checkpoints(store, run, seams):
    def broken(list: Callable[..., Any], folder: str, *given: Any) -> Any:
        if other.hash in folder:
            raise UnreadableFile(errno.EACCES, "another-run")
        return list(folder, *given)

    other = store.run("b")
    fill(other, 1)
    fill(run, 10)
    run.retain(KeepLast(1), budget=1)
    store.budget = 1
    seams.backend(store.backend, list=broken)
    with pytest.warns(NotDeleted) as warned:
        fill(run, 20)
    said = " ".join(str(each.message) for each in warned)
    assert "another-run" in said
    assert "1:" in said, "what is wrong with the run itself is said too"


def test_a_save_does_not_wait_for_another_run_to_keep_the_budget_of_the_store(store, run):
    fill(run, 10, 20)
    store.budget = 7 * MIB
    other = store.run("b")
    busy = store.backend.lock(f"{run.hash}.change")
    assert busy is not None
    with busy, pytest.warns(NotDeleted):
        fill(other, 1)
    assert steps(run) == [10, 20]


def test_the_best_is_the_best_of_what_there_is(store, run):
    run.set_monitor("loss", "min")
    for step, loss in ((1, 0.5), (2, 0.1), (3, 0.3), (4, 0.7)):
        run.save(step, state(step), metrics={"loss": loss}, best=step in (1, 2))
    assert run.checkpoint("best").step == 2
    run.delete(2, trash="rm")
    assert run.checkpoint("best").step == 3
    store.restore(run.hash)
    assert run.checkpoint("best").step == 2
