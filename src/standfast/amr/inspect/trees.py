"""Trees as they were saved: a `.sunc` file, or what each rank put into a snapshot.

The small sections are in memory, fields and links are read when they are asked for. Nothing needs
to be known of the program that saved them, and an unsound tree opens too: `problems` tells.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from standfast.amr.inspect.items import FileItems, Items, MemoryItems
from standfast.amr.mesh.arena import INVALID, FieldArena
from standfast.amr.mesh.frontends import Frontend, GaugeFrontend
from standfast.amr.mesh.gauge import GaugeTree
from standfast.amr.mesh.morton import Words
from standfast.amr.mesh.tree import AMRTree
from standfast.amr.sunc.checkpoint import header_of_tree
from standfast.errors import BadOption
from standfast.formats.sunc import file as sunc
from standfast.formats.sunc.header import Header
from standfast.store import Checkpoint
from standfast.tensorfile.open import TensorFile

Array = np.ndarray[Any, Any]
Source = str | os.PathLike[str] | Checkpoint | tuple[AMRTree, FieldArena]
"""A `.sunc` file, a snapshot in a store, or a tree with its arena in a running program."""

COMPLEX: Final = np.dtype("<c16")


@dataclass(frozen=True)
class SavedTree:
    """The tree of one rank."""

    label: str
    """What it is, for messages: a path, a rank."""
    header: Header
    group: int
    """The N of its N × N links; 0 if it has none."""
    number: np.dtype[Any]
    """What the field of a site consists of, as far as that is known."""
    blocks: Array
    field_slots: Words
    free_slots: Words
    """All words; those that count are the first `header.arena_free_count`."""
    fields: Items
    links: Items | None

    @property
    def is_live(self) -> Array:
        """Of each block in the list, whether it is not dead."""
        return np.asarray(self.blocks["block_index"] != INVALID)

    @property
    def free(self) -> Words:
        """The free slots; the last is the next to be taken."""
        return self.free_slots[: self.header.arena_free_count]


@dataclass(frozen=True)
class SavedState:
    """A state as it was saved: the trees of all ranks, and of a snapshot what stands beside."""

    label: str
    trees: Sequence[SavedTree]
    has_digests: bool
    """Whether each byte is verified when it is read."""
    check_rest: Callable[[], None]
    """Verify what was not read yet, as far as there are digests."""
    simulation: Mapping[str, Any] | None = None
    """The part that all ranks have in common, with a text for each tensor."""
    random: Sequence[Any] = ()
    """Of a snapshot, the random states that each rank saved, likewise."""


@contextmanager
def opened(*sources: Source) -> Iterator[SavedState]:
    """A state to be looked at: one snapshot, or the files or trees of all its ranks.

    Raises BadOption for a checkpoint that is no snapshot, and for a file of another format.
    """
    sources = tuple(getattr(source, "checkpoint", source) for source in sources)  # of Snapshots
    if len(sources) == 1 and isinstance(sources[0], Checkpoint):
        from standfast.amr.inspect.snapshots import opened_snapshot

        with opened_snapshot(sources[0]) as state:
            yield state
        return
    if not sources or any(isinstance(source, Checkpoint) for source in sources):
        raise BadOption("a state is one snapshot of a store, or one or more .sunc files")
    with ExitStack() as stack:
        trees, files = [], []
        for source in sources:
            if isinstance(source, tuple):
                trees.append(tree_in_memory(*source))
                continue
            if not isinstance(source, str | os.PathLike):
                raise BadOption(
                    f"a {type(source).__name__} is no state: give a snapshot, the .sunc files of "
                    "all ranks, or pairs of a tree and its arena"
                )
            files.append(stack.enter_context(TensorFile(source)))
            trees.append(tree_in_file(files[-1]))

        def check_rest() -> None:
            for file in files:
                for section in file:
                    file.check(section)

        label = ", ".join(tree.label for tree in trees)
        yield SavedState(label, trees, all(file.has_digests for file in files), check_rest)


def tree_in_file(file: TensorFile) -> SavedTree:
    """The tree in an open `.sunc` file; raises BadOption for a file of another format."""
    if file.format != sunc.NAME:
        raise BadOption(f"{file.path} is a {file.format} file: only .sunc files hold trees")
    metadata = file.metadata
    header = Header(**{name: metadata[name] for name in Header.__slots__})
    group = file.spec("links").shape[-1] if "links" in file else 0
    number = file.spec("storage").kind.numpy
    links = None
    if group:
        count, *shape = file.spec("links").shape
        links = FileItems(file, "links", count, 16 * int(np.prod(shape)))
        if header.field_bytes % COMPLEX.itemsize == 0:
            number = COMPLEX  # what only trees of lattice theories have
    slot = header.block_volume * header.field_bytes
    return SavedTree(
        label=file.path,
        header=header,
        group=group,
        number=number,
        blocks=file["blocks"],
        field_slots=file["field_slots"],
        free_slots=file["free_slots"],
        fields=FileItems(file, "storage", header.arena_max_blocks, slot),
        links=links,
    )


def tree_in_memory(tree: AMRTree, arena: FieldArena) -> SavedTree:
    """A tree of a running program, as it would be saved now."""
    frontend = tree.frontend
    header = header_of_tree(tree, arena)
    links = None
    if isinstance(tree, GaugeTree):
        links = MemoryItems(tree.links, link_bytes(frontend))
    return SavedTree(
        label="the tree in memory",
        header=header,
        group=group_of(frontend) if links else 0,
        number=frontend.dtype,
        blocks=tree.blocks,
        field_slots=tree.field_slots,
        free_slots=arena.free_slots,
        fields=MemoryItems(arena.storage, header.block_volume * header.field_bytes),
        links=links,
    )


def group_of(frontend: Frontend) -> int:
    """The N of a frontend's links; 0 if it has none."""
    return frontend.n_gauge if isinstance(frontend, GaugeFrontend) else 0


def link_bytes(frontend: Frontend) -> int:
    """The size of one block's links."""
    return frontend.block_volume * frontend.nd * 16 * group_of(frontend) ** 2
