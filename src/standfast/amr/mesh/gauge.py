"""A tree whose blocks have links: the gauge field of a lattice theory."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, Final, Literal, Self

import numpy as np

from standfast.amr.mesh.block_list import Indices, Records
from standfast.amr.mesh.frontends import GaugeFrontend
from standfast.amr.mesh.morton import Words
from standfast.amr.mesh.tree import AMRTree
from standfast.errors import BadOption

if TYPE_CHECKING:
    from standfast.amr.mesh.arena import FieldArena
    from standfast.amr.sunc.checkpoint import TreeState

Links = np.ndarray[Any, np.dtype[np.complex128]]


@dataclass(frozen=True)
class LinkExchangeSpec:
    """Which links of other ranks' blocks a rank fetches; a choice of the program, never saved."""

    depth: int = 1
    """How many layers of sites around a block."""
    corners: bool = True
    """Whether those beyond its edges and corners too: loops around a plaquette turn there."""

    def __post_init__(self) -> None:
        if type(self.depth) is not int or self.depth < 0:
            raise BadOption(f"depth={self.depth!r}: it is a whole number of layers")
        if type(self.corners) is not bool:
            raise BadOption(f"corners={self.corners!r}: it is True or False")


DEFAULT_EXCHANGE: Final = LinkExchangeSpec()


class GaugeTree(AMRTree):
    """A tree with a link for each site and dimension of each block.

    A block's links are identities until they are set; those of a dead block stay with it.

    >>> tree = GaugeTree(frontend, base_spacing=1.0, bits_per_dim=4, max_level=0)
    >>> tree.links[block] = links          # [site · nd + dimension, N, N]
    """

    frontend: GaugeFrontend  # type: ignore[misc]

    def __init__(
        self, frontend: GaugeFrontend, base_spacing: float, bits_per_dim: int, max_level: int
    ) -> None:
        if not isinstance(frontend, GaugeFrontend):
            raise BadOption(f"a GaugeTree has a GaugeFrontend, not a {type(frontend).__name__}")
        super().__init__(frontend, base_spacing, bits_per_dim, max_level)
        self._links = np.zeros((0, *frontend.link_shape), np.complex128)
        self.link_exchange_spec = DEFAULT_EXCHANGE

    @classmethod
    def restored(
        cls,
        frontend: GaugeFrontend,
        base_spacing: float,
        bits_per_dim: int,
        max_level: int,
        blocks: Records,
        field_slots: Words,
        links: Links | None = None,
    ) -> Self:
        """A tree of saved blocks and links, which were checked before; all become its own.

        Without links they are identities.
        """
        tree = super().restored(
            frontend, base_spacing, bits_per_dim, max_level, blocks, field_slots
        )
        if links is None:
            links = np.empty((len(blocks), *frontend.link_shape), np.complex128)
            links[:] = np.eye(frontend.n_gauge)
        tree._links = links
        return tree

    @property
    def links(self) -> Links:
        """The links of all blocks, dead ones too, [block, site · nd + dimension, N, N]."""
        return self._links[: len(self)]

    def _make_room(self, count: int) -> None:
        if count > len(self._links):
            room = max(4, count, 2 * len(self))
            links = np.zeros((room, *self.frontend.link_shape), np.complex128)
            links[: len(self)] = self.links
            self._links = links

    def _appended(self, first: int) -> None:
        self.links[first:] = np.eye(self.frontend.n_gauge)

    def _reordered(self, order: Indices) -> None:
        self._links = self._links[order]

    # Checkpoints: a `.sunc` with the links behind the payload; see docs/amr.md

    def write_checkpoint(self, arena: FieldArena, stream: BinaryIO) -> None:
        """Write the tree, its links and the arena to a stream."""
        from standfast.amr.sunc.checkpoint import write
        from standfast.amr.sunc.sections import check_stream

        check_stream(stream, "write")
        write(self, arena, stream)

    def write_checkpoint_to_file(
        self, arena: FieldArena, path: str | os.PathLike[str], *, extras: bool = False
    ) -> None:
        """Write a file; when this returns it is durable, and until then the old one stands.

        `extras=True` adds digests, which the original does not look at.
        """
        from standfast.amr.sunc.checkpoint import write
        from standfast.amr.sunc.sections import path_of

        write(self, arena, path_of(path), extras=extras)

    @classmethod
    def read_checkpoint(cls, stream: BinaryIO, *, frontend: GaugeFrontend) -> TreeState[Self]:
        """The tree and the arena in a stream, which is left right behind the links."""
        return cls.read_checkpoint_with_options(stream, frontend=frontend)

    @classmethod
    def read_checkpoint_with_options(
        cls,
        stream: BinaryIO,
        *,
        frontend: GaugeFrontend,
        link_exchange_spec: LinkExchangeSpec = DEFAULT_EXCHANGE,
    ) -> TreeState[Self]:
        """As `read_checkpoint`, of a tree that exchanges its links in another way."""
        from standfast.amr.sunc.checkpoint import read_gauge_tree
        from standfast.amr.sunc.sections import StreamSections

        if not isinstance(link_exchange_spec, LinkExchangeSpec):
            raise BadOption(f"link_exchange_spec={link_exchange_spec!r}: give a LinkExchangeSpec")
        state = read_gauge_tree(cls, StreamSections(stream), frontend)
        state.tree.link_exchange_spec = link_exchange_spec
        return state

    @classmethod
    def read_checkpoint_from_file(
        cls,
        path: str | os.PathLike[str],
        *,
        frontend: GaugeFrontend,
        verify: bool | Literal["require"] = True,
    ) -> TreeState[Self]:
        """The tree and the arena in a file; `verify` is that of `TreeCheckpoint`."""
        from standfast.amr.sunc.checkpoint import read_gauge_tree
        from standfast.amr.sunc.sections import FileSections

        with FileSections(path, verify) as sections:
            return read_gauge_tree(cls, sections, frontend)
