"""Checkpoints of trees in streams and files: the same state, bit for bit, or an error."""

import io
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import amr, errors
from standfast.errors import BadOption
from standfast.parallel import SingleRank
from tests import GOLDEN
from tests.amr.tree_states import (
    MIXED,
    SCALAR,
    SU2,
    U1,
    VECTOR,
    golden,
    golden_channel,
    golden_scalar,
    golden_u1,
    loaded,
    saved,
    worn,
)
from tests.kit.rank_threads import on_threads


class Trickle:
    """A stream that gives at most `most` bytes at a time, and can do nothing but read."""

    def __init__(self, data: bytes, most: int) -> None:
        self._rest = io.BytesIO(data)
        self._most = most
        self.largest = 0
        """The most that was asked for at once."""

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "whoever asks for everything reads too far"
        self.largest = max(self.largest, size)
        return self._rest.read(min(size, self._most))


KINDS = ["scalar", "vector", "u1", "su2"]
TORUS = amr.PeriodicTopology(2, (4.0, 4.0))


def payload_size(data: bytes) -> int:
    """Where the payload of a checkpoint ends, by its header."""
    volume, block, field, _, blocks, slots, arena = struct.unpack_from("<QIIIQQQ", data, 14)
    return int(92 + blocks * block + slots * 8 + arena * volume * field + arena * 8)


Read = Callable[..., Any]


@pytest.fixture(params=["stream", "file"])
def read(request: pytest.FixtureRequest, tmp_path: Path) -> Read:
    """Reads bytes as a checkpoint, out of a stream or out of a file, of a gauge tree if told."""

    def read(data: bytes, frontend: Any = SCALAR, gauge: bool = False) -> Any:
        stream, path = io.BytesIO(data), tmp_path / "state.sunc"
        if request.param == "stream" and gauge:
            return amr.GaugeTree.read_checkpoint(stream, frontend=frontend)
        if request.param == "stream":
            return amr.TreeCheckpoint(frontend).read(stream)
        path.write_bytes(data)
        if gauge:
            return amr.GaugeTree.read_checkpoint_from_file(path, frontend=frontend)
        return amr.TreeCheckpoint(frontend).read_from_file(path)

    return read


@pytest.mark.parametrize("kind", KINDS)
def test_saved_loaded_and_saved_again_gives_the_same_bytes(kind):
    tree, arena = worn(kind)
    for change in (lambda: None, tree.reorder, lambda: arena.defragment(tree), arena.grow):
        change()
        data = saved(tree, arena)
        state = loaded(data, tree)
        assert type(state.tree) is type(tree)
        assert saved(state.tree, state.arena) == data
        blocks = tree.blocks[tree.live]
        places = list(zip(blocks["origin"].tolist(), blocks["level"].tolist(), strict=True))
        assert [state.tree.find(*place) for place in places] == tree.live.tolist()


@pytest.mark.parametrize("dtype", "float64 float32 float16 complex128 complex64 int8 u8 u1".split())
def test_fields_of_any_dtype_come_back(dtype):
    frontend = amr.ScalarFrontend(1, 4, amr.OpenTopology(1, (8.0,)), dtype)
    tree, arena = amr.AMRTree(frontend, 1.0, 4, 2), amr.FieldArena(frontend, 3)
    tree.insert_block_with_field((4,), 0, arena)
    random = np.random.default_rng(0)
    bits = random.integers(0, 256, arena.storage.nbytes, np.uint8)  # not a number, among others
    arena.storage[:] = bits.view(dtype).reshape(arena.storage.shape)
    state = loaded(saved(tree, arena), tree)
    assert state.arena.storage.dtype == arena.storage.dtype
    assert state.arena.storage.shape == arena.storage.shape
    assert state.arena.storage.tobytes() == arena.storage.tobytes()


@pytest.mark.parametrize("kind", [amr.AMRTree, amr.GaugeTree])
@pytest.mark.parametrize("slots", [0, 2])
def test_an_empty_tree_comes_back(kind, slots, read):
    data = saved(kind(SU2, 1.0, 4, 2), amr.FieldArena(SU2, slots))
    state = read(data, SU2, gauge=kind is amr.GaugeTree)
    assert (len(state.tree), state.arena.max_blocks) == (0, slots)
    assert saved(state.tree, state.arena) == data
    assert len(read(data, SU2).tree) == 0


def test_what_is_read_is_aligned_and_may_be_changed(read, tmp_path):
    data = saved(*worn("u1"))
    state = read(data, U1, gauge=True)
    parts = (state.tree.blocks, state.tree.field_slots, state.tree.links)
    for array in (*parts, state.arena.storage, state.arena.free_slots):
        assert array.flags.aligned
        array[:1] = np.zeros((), array.dtype)
    for path in tmp_path.iterdir():
        assert path.read_bytes() == data


def test_padding_means_nothing_and_is_written_as_zeros(read):
    data = saved(*worn())
    padded = bytearray(data)
    padded[92 + 33 : 92 + 40] = b"padding"
    state = read(bytes(padded))
    assert saved(state.tree, state.arena) == data


@pytest.mark.parametrize("most", [1, 7, 4096])
@pytest.mark.parametrize("kind", KINDS)
def test_streams_that_give_little_are_read_exactly_to_the_end_of_the_state(kind, most):
    tree, arena = worn(kind)
    data = saved(tree, arena)
    stream: Any = Trickle(data + data + b"rest", most)
    for _ in range(2):
        if isinstance(tree, amr.GaugeTree):
            state: Any = amr.GaugeTree.read_checkpoint(stream, frontend=tree.frontend)
        else:
            state = amr.TreeCheckpoint(tree.frontend).read(stream)
        assert saved(state.tree, state.arena) == data
    assert stream.read(9) == b"rest"[:most]


def test_a_stream_may_be_one_that_takes_little_and_can_only_be_written():
    class Sink:
        data = b""

        def write(self, data: Any) -> int:
            self.data += bytes(data[:100])
            return len(data[:100])

    tree, arena = worn()
    sink: Any = Sink()
    amr.TreeCheckpoint(SCALAR).write(tree, arena, sink)
    assert sink.data == saved(tree, arena)


def test_paths_are_for_the_functions_with_file_in_their_name_and_streams_for_the_others(tmp_path):
    (tree, arena), path, stream = worn("u1"), tmp_path / "a.sunc", io.BytesIO()
    checkpoint, like = amr.TreeCheckpoint(tree.frontend), {"frontend": tree.frontend}
    path.write_bytes(b"old")
    streams: list[Any] = [
        *(lambda to: tree.write_checkpoint(arena, to), checkpoint.read),
        lambda source: amr.GaugeTree.read_checkpoint(source, **like),
    ]
    paths: list[Any] = [
        *(lambda to: tree.write_checkpoint_to_file(arena, to), checkpoint.read_from_file),
        lambda source: amr.GaugeTree.read_checkpoint_from_file(source, **like),
    ]
    for call, given in (
        *((call, given) for call in streams for given in (path, str(path))),
        *((call, given) for call in paths for given in (stream, b"a.sunc", 3)),
    ):
        with pytest.raises(errors.BadOption):
            call(given)
    assert (path.read_bytes(), stream.getvalue()) == (b"old", b"")


def test_a_tree_checkpoint_stops_before_the_links(read):
    tree, arena = worn("u1")
    data = saved(tree, arena)
    state = read(data, U1)
    assert type(state.tree) is amr.AMRTree
    assert saved(state.tree, state.arena) == data[: payload_size(data)]
    stream = io.BytesIO(data)
    amr.TreeCheckpoint(U1).read(stream)
    assert stream.read(4) == b"LINK"


@pytest.mark.parametrize("kind", ["scalar", "u1"])
def test_a_stream_that_ends_anywhere_is_truncated(kind):
    tree, arena = worn(kind)
    data = saved(tree, arena)
    end = payload_size(data)
    cuts = {*range(93), *range(93, len(data), 97), *range(end - 3, end), *range(end + 1, end + 24)}
    for cut in sorted(cut for cut in cuts if cut < len(data)):
        with pytest.raises(errors.TruncatedFile):
            loaded(data[:cut], tree)


def test_memory_grows_with_what_has_come_and_not_with_what_is_claimed():
    data = bytearray(saved(*worn()))
    struct.pack_into("<QQQQ", data, 34, 2**30, 2**30, 2**40, 0)
    stream: Any = Trickle(bytes(data), 1 << 20)
    tracemalloc.start()
    try:
        with pytest.raises(errors.TruncatedFile, match="blocks"):
            amr.TreeCheckpoint(SCALAR).read(stream)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert stream.largest <= 16 << 20


def test_options_are_kept_on_the_tree_and_never_saved():
    tree, arena = worn("u1")
    data, spec = saved(tree, arena), amr.LinkExchangeSpec(depth=2, corners=False)
    state = amr.GaugeTree.read_checkpoint_with_options(
        io.BytesIO(data), frontend=U1, link_exchange_spec=spec
    )
    assert state.tree.link_exchange_spec == spec
    assert saved(state.tree, state.arena) == data
    assert loaded(data, tree).tree.link_exchange_spec == amr.LinkExchangeSpec()


@pytest.mark.parametrize("rest", [b"", b"SUNC", b"other things"])
def test_a_checkpoint_without_links_is_not_one_of_a_gauge_tree(rest, read):
    data = saved(*worn("u1"))
    with pytest.raises(errors.IncompatibleCheckpoint, match="LINK"):
        read(data[: payload_size(data)] + rest, U1, gauge=True)


def test_links_of_another_group_are_seen_in_a_file(tmp_path):
    (tmp_path / "state.sunc").write_bytes(saved(*worn("su2")))
    lookalike = amr.GaugeFrontend(1, 2, 2, 4, TORUS)  # its fields are as large
    assert lookalike.field_bytes == SU2.field_bytes
    with pytest.raises(errors.IncompatibleCheckpoint, match="n_gauge"):
        amr.GaugeTree.read_checkpoint_from_file(tmp_path / "state.sunc", frontend=lookalike)


@pytest.mark.parametrize(("at", "name"), [(4, "num_blocks"), (12, "links_per_block")])
def test_links_are_counted_as_the_tree_says(at, name, read):
    data = bytearray(saved(*worn("u1")))
    struct.pack_into("<Q", data, payload_size(data) + at, 1)
    with pytest.raises(errors.BadField, match=name):
        read(bytes(data), U1, gauge=True)


def test_a_file_has_no_digests_unless_they_are_asked_for(tmp_path):
    tree, arena = worn()
    path = tmp_path / "state.sunc"
    checkpoint = amr.TreeCheckpoint(SCALAR)
    checkpoint.write_to_file(tree, arena, path)
    assert path.read_bytes() == saved(tree, arena)
    with pytest.raises(errors.NothingToVerify, match="extras=True"):
        checkpoint.read_from_file(path, verify="require")
    for wrong in ("Require", "", "False", None, 1):
        with pytest.raises(errors.BadOption, match="verify="):
            checkpoint.read_from_file(path, verify=wrong)  # type: ignore[arg-type]
    checkpoint.write_to_file(tree, arena, path, extras=True)
    assert path.read_bytes().startswith(saved(tree, arena) + b"HFDG")
    state = checkpoint.read_from_file(path, verify="require")
    assert saved(state.tree, state.arena) == saved(tree, arena)
    standfast.save(tmp_path / "model.safetensors", {"a": np.zeros(3)})
    with pytest.raises(errors.BadHeader, match="safetensors"):
        checkpoint.read_from_file(tmp_path / "model.safetensors")


def test_a_refused_write_leaves_the_old_file(tmp_path):
    tree, arena = worn()
    path = tmp_path / "state.sunc"
    amr.TreeCheckpoint(SCALAR).write_to_file(tree, arena, path)
    before = path.read_bytes()
    arena.free(int(tree.field_slots[0]))
    with pytest.raises(errors.BadBlock, match="field_slots"):
        amr.TreeCheckpoint(SCALAR).write_to_file(tree, arena, path)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["state.sunc"]


def test_a_file_is_written_and_read_without_copies_of_the_fields(tmp_path):
    frontend = amr.ScalarFrontend(2, 64, amr.OpenTopology(2, (64.0, 64.0)))
    tree, arena = amr.AMRTree(frontend, 1.0, 4, 2), amr.FieldArena(frontend, 1000)
    tree.insert_block_with_field((0, 0), 0, arena)
    arena.storage[:] = 1.0
    size = arena.storage.nbytes
    path = tmp_path / "state.sunc"
    tracemalloc.start()
    try:
        amr.TreeCheckpoint(frontend).write_to_file(tree, arena, path)
        assert tracemalloc.get_traced_memory()[1] < size // 2
        tracemalloc.reset_peak()
        state = amr.TreeCheckpoint(frontend).read_from_file(path)
        assert size <= tracemalloc.get_traced_memory()[1] < 1.5 * size
    finally:
        tracemalloc.stop()
    assert np.array_equal(state.arena.storage, arena.storage)


BOX = amr.OpenTopology(2, (8.0, 8.0))
OTHERS: dict[str, Any] = {
    "nd": amr.ScalarFrontend(3, 4, amr.OpenTopology(3, (8.0,) * 3)),
    "block_size": amr.ScalarFrontend(2, 8, BOX),
    "field_bytes.*4": amr.ScalarFrontend(2, 4, BOX, np.float32),
    "field_bytes.*16": U1,
}


@pytest.mark.parametrize("name", OTHERS)
def test_a_state_of_another_kind_of_tree_is_incompatible(name, read):
    data = saved(*worn())
    with pytest.raises(errors.IncompatibleCheckpoint, match=name):
        read(data, OTHERS[name])
    stream = io.BytesIO(data)
    with pytest.raises(errors.IncompatibleCheckpoint):
        amr.TreeCheckpoint(OTHERS[name]).read(stream)
    assert stream.tell() == 92  # nothing but the header was read


HEADERS: dict[str, tuple[int, str, Any, type[errors.StandfastError]]] = {
    "InvalidMagic": (0, "4s", b"CNUS", errors.BadHeader),
    "UnsupportedVersion": (4, "I", 3, errors.UnsupportedFile),
    "UnsupportedEndian": (8, "B", 2, errors.UnsupportedFile),
    "IncompatibleCheckpoint of block_volume": (14, "Q", 15, errors.BadField),
    "IncompatibleCheckpoint of usize_bytes": (30, "I", 4, errors.UnsupportedFile),
    "InvalidTreeLayout": (42, "Q", 1, errors.BadField),
    "CorruptCheckpoint": (58, "Q", 99, errors.BadField),
    "LengthOverflow": (50, "Q", 2**63, errors.LimitExceeded),
    "bits_per_dim": (74, "B", 29, errors.BadField),
    "base_spacing": (66, "d", -0.5, errors.BadField),
    "unsound": (92 + 40 * len(worn()[0]), "Q", int(worn()[1].free_slots[0]), errors.BadRange),
}


@pytest.mark.parametrize("name", HEADERS)
def test_the_errors_of_the_original_have_names_of_ours(name, read):
    offset, letter, value, error = HEADERS[name]
    data = bytearray(saved(*worn()))
    struct.pack_into(f"<{letter}", data, offset, value)
    with pytest.raises(error, match=r"state\.sunc|stream") as caught:
        read(bytes(data))
    assert type(caught.value) is error
    assert str(caught.value).count("state.sunc") <= 1


def test_a_tree_of_another_kind_is_not_written(tmp_path):
    (tree, arena), other = worn(), amr.ScalarFrontend(2, 4, amr.OpenTopology(2, (8.0, 8.0)))
    path, gauge = tmp_path / "state.sunc", worn("u1")
    for write in (
        lambda: amr.TreeCheckpoint(other).write_to_file(tree, arena, path),
        lambda: amr.TreeCheckpoint(SCALAR).write_to_file(tree, amr.FieldArena(other, 15), path),
        lambda: amr.TreeCheckpoint(U1).write_to_file(*gauge, path),  # which would have no links
        lambda: amr.TreeCheckpoint(U1).write(*gauge, io.BytesIO()),
    ):
        with pytest.raises(errors.BadOption):
            write()
    assert list(tmp_path.iterdir()) == []


STATES: dict[str, Callable[[], Any]] = {
    "sunc_scalar_2d": golden_scalar,
    "sunc_u1_2d": golden_u1,
    "sunc_mixed_2d": lambda: golden_channel(MIXED, False),
    "sunc_vector_2d": lambda: golden_channel(VECTOR, True),
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_built_by_operations_gives_the_golden_bytes_and_comes_back(name):
    tree, arena = STATES[name]()
    assert saved(tree, arena) == golden(name)
    state = loaded(golden(name), tree)
    assert state.arena.storage.shape == arena.storage.shape
    assert saved(state.tree, state.arena) == golden(name)


def test_ghosts_of_a_channel_are_those_of_the_first_implementation():
    """The original leaves ghosts beyond a wall as they were, here zero."""
    state = amr.TreeCheckpoint(MIXED).read(io.BytesIO(golden("sunc_mixed_2d")))
    ghosts = state.tree.fill_ghosts(state.arena)
    assert ghosts.layers.tobytes() == (GOLDEN / "sunc_mixed_2d.ghosts").read_bytes()
    assert (
        ghosts.valid.tolist() == [[True, True, True, False]] * 2 + [[True, True, False, True]] * 2
    )


def test_ghosts_of_vectors_are_those_of_the_first_implementation_between_equal_levels():
    state = amr.TreeCheckpoint(VECTOR).read(io.BytesIO(golden("sunc_vector_2d")))
    ghosts = state.tree.fill_ghosts(state.arena)
    data = (GOLDEN / "sunc_vector_2d.ghosts").read_bytes()
    theirs = np.frombuffer(data).reshape(ghosts.layers.shape)
    levels = state.tree.blocks["level"][state.tree.live]
    equal = [(0, 0), (0, 1), (0, 2), (3, 0), (3, 2), (4, 1), (4, 2), (5, 0), (5, 3), (6, 1), (6, 3)]
    assert levels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    for row, face in equal:
        assert ghosts.layers[row, face].tobytes() == theirs[row, face].tobytes()


def test_paths_are_the_originals():
    assert amr.format_path("checkpoints", "run", 100) == "checkpoints/run_step100.sunc"
    assert (
        amr.format_ranked_path("checkpoints", "run", 100, 0) == "checkpoints/run_step100_rank0.sunc"
    )
    assert amr.format_ranked_path(Path("a/b"), "x", 7, 12) == "a/b/x_step7_rank12.sunc"


@pytest.mark.parametrize("step", [-1, 1.0, "1", None, True, 2**64])
def test_a_step_and_a_rank_are_whole_numbers(step):
    with pytest.raises(BadOption, match="step="):
        amr.format_path("checkpoints", "run", step)
    with pytest.raises(BadOption, match="rank="):
        amr.format_ranked_path("checkpoints", "run", 0, step)
    for prefix in (f"..{os.sep}run", "/run", "a\0b", 3):
        with pytest.raises(BadOption, match="prefix="):
            amr.format_path("checkpoints", prefix, 1)


@pytest.mark.parametrize("strict", [False, True])
def test_the_step_decides_whether_a_checkpoint_is_due(strict):
    schedule = amr.Schedule(100, start=0)
    assert schedule.should_checkpoint(amr.broadcast_checkpoint_step(None, 0, 300, strict=strict))
    assert not schedule.should_checkpoint(amr.broadcast_checkpoint_step(SingleRank(), 0, 301))
    with pytest.raises(BadOption, match="step="):
        amr.broadcast_checkpoint_step(None, 0, -5, strict=strict)
    with pytest.raises(BadOption, match="1"):
        amr.broadcast_checkpoint_step(None, 1, 5, strict=strict)


def test_each_rank_writes_its_own_file_and_rebuilds_the_shard_after_a_restart(tmp_path):

    def program(comm: Any) -> None:
        tree, arena = amr.AMRTree(VECTOR, 1.0, 4, 8), amr.FieldArena(VECTOR, 4)
        block = tree.insert_block_with_field((4 * comm.rank, 0), 0, arena)
        arena.storage[tree.field_slots[block]] = 10_000.0 * comm.rank + 0.5
        tree.attach_shard(amr.ShardContext.from_tree(tree, comm, "morton_contiguous"))
        before = tree.fill_ghosts(arena).layers.tobytes()

        step = amr.broadcast_checkpoint_step(comm, 0, 300 + comm.rank)
        assert amr.Schedule(100, start=0).should_checkpoint(step)
        checkpoint = amr.TreeCheckpoint(VECTOR)
        path = amr.format_ranked_path(tmp_path, "run", step, comm.rank)
        checkpoint.write_to_file(tree, arena, path)

        state = checkpoint.read_from_file(path)
        shard = amr.ShardContext.from_tree(state.tree, comm, "morton_contiguous")
        state.tree.attach_shard(shard)
        assert state.tree.fill_ghosts(state.arena).layers.tobytes() == before

    on_threads(2, program)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run_step300_rank0.sunc",
        "run_step300_rank1.sunc",
    ]
