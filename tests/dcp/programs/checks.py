"""What `dcp.save` and `dcp.load` on a store must do on several ranks: each check runs on all."""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, init_device_mesh
from torch.utils._pytree import tree_map

import standfast
from standfast.dcp import Reader, Writer
from standfast.errors import DigestMismatch, RankFailed, RefusedState, StepExists
from tests.kit.stores import flip

Check = Callable[["Setting"], None]
CHECKS: dict[int, list[Check]] = {4: [], 2: [], 1: []}
"""Those on so many ranks."""


def on(ranks: int) -> Callable[[Check], Check]:
    def added(check: Check) -> Check:
        CHECKS[ranks].append(check)
        return check

    return added


@dataclass
class Setting:
    """A model in the middle of its training, and a store."""

    folder: Path
    rank: int
    model: nn.Module
    optimizer: torch.optim.Optimizer

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def run(self) -> standfast.Run:
        return standfast.Store(self.store).find_run("gpt")

    def writer(self, step: int | None, **options: Any) -> Writer:
        return Writer(self.store, "gpt", step, **options)

    def reader(self, ref: int | str = "latest") -> Reader:
        return Reader(self.store, "gpt", ref)

    def state(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {
            "model": model,
            "optimizer": optimizer,
            "step": 7,
            "pair": (torch.arange(3.0), "two"),
            "replicated": torch.arange(50_000.0),
        }

    def train(self) -> None:
        self.model(torch.ones(4, 200)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def files(self) -> list[str]:
        """All files of the run, seen by all ranks at the same time."""
        dist.barrier()
        found = sorted(os.listdir(self.run_folder))
        dist.barrier()
        return found

    @property
    def run_folder(self) -> Path:
        return self.store / "checkpoints" / "models" / self.run.hash


def setting(folder: Path, rank: int, shard: bool = True) -> Setting:
    torch.manual_seed(1)
    # The last one has fewer rows than there are ranks: some have nothing of it.
    model = nn.Sequential(nn.Linear(200, 400), nn.LayerNorm(400), nn.Linear(400, 3))
    if shard:
        for layer in model:
            fully_shard(layer)
        fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made = Setting(folder, rank, model, optimizer)
    made.train()
    return made


def whole(tree: Any) -> Any:
    """A tree of tensors, each as a whole of its own."""

    def copied(leaf: Any) -> Any:
        leaf = leaf.full_tensor() if isinstance(leaf, DTensor) else leaf
        return leaf.detach().clone() if isinstance(leaf, torch.Tensor) else leaf

    return tree_map(copied, tree)


def same(one: Any, other: Any) -> bool:
    """Whether two trees are the same, bit for bit."""
    if isinstance(one, torch.Tensor):
        return (
            isinstance(other, torch.Tensor)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.numpy().tobytes() == other.numpy().tobytes()
        )
    if isinstance(one, dict):
        # The planners of DCP bring keys into an order of their own.
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def order(tree: Any) -> Any:
    """The keys of a tree, as they stand."""
    if isinstance(tree, dict):
        return [(key, order(value)) for key, value in tree.items()]
    return [*map(order, tree)] if isinstance(tree, list | tuple) else None


def blank_state(now: Setting) -> dict[str, Any]:
    """The state with zeros for its tensors."""
    state = now.state() | {"step": 0, "pair": None}
    return tree_map(lambda each: each * 0 if isinstance(each, torch.Tensor) else each, state)


def failures(action: Callable[[], Any]) -> list[BaseException]:
    """What DCP raises, on all ranks."""
    try:
        action()
    except CheckpointException as error:
        return [each for each, _ in error.failures.values()]
    raise AssertionError("nothing was raised")


@on(4)
def a_state_is_saved_with_its_nesting_and_its_bytes(now: Setting) -> None:
    state = now.state()
    metadata = dcp.save(state, storage_writer=now.writer(1, metrics={"loss": 0.5}))
    assert metadata.storage_meta.checkpoint_id == f"{now.run.hash}@1"
    expected = whole(state)
    checkpoint = now.run.checkpoint()
    assert checkpoint.metrics == {"loss": 0.5}
    assert same(checkpoint.state(), expected)
    assert order(checkpoint.state()) == order(expected)
    assert {part.key for part in checkpoint.head.parts} == {"model", "optimizer", None}
    assert all("-rank" in file.name for file in checkpoint.head.files)
    if now.rank == 0:
        torch.save(expected, now.folder / "expected.pt")


@on(4)
def it_is_loaded_on_as_many_ranks(now: Setting) -> None:
    state = blank_state(now)
    dcp.load(state, storage_reader=now.reader())
    assert same(whole(state), torch.load(now.folder / "expected.pt"))


@on(4)
def a_second_save_of_the_same_writes_nearly_nothing(now: Setting) -> None:
    dcp.save(now.state(), storage_writer=now.writer(2))
    files = now.run.checkpoint().head.files
    new = [file.size for file in files if "_step_000002." in file.name]
    old = [file.size for file in files if "_step_000001." in file.name]
    assert sum(old) > 1_000_000
    assert sum(new) < 60_000
    assert same(now.run.load(2), torch.load(now.folder / "expected.pt"))


@on(4)
def a_step_that_exists_is_refused_on_all_ranks_or_replaced_if_it_may_be(now: Setting) -> None:
    before = now.files()
    (error,) = failures(lambda: dcp.save(now.state(), storage_writer=now.writer(2)))
    assert isinstance(error, StepExists)
    assert now.files() == before
    dcp.save({"only": torch.ones(3)}, storage_writer=now.writer(2, replace=True, best=True))
    assert same(now.run.load("best"), {"only": torch.ones(3)})
    (file,) = now.run.checkpoint(2).head.files
    assert [name for name in now.files() if "_step_000002." in name and "rank" in name] == [
        file.name
    ]


class _FailsToResolve(DefaultSavePlanner):
    def resolve_data(self, write_item: Any) -> Any:
        if write_item.index.fqn == "model.0.weight":
            raise OSError(5, "the disk is gone")
        return super().resolve_data(write_item)


@on(4)
def a_rank_that_fails_leaves_nothing_and_the_run_free(now: Setting) -> None:
    before, latest = now.files(), now.run.checkpoint().ref
    planner = _FailsToResolve() if now.rank == 2 else DefaultSavePlanner()
    now.train()  # so that there is something to write
    (error,) = failures(
        lambda: dcp.save(now.state(), storage_writer=now.writer(3), planner=planner)
    )
    assert isinstance(error, RankFailed)
    assert "rank 2 of 4" in str(error)
    assert now.files() == before
    assert now.run.checkpoint().ref == latest
    if now.rank == 1:  # another process than the coordinator
        with now.run:
            pass
    dist.barrier()


class _FailsToFinish(DefaultSavePlanner):
    def finish_plan(self, new_plan: Any) -> Any:
        raise OSError(5, "no plan")


@on(4)
def a_failure_that_the_writer_never_hears_of_blocks_nobody(now: Setting) -> None:
    before = now.files()
    planner = _FailsToFinish() if now.rank == 2 else DefaultSavePlanner()
    # The writer lives on, as it does in a program that keeps the error.
    kept = now.writer(3)
    (error,) = failures(lambda: dcp.save(now.state(), storage_writer=kept, planner=planner))
    assert isinstance(error, OSError)
    assert len(now.files()) > len(before)  # the others have written theirs
    dcp.save(now.state(), storage_writer=now.writer(4))
    assert not [name for name in now.files() if "_step_000003." in name]
    assert same(now.run.load("latest"), whole(now.state()))
    assert kept is not None


@on(4)
def what_is_no_plain_value_is_refused_by_name(now: Setting) -> None:
    before = now.files()
    state = {**now.state(), "extra": {"thing": {1, 2}}}
    (error,) = failures(lambda: dcp.save(state, storage_writer=now.writer(5)))
    assert isinstance(error, RefusedState)
    assert "extra.thing" in str(error)
    assert now.files() == before


@on(4)
def each_rank_may_have_names_of_its_own(now: Setting) -> None:
    own = {f"rank{now.rank}": {"seen": torch.full((3,), now.rank), "place": now.rank}}
    dcp.save({"step": 1, **own}, storage_writer=now.writer(None), checkpoint_id="outputs/step-6")
    expected = {f"rank{n}": {"seen": torch.full((3,), n), "place": n} for n in range(4)}
    assert same(now.run.load(6), {"step": 1, **expected})
    mine = {f"rank{now.rank}": {"seen": torch.zeros(3, dtype=torch.int64), "place": -1}}
    dcp.load(mine, storage_reader=now.reader(), checkpoint_id="outputs/step-6")
    assert same(mine, own)


@on(4)
def planners_may_cache_their_plans(now: Setting) -> None:
    for step in (7, 8):
        now.train()
        planner = DefaultSavePlanner(enable_plan_caching=True)
        dcp.save(now.state(), storage_writer=now.writer(step), planner=planner)
        assert same(now.run.load(step), whole(now.state()))


@on(4)
def a_save_in_the_background_is_of_the_state_at_its_call(now: Setting) -> None:
    expected = whole(now.state())
    # A group of its own: the training uses the other one meanwhile.
    group = dist.new_group()
    future: Any = dcp.async_save(now.state(), storage_writer=now.writer(9), process_group=group)
    now.train()
    future.result(timeout=100)
    assert same(now.run.load("latest"), expected)
    assert not same(whole(now.state()), expected)
    future = dcp.async_save(now.state(), storage_writer=now.writer(9), process_group=group)
    assert isinstance(failures(lambda: future.result(timeout=100))[0], StepExists)


@on(4)
def all_ranks_load_what_the_coordinator_has_chosen(now: Setting) -> None:
    expected = whole(now.state())
    dcp.save(now.state(), storage_writer=now.writer(10))
    # What a rank sees as the latest one that looks a moment too early.
    state = blank_state(now)
    dcp.load(state, storage_reader=now.reader(9 if now.rank == 3 else "latest"))
    assert same(whole(state), expected)
    if now.rank == 0:
        torch.save(expected, now.folder / "expected.pt")


@on(4)
def a_damaged_byte_is_found(now: Setting) -> None:
    damaged = now.folder / "damaged"
    if now.rank == 0:
        shutil.copytree(now.store, damaged)
        path = next(damaged.rglob("*_step_000010*rank1*"))
        flip(path, path.stat().st_size // 2)
    dist.barrier()
    reader = Reader(damaged, "gpt")
    (error,) = failures(lambda: dcp.load(blank_state(now), storage_reader=reader))
    assert isinstance(error, DigestMismatch)  # by the one rank that has read it


@on(4)
def any_mesh_is_saved_and_loaded_in_another(now: Setting) -> None:
    mesh = init_device_mesh("cpu", (2, 2))
    whole_one = torch.arange(7 * 10.0).reshape(7, 10)
    layouts = [
        [Replicate(), Shard(0)],  # the first half of the ranks has what the other has
        [Shard(0), Shard(1)],
        [Shard(1), Shard(1)],
        [Replicate(), Replicate()],
    ]
    state = {str(n): distribute_tensor(whole_one, mesh, each) for n, each in enumerate(layouts)}
    dcp.save(state, storage_writer=now.writer(11))
    assert same(now.run.load(11), dict.fromkeys(state, whole_one))
    for shift in range(1, 4):
        turned = {
            str(n): distribute_tensor(torch.zeros(7, 10), mesh, layouts[(n + shift) % 4])
            for n in range(4)
        }
        dcp.load(turned, storage_reader=now.reader(11))
        assert same(whole(turned), dict.fromkeys(state, whole_one))


@on(2)
def a_state_of_four_ranks_is_loaded_on_two(now: Setting) -> None:
    state = blank_state(now)
    dcp.load(state, storage_reader=now.reader(10))
    assert same(whole(state), torch.load(now.folder / "expected.pt"))


@on(2)
def it_is_loaded_in_another_sharding(now: Setting) -> None:
    mesh = init_device_mesh("cpu", (2,))
    weight = distribute_tensor(torch.zeros(400, 200), mesh, [Shard(1)])
    expected = torch.load(now.folder / "expected.pt")["model"]["0.weight"]
    dcp.load({"model": {"0.weight": weight}}, storage_reader=now.reader(10))
    assert same(weight.full_tensor(), expected)
    dcp.save({"turned": weight}, storage_writer=now.writer(12))
    assert same(now.run.load(12), {"turned": expected})


@on(1)
def it_is_loaded_by_one_process(now: Setting) -> None:
    state = blank_state(now)
    dcp.load(state, storage_reader=now.reader(10), no_dist=True)
    assert same(whole(state), torch.load(now.folder / "expected.pt"))
    now.run.checkpoint().verify()
