"""What the two simulations share: their options, ranks, progress, and how they begin and end."""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from numpy.random import Generator
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from standfast import Run, StandfastError, Store
from standfast.amr import (
    AMRTree,
    FieldArena,
    GaugeTree,
    Restored,
    Snapshot,
    TreeCheckpoint,
    TreeState,
    logical_digest,
    repartition,
)
from standfast.amr.mesh.frontends import Frontend
from standfast.errors import RefNotFound
from standfast.parallel import Communicator, communicator, on_root

Tell = Callable[[int, str], None]
"""Called with the number of a step that is done, and with what there is to see."""
Parts = Sequence[tuple[AMRTree, FieldArena]]
"""The trees of all ranks, each with its arena."""


def options(description: str | None, every: int) -> argparse.ArgumentParser:
    """A parser of the options that both have."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=0, help="of all random numbers (0)")
    parser.add_argument("--checkpoint", metavar="FOLDER", help="a store to save into")
    parser.add_argument("--every", type=int, default=every, help=f"how often ({every})")
    parser.add_argument("--resume", action="store_true", help="go on from the latest checkpoint")
    parser.add_argument("--reshard", action="store_true", help="… with another number of ranks")
    parser.add_argument("--picture", metavar="FILE.png", help="what to draw the end into")
    return parser


def parsed(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The options as they were given; what would fail at the end is refused at once."""
    arguments = parser.parse_args()
    if arguments.seed < 0 or arguments.every < 1:
        parser.error("--seed is at least 0, and --every at least 1")
    if arguments.picture and not importlib.util.find_spec("matplotlib"):
        parser.error("--picture needs matplotlib: pip install matplotlib")
    return arguments


@contextmanager
def session() -> Iterator[Session]:
    """All ranks that `mpiexec -n 4 python -m mpi4py …` started, or this process alone."""
    world = None
    if "mpi4py" in sys.modules:
        from mpi4py import MPI

        world = MPI.COMM_WORLD
    ranks = Session(communicator(world))
    try:
        yield ranks
    except StandfastError as error:  # its message says what to do
        ranks.stop(str(error))


class Session:
    """The ranks of a program, of which the first alone talks. All methods are collective."""

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.console = Console(highlight=False, soft_wrap=True, quiet=comm.rank != 0)

    def say(self, text: str) -> None:
        """A sentence for whoever started the program."""
        self.console.print(text, markup=False)

    def stop(self, why: str) -> NoReturn:
        """End the program, which cannot go on."""
        if self.comm.rank == 0:
            print(why, file=sys.stderr)
        raise SystemExit(1)

    @contextmanager
    def progress(self, done: int, last: int) -> Iterator[Tell]:
        """One line that changes, on a terminal; elsewhere about ten lines, one after another."""
        if not self.console.is_terminal:
            often = max(1, (last - done) // 10)

            def tell(step: int, text: str) -> None:
                if step % often == 0 or step == last:
                    self.say(f"{step:6d}  {text}")

            yield tell
            return
        columns = BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}")
        with Progress(*columns, console=self.console) as shown:
            task = shown.add_task("", total=last, completed=done)
            yield lambda step, text: shown.update(task, completed=step, description=text)

    def open_run(self, arguments: argparse.Namespace, name: str, what: Any) -> Run | None:
        """Where the checkpoints of this simulation go, if they were asked for."""
        folder = arguments.checkpoint
        if folder is None:
            return None
        # By one rank, before the others look.
        saved = on_root(self.comm, lambda: len(Store(folder).run(name, hp=what).checkpoints()))
        if saved and not arguments.resume:
            self.stop(f"{folder} has checkpoints of this: give --resume, or another folder")
        return Store(folder).run(name, hp=what)

    def resumed(
        self, arguments: argparse.Namespace, run: Run | None, frontend: Frontend
    ) -> Restored[Any] | None:
        """The state that was saved last, if it is wanted and there is one."""
        if run is None or not arguments.resume:
            return None
        try:
            found = Snapshot.load(run, frontend=frontend, comm=self.comm, reshard=arguments.reshard)
        except RefNotFound:
            self.say("There is no checkpoint yet: a new run begins.")
            return None
        if found.shard is None:  # many ranks became one
            repartition(found.tree, found.arena, self.comm)
        self.say(f"Resumed after step {found.step}.")
        return found

    def restore_random(self, found: Restored[Any], name: str, generator: Generator) -> None:
        """Put back a generator that draws the same numbers on all ranks, new ranks too."""
        if self.comm.rank < found.snapshot.ranks:
            found.restore_random(**{name: generator})
        state = json.dumps(generator.bit_generator.state).encode()
        generator.bit_generator.state = json.loads(self.comm.broadcast(state))

    def collected(self, tree: AMRTree, arena: FieldArena) -> Parts:
        """The trees of all ranks, on the first; nothing on the others."""
        stream = io.BytesIO()
        if isinstance(tree, GaugeTree):
            tree.write_checkpoint(arena, stream)
        else:
            TreeCheckpoint(tree.frontend).write(tree, arena, stream)
        states = [_read(io.BytesIO(part), tree) for part in self.comm.gather(stream.getvalue())]
        return [(state.tree, state.arena) for state in states]

    def say_digest(self, parts: Parts) -> None:
        """One number for all that was computed: equal ends have equal ones, on any ranks."""
        if parts:
            self.say(f"digest {logical_digest(*parts)}")


def _read(stream: io.BytesIO, like: AMRTree) -> TreeState[Any]:
    if isinstance(like, GaugeTree):
        return GaugeTree.read_checkpoint(stream, frontend=like.frontend)
    return TreeCheckpoint(like.frontend).read(stream)
