"""What many ranks save is one checkpoint: the union of what they have."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from standfast import Store, errors
from standfast.parallel.single import SingleRank
from standfast.store.maintenance.doctor import examine
from standfast.store.save.ranks import save_together
from standfast.store.schema import names
from tests.kit.cases import kept
from tests.kit.fault_states import leftovers
from tests.kit.parallel_ranks import run_ranks
from tests.kit.rank_threads import ThreadRanks, attempt_on_ranks, on_ranks
from tests.kit.stores import MIB, bytes_written, data_files, folder, random_bytes, same
from tests.store.save import rank_states

BIG = 200_000
"""Large enough to be referred to, not written again."""


def part(rank: int, seed: int = 0, changed: int = 0) -> dict[str, Any]:
    """What a rank has: some large tensors, the first `changed` of another seed, and small ones."""
    slabs = [
        random_bytes(BIG, 100 * rank + n + (1000 * seed if n < changed else 0)) for n in range(8)
    ]
    shared = np.arange(10.0)
    state: dict[str, Any] = {
        f"rank{rank}": {"slabs": slabs, "seed": seed, "views": [shared, shared[2:5]]},
        f"loose{rank}": np.full(5, rank, np.int16),
    }
    return ({"simulation": {"time": 0.5, "name": "heat"}} if rank == 0 else {}) | state


def union(count: int, seed: int = 0, changed: int = 0) -> dict[str, Any]:
    return {k: v for rank in range(count) for k, v in part(rank, seed, changed).items()}


Save = Callable[[ThreadRanks], Any]


def saving(path: Path, step: int, state: Callable[[int], dict[Any, Any]], **options: Any) -> Save:
    """A program that saves on each rank what it has, with a store of its own."""

    def program(comm: ThreadRanks) -> Any:
        store = Store(path)
        try:
            return save_together(store.run("heat"), comm, step, state(comm.rank), **options)
        finally:
            store.close()

    return program


def listed(path: Path, pattern: str = "*") -> list[str]:
    """The files of a store that count."""
    return sorted(
        str(file.relative_to(path))
        for file in path.rglob(pattern)
        if file.is_file() and ".standfast" not in file.parts and file.name != names.MANIFEST
    )


def raised(outcomes: list[Any], kind: type[errors.StandfastError], *texts: str) -> None:
    """An error of this class, with all of these in its message, is the same on all ranks."""
    assert [type(each) for each in outcomes] == [kind] * len(outcomes)
    (message,) = {str(each) for each in outcomes}
    assert all(text in message for text in texts), message


@pytest.mark.parametrize("count", [1, 3])
def test_the_union_comes_back_equal(count, tmp_path):
    saved = on_ranks(count, saving(tmp_path, 5, part, metrics={"loss": 0.5}, epoch=3, best=True))
    run = Store(tmp_path).run("heat")
    assert same(run.load(), union(count))
    checkpoint = run.checkpoint("best")
    assert (checkpoint.step, checkpoint.epoch, checkpoint.metrics) == (5, 3, {"loss": 0.5})
    assert [each.head for each in saved] == [checkpoint.head] * count
    assert checkpoint.verify().nbytes == checkpoint.nbytes
    assert examine(run.store.backend, run.store.index).sound
    files = [name.split(".") for name in data_files(run)]
    assert len({token for _, token, _, _ in files}) == 1, "one for all files of a save"
    assert len({label for _, _, label, _ in files}) == len(files)
    loaded = run.load()[f"rank{count - 1}"]["views"]
    loaded[0][2] = -1
    assert loaded[1][0] == -1


def test_a_rank_alone_may_save_any_state(tmp_path):
    run = Store(tmp_path).run("heat")
    save_together(run, SingleRank(), 1, part(0))
    assert save_together(run, SingleRank(), 1, [part(0)], replace=True).sequence == 2
    assert same(run.load(), [part(0)])


def test_the_record_is_that_of_one_process(tmp_path):
    on_ranks(3, saving(tmp_path / "ranks", 5, part))
    by_ranks = Store(tmp_path / "ranks").run("heat").checkpoint().record
    alone = Store(tmp_path / "alone").run("heat").save(5, union(3)).record
    for name in ("tree", "names", "kinds", "specs", "digests", "views"):
        assert getattr(by_ranks, name) == getattr(alone, name), name
    assert (by_ranks.head.parts, by_ranks.head.nbytes) == (alone.head.parts, alone.head.nbytes)


def test_keys_of_all_kinds_come_back(tmp_path):
    states: list[dict[Any, Any]] = [
        {1: {"a": np.ones(2)}, "$x": 4},
        {},
        {"1": {"a": np.zeros(2)}, "1.a": np.ones(3), None: [np.arange(3)], "later": {"b": "c"}},
    ]
    on_ranks(3, saving(tmp_path, 1, states.__getitem__))
    assert same(Store(tmp_path).run("heat").load(), {**states[0], **states[1], **states[2]})


def test_what_another_rank_or_run_has_is_referred_to(tmp_path):
    other, run = Store(tmp_path).run("other"), Store(tmp_path).run("heat")
    other.save(1, {"model": part(0)["rank0"]})

    def state(rank: int, turn: int = 0) -> dict[str, Any]:
        new = random_bytes(BIG, 500 + (rank + turn) % 3)
        return {f"rank{rank}": {"new": new, "old": part(0)["rank0"]["slabs"]}}

    on_ranks(3, saving(tmp_path, 1, state))
    assert sum(data_files(other).values()) in data_files(run).values()
    other.delete_all()
    assert run.checkpoint().verify().tensors == 27
    assert bytes_written(run, lambda: on_ranks(3, saving(tmp_path, 2, lambda r: state(r, 1)))) == 0
    assert same(run.load(2), state(0, 1) | state(1, 1) | state(2, 1))


def test_a_step_that_is_there_is_refused_on_all_ranks_or_replaced(tmp_path):
    on_ranks(2, saving(tmp_path, 1, part))
    before = listed(tmp_path)
    outcomes = attempt_on_ranks(2, saving(tmp_path, 1, part))
    raised(outcomes, errors.StepExists, "step 1", "rank 0 of 2")
    assert listed(tmp_path) == before
    on_ranks(2, saving(tmp_path, 1, lambda rank: part(rank, 3, changed=8), replace=True))
    run = Store(tmp_path).run("heat")
    assert same(run.load(1), union(2, 3, changed=8))
    assert len(data_files(run)) == 4, "what the old one had is deleted"
    run.checkpoint(1).tag("paper")
    outcomes = attempt_on_ranks(2, saving(tmp_path, 1, part, replace=True))
    raised(outcomes, errors.Protected, "'paper'")


def test_a_run_that_another_process_writes_is_refused_on_all_ranks(tmp_path):
    store = Store(tmp_path)
    run = store.run("heat")
    with store.backend.lock(run.hash) as lock:
        assert lock.is_held()
        raised(attempt_on_ranks(2, saving(tmp_path, 1, part)), errors.RunBusy, "rank 0 of 2")
    on_ranks(2, saving(tmp_path, 1, part))
    assert same(store.run("heat").load(), union(2))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"step": [1, 2]}, "1 has 2"),
        ({"epoch": [None, 0]}, "epoch"),
        ({"best": [True, False]}, "`best`"),
        ({"replace": [False, True]}, "`replace`"),
        ({"name": ["heat", "other"]}, "run"),
        ({"metrics": [{"loss": 1.0}, {}]}, "metrics"),
    ],
    ids=str,
)
def test_what_ranks_disagree_on_is_refused(tmp_path, options, text):
    def program(comm: ThreadRanks) -> Any:
        given = {"name": "heat", "step": 1} | {k: each[comm.rank] for k, each in options.items()}
        run = Store(tmp_path).run(given.pop("name"))
        return save_together(run, comm, state=part(comm.rank), **given)

    raised(attempt_on_ranks(2, program), errors.RanksDisagree, text)
    assert listed(tmp_path / "checkpoints" / "models", "*_step_*") == []


def test_what_one_rank_cannot_save_is_refused_on_all(tmp_path):
    for state, error, *texts in (
        ([{"a": 1}, {1: 2, "b": 3}, {1.0: 4}], errors.RanksDisagree, "ranks 1 and 2", "'1.0'"),
        ([{"a": 1}, {"b": {"c": object()}}, {"d": 1}], errors.RefusedState, "rank 1 of 3", "b.c"),
        ([{"a": 1}, [1, 2], {"d": 1}], errors.RefusedState, "list"),
    ):
        raised(attempt_on_ranks(3, saving(tmp_path, 1, state.__getitem__)), error, *texts)


def test_the_space_must_suffice_for_all_ranks_together(tmp_path, seams):
    on_ranks(2, saving(tmp_path, 1, part))
    before = listed(tmp_path)
    # The margin, and what one of the two needs, with all that is not a slab.
    seams.disk(free=lambda *_: MIB + 8 * BIG + 20_000)
    other = saving(tmp_path, 2, lambda rank: part(rank, 2, changed=8))
    raised(attempt_on_ranks(2, other), errors.NotEnoughSpace)
    assert listed(tmp_path) == before
    # Dedup lets it fit: half of each is there already.
    on_ranks(2, saving(tmp_path, 2, lambda rank: part(rank, 2, changed=4)))
    assert same(Store(tmp_path).run("heat").load(), union(2, 2, changed=4))


def test_links_made_to_find_out_the_space_are_kept_or_go(tmp_path, seams):
    Store(tmp_path).run("other").save(1, {"model": part(0)["rank0"]})
    seams.disk(free=lambda *_: MIB + BIG)

    def state(rank: int, more: int = 0) -> dict[str, Any]:
        new = random_bytes(more, 1000 + rank)
        return {f"rank{rank}": {"old": part(0)["rank0"]["slabs"], "new": new}}

    outcomes = attempt_on_ranks(2, saving(tmp_path, 1, lambda rank: state(rank, BIG)))
    raised(outcomes, errors.NotEnoughSpace)
    run = Store(tmp_path).run("heat")
    assert data_files(run) == {}
    on_ranks(2, saving(tmp_path, 1, state))
    assert same(run.load(), state(0) | state(1))


def test_long_labels_stay_apart(tmp_path):
    long = "x" * 60
    states = [
        {f"{long}{n}{rank}": {"w": random_bytes(2 * MIB, 9 * rank + n)} for n in range(3)}
        for rank in range(2)
    ]
    on_ranks(2, saving(tmp_path, 1, states.__getitem__))
    run = Store(tmp_path).run("heat")
    assert same(run.load(), states[0] | states[1])
    assert len(list(folder(run).glob("*.safetensors"))) == 6


PROGRAM = Path(__file__).parent / "programs" / "save_together.py"


def test_ranks_save_what_one_process_loads(tmp_path):
    count = 3
    done = run_ranks(count, PROGRAM, str(tmp_path), "2")
    expected = [f"{rank} {step} {step}" for rank in range(count) for step in (1, 2)]
    assert sorted(done.stdout.split("\n")) == ["", *expected]
    run = Store(tmp_path).run("heat")
    sizes = data_files(run)
    second = sum(sizes[name] for name in sizes if "_step_000002." in name)
    assert sum(sizes.values()) - second > count * rank_states.SLABS * rank_states.SLAB
    rest = second / count - rank_states.SLAB
    assert 0 < rest < 32768, "one slab of a hundred, and the headers"
    for step in (1, 2):
        assert same(run.load(step), rank_states.union(count, step))
        assert run.checkpoint(step).verify().tensors == count * rank_states.SLABS
    assert examine(run.store.backend, run.store.index).sound


@pytest.mark.parametrize(("rank", "at"), kept([(0, 5), (1, 4)], (0, 5)))
def test_a_killed_rank_leaves_the_checkpoint_before(rank, at, tmp_path):
    done = run_ranks(2, PROGRAM, str(tmp_path), "2", str(rank), str(at), check=False)
    assert done.returncode != 0
    assert "0 1 1\n" in done.stdout
    assert "2 2\n" not in done.stdout
    run = Store(tmp_path).run("heat")
    assert [each.step for each in run.checkpoints()] == [1]
    assert same(run.load(), rank_states.union(2, 1))
    on_ranks(2, saving(tmp_path, 2, lambda rank: rank_states.part(rank, 2)))
    assert same(run.load(), rank_states.union(2, 2))
    assert leftovers(run.store) == []
