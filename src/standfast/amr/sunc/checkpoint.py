"""`.sunc` checkpoints of trees: the bytes that the original writes, whole and durable.

What is read is compared with the frontend, and checked, before a tree is made of it.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO, Generic, Literal, TypeVar

import numpy as np

from standfast.amr.mesh.arena import FieldArena
from standfast.amr.mesh.checks import check_state
from standfast.amr.mesh.frontends import Frontend, GaugeFrontend, check_savable
from standfast.amr.mesh.gauge import GaugeTree, Links
from standfast.amr.mesh.tree import AMRTree
from standfast.amr.sunc.sections import (
    FileSections,
    Sections,
    StreamSections,
    check_stream,
    naming,
    path_of,
)
from standfast.errors import BadBlock, BadOption, DamagedFile, IncompatibleCheckpoint
from standfast.formats.sunc import file as sunc
from standfast.formats.sunc.header import Header, record_size
from standfast.tensorfile.save import save

Tree = TypeVar("Tree", bound=AMRTree)
Gauge = TypeVar("Gauge", bound=GaugeTree)
Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class TreeState(Generic[Tree]):
    """What a checkpoint holds."""

    tree: Tree
    arena: FieldArena


class TreeCheckpoint:
    """Writes and reads `.sunc` checkpoints of trees of one frontend.

    >>> checkpoint = TreeCheckpoint(frontend)
    >>> checkpoint.write_to_file(tree, arena, format_path("checkpoints", "run", step))
    >>> state = checkpoint.read_from_file(format_path("checkpoints", "run", step))
    """

    def __init__(self, frontend: Frontend) -> None:
        check_savable(frontend)
        self.frontend = frontend

    def write(self, tree: AMRTree, arena: FieldArena, stream: BinaryIO) -> None:
        """Write a tree and its arena to a stream."""
        self._check_kind(tree)
        check_stream(stream, "write")
        write(tree, arena, stream)

    def write_to_file(
        self,
        tree: AMRTree,
        arena: FieldArena,
        path: str | os.PathLike[str],
        *,
        extras: bool = False,
    ) -> None:
        """Write a file; when this returns it is durable, and until then the old one stands.

        `extras=True` adds digests, which the original does not look at.
        """
        self._check_kind(tree)
        write(tree, arena, path_of(path), extras=extras)

    def read(self, stream: BinaryIO) -> TreeState[AMRTree]:
        """The tree and the arena in a stream, which is left right behind the payload."""
        return self.read_sections(StreamSections(stream))

    def read_from_file(
        self, path: str | os.PathLike[str], *, verify: bool | Literal["require"] = True
    ) -> TreeState[AMRTree]:
        """The tree and the arena in a file; what follows the payload is left alone.

        Every byte is checked against the digests in the file, if it holds any: files of the
        original hold none. `verify="require"` raises NothingToVerify for such a file.
        """
        with FileSections(path, verify) as sections:
            return self.read_sections(sections)

    def read_sections(self, sections: Sections) -> TreeState[AMRTree]:
        """The tree and the arena in an open file or stream."""
        with naming(sections.where):
            payload = _read_payload(sections, self.frontend)
            return TreeState(payload.tree(AMRTree), payload.arena)

    def _check_kind(self, tree: AMRTree) -> None:
        if tree.frontend != self.frontend:
            raise BadOption(f"the tree has {tree.frontend}, and the checkpoint {self.frontend}")
        if isinstance(tree, GaugeTree):
            raise BadOption(
                "a TreeCheckpoint writes no links: call the write_checkpoint of the GaugeTree"
            )


def read_whole_file(
    path: str, frontend: Frontend, verify: bool | Literal["require"]
) -> TreeState[Any]:
    """The tree in a file, a GaugeTree if the file has links.

    Raises IncompatibleCheckpoint for what this would leave out.
    """
    with FileSections(path, verify) as sections:
        if sections.rest == "links" and isinstance(frontend, GaugeFrontend):
            return read_gauge_tree(GaugeTree, sections, frontend)
        if sections.rest is not None:
            raise IncompatibleCheckpoint(
                f"{sections.where}: expected nothing after the payload with this frontend, found "
                f"{sections.rest}; a TreeCheckpoint reads the tree without them"
            )
        return TreeCheckpoint(frontend).read_sections(sections)


def read_gauge_tree(
    kind: type[Gauge], sections: Sections, frontend: GaugeFrontend
) -> TreeState[Gauge]:
    """A tree with its links, and its arena."""
    with naming(sections.where):
        payload = _read_payload(sections, frontend)
        data = sections.links(frontend)
        shape = (payload.header.blocks_len, *frontend.link_shape)
        links: Links = data.view(np.complex128).reshape(shape)
        return TreeState(payload.tree(kind, links=links), payload.arena)


# Writing


def write(
    tree: AMRTree, arena: FieldArena, target: str | BinaryIO, *, extras: bool = False
) -> None:
    """Write a tree, its links if it has any, and its arena to a path or a stream."""
    check_writable(tree, arena)
    sections: dict[str, Array] = {
        "blocks": tree.blocks,
        "field_slots": tree.field_slots,
        "storage": arena.storage,
        "free_slots": arena.free_slots,
    }
    if isinstance(tree, GaugeTree):
        links = tree.links
        # The links of no blocks have no length that could tell their group.
        sections["links"] = links if len(links) else np.empty((0, links.shape[1], 1, 1), complex)
    save(target, sections, asdict(header_of_tree(tree, arena)), format=sunc.NAME, extras=extras)


def header_of_tree(tree: AMRTree, arena: FieldArena) -> Header:
    """The header that the `.sunc` file of a tree has."""
    return header_of(
        tree.frontend,
        blocks=len(tree),
        max_blocks=arena.max_blocks,
        free_count=arena.free_count,
        base_spacing=tree.base_spacing,
        bits_per_dim=tree.bits_per_dim,
        max_level=tree.max_level,
    )


def header_of(
    frontend: Frontend,
    *,
    blocks: int,
    max_blocks: int,
    free_count: int,
    base_spacing: float,
    bits_per_dim: int,
    max_level: int,
) -> Header:
    """The header of a tree with these numbers."""
    return Header(
        nd=frontend.nd,
        block_size=frontend.block_size,
        block_volume=frontend.block_volume,
        block_bytes=record_size(frontend.nd),
        field_bytes=frontend.field_bytes,
        blocks_len=blocks,
        field_slots_len=blocks,
        arena_max_blocks=max_blocks,
        arena_free_count=free_count,
        base_spacing=base_spacing,
        bits_per_dim=bits_per_dim,
        max_level=max_level,
    )


def check_writable(tree: AMRTree, arena: FieldArena) -> None:
    """Raise BadBlock for a state that no reader would open again, GhostsInUse inside `apply`."""
    tree.check_idle()
    if arena.frontend != tree.frontend:
        raise BadOption(f"the tree has {tree.frontend}, and the arena {arena.frontend}")
    _check_arrays(tree, arena)
    try:
        check_state(
            tree.frontend,
            tree.base_spacing,
            tree.bits_per_dim,
            tree.max_level,
            tree.blocks,
            tree.field_slots,
            arena.free_slots,
            arena.free_count,
            arena.max_blocks,
        )
    except DamagedFile as error:
        raise BadBlock(f"the tree and the arena do not fit: {error}") from error


def _check_arrays(tree: AMRTree, arena: FieldArena) -> None:
    """Raise BadBlock if somebody has put other arrays in the places of the arena's, or links."""
    frontend, slots = tree.frontend, arena.max_blocks
    expected: dict[str, tuple[Any, Any, tuple[int, ...]]] = {
        "arena.storage": (
            arena.storage,
            frontend.dtype,
            (slots, frontend.block_volume, *frontend.field_shape),
        ),
        "arena.free_slots": (arena.free_slots, np.dtype(np.uint64), (slots,)),
    }
    if isinstance(tree, GaugeTree):
        of_links = (len(tree), *tree.frontend.link_shape)
        expected["tree.links"] = (tree.links, np.dtype(np.complex128), of_links)
    for name, (array, dtype, shape) in expected.items():
        if not isinstance(array, np.ndarray) or (array.dtype, array.shape) != (dtype, shape):
            found = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else array
            raise BadBlock(
                f"{name}: expected an array of {dtype} {list(shape)}, found {found!s:.80}; write "
                "into the array that is there"
            )


# Reading


@dataclass(frozen=True, slots=True)
class _Payload:
    """The four sections, checked."""

    header: Header
    frontend: Frontend
    blocks: Array
    field_slots: Array
    arena: FieldArena

    def tree(self, kind: type[Tree], **further: Any) -> Tree:
        """The tree, of this class."""
        return kind.restored(
            self.frontend,
            self.header.base_spacing,
            self.header.bits_per_dim,
            self.header.max_level,
            self.blocks,
            self.field_slots,
            **further,
        )


def _read_payload(sections: Sections, frontend: Frontend) -> _Payload:
    header = sections.header
    _check_compatible(header, frontend)
    blocks = sections.section("blocks").view(sunc.block_dtype(frontend.nd))
    field_slots = sections.section("field_slots").view(np.uint64)
    storage = sections.section("storage").view(frontend.dtype)
    free_slots = sections.section("free_slots").view(np.uint64)
    check_state(
        frontend,
        header.base_spacing,
        header.bits_per_dim,
        header.max_level,
        blocks,
        field_slots,
        free_slots,
        header.arena_free_count,
        header.arena_max_blocks,
    )
    arena = FieldArena.restored(frontend, storage, free_slots, header.arena_free_count)
    return _Payload(header, frontend, blocks, field_slots, arena)


def _check_compatible(header: Header, frontend: Frontend) -> None:
    """Raise IncompatibleCheckpoint for the first field in which a saved tree is another's."""
    for name in ("nd", "block_size", "block_volume", "field_bytes"):
        found, expected = getattr(header, name), getattr(frontend, name)
        if found != expected:
            raise IncompatibleCheckpoint(
                f"field {name}: expected {expected:,} by the frontend, found {found:,}"
            )
