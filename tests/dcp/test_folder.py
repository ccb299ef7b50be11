"""Folders that torch.distributed.checkpoint wrote, on four ranks or on one, come back in full.

As a program, this file is the four ranks: `python -m tests.dcp.test_folder FOLDER`.
"""

from __future__ import annotations

import dataclasses
import os
import pickle
import random
import re
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._extension import StreamTransformExtension
from torch.distributed.checkpoint.filesystem import SerializationFormat
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.utils._pytree import tree_map

from standfast import errors
from standfast.dcp.boxes import check_filled
from standfast.dcp.folder import folder as dcp_folders
from standfast.dcp.folder.folder import DCPFolder
from standfast.tensors import TensorSpec
from standfast.tensors.shards import Box
from tests import ROOT
from tests.kit.process import open_files
from tests.kit.stores import flip, same
from tests.parallel.programs import torch_world
from tests.training.programs.sharded_jobs import on_forks

RANKS = 4
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def save_on_ranks(folder: Path) -> None:
    """Four processes save one state into `folder`, and what it is as a whole beside it."""
    codes = on_forks(RANKS, folder.with_name("meeting"), lambda rank: _save_on_rank(rank, folder))
    sys.exit(codes != [0] * RANKS)


def _save_on_rank(rank: int, folder: Path) -> None:
    torch.set_num_threads(1)
    torch_world.begin()
    state = _sharded_state()
    dcp.save(state, checkpoint_id=folder)
    # All ranks gather what is whole.
    whole = tree_map(lambda leaf: leaf.full_tensor() if isinstance(leaf, DTensor) else leaf, state)
    if rank == 0:
        torch.save(whole, f"{folder}.pt")
    dist.barrier()
    dist.destroy_process_group()


def _sharded_state() -> dict[str, Any]:
    line = init_device_mesh("cpu", (RANKS,))
    grid = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(7, 5), torch.nn.Linear(5, 3), torch.nn.LayerNorm(3))
    fully_shard(model[0], mesh=line)
    fully_shard(model, mesh=line)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for _ in range(2):
        model(torch.randn(4, 7)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    weights, moments = get_state_dict(model, optimizer)
    return {
        "model": dict(weights),
        "optimizer": moments,
        "tensors": {
            "rows": distribute_tensor(torch.randn(6, 5), line, [Shard(0)]),
            "columns": distribute_tensor(torch.randn(3, 10), line, [Shard(1)]),
            "blocks": distribute_tensor(torch.randn(5, 7), grid, [Shard(0), Shard(1)]),
            "halves": distribute_tensor(torch.randn(9, 2), grid, [Replicate(), Shard(0)]),
            "copies": distribute_tensor(torch.randn(4), line, [Replicate()]),
            "few": distribute_tensor(torch.randn(2, 3), line, [Shard(0)]),
            "brief": distribute_tensor(torch.randn(5, 3).bfloat16(), line, [Shard(0)]),
            "turned": torch.arange(12.0).reshape(3, 4).t(),
            "whole": torch.arange(7),
        },
        "values": {"step": 7, "name": "run", "betas": (0.9, 0.99), "none": None, "flags": [True]},
    }


@pytest.fixture(scope="module")
def four_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks") / "checkpoint"
    command = [sys.executable, "-W", "ignore", "-m", __name__, str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120)
    return folder


def test_the_state_of_four_ranks_comes_back_bit_for_bit(four_ranks):
    expected = torch.load(f"{four_ranks}.pt", weights_only=True)
    assert expected["optimizer"]["state"]["0.weight"]["step"].item() == 2
    with pytest.warns(errors.NotVerified, match="CRC-32"):
        assert same(dcp_folders.read(four_ranks), expected)
    with pytest.warns(errors.NotVerified):
        assert same(dcp_folders.read(four_ranks, verify=False, mapped=False), expected)


def test_a_folder_tells_its_names_specs_and_values(four_ranks):
    with DCPFolder(four_ranks) as folder:
        assert folder.names[:2] == ["model.0.weight", "model.0.bias"]
        assert folder.specs["tensors.blocks"] == TensorSpec("float32", (5, 7))
        assert folder.specs["tensors.brief"] == TensorSpec("bfloat16", (5, 3))
        assert list(folder.specs) == folder.names
        assert folder.values["values.betas"] == (0.9, 0.99)
        assert not folder.values.keys() & set(folder.names)
        for offsets, shape in [((0,), (1,)), ((0, 0), (6, 7)), ((-1, 0), (1, 1)), ((0, 5), (1, 3))]:
            with pytest.raises(errors.BadIndex, match=r"tensors\.blocks"):
                folder.box("tensors.blocks", Box(offsets, shape))
        with pytest.raises(errors.TensorNotFound, match=r"tensors\.block"):
            folder.tensor("tensors.block")
    with pytest.raises(errors.ClosedFile):
        folder.tensor("tensors.blocks")
    with pytest.raises(errors.BadOption, match="verify"):
        DCPFolder(four_ranks, verify="require")  # type: ignore[arg-type]


def test_few_files_are_open_at_once(four_ranks, seams):
    seams.bound("open items", 1)
    expected = torch.load(f"{four_ranks}.pt", weights_only=True)
    with DCPFolder(four_ranks, mapped=False) as folder:
        for name in ("blocks", "columns", "rows"):
            assert same(folder.tensor(f"tensors.{name}"), expected["tensors"][name])
            assert len(open_files(four_ranks)) in (1, 2)  # one, and its direct twin
    assert open_files(four_ranks) == []


BOXES = {
    "tensors.blocks": [((0, 0), (5, 7)), ((2, 3), (2, 2)), ((4, 0), (1, 4)), ((0, 6), (3, 1))],
    "tensors.columns": [((1, 2), (2, 5)), ((0, 9), (3, 1)), ((0, 0), (1, 1)), ((3, 10), (0, 0))],
    "tensors.few": [((0, 1), (2, 2)), ((1, 0), (1, 3)), ((2, 0), (0, 3))],
    "tensors.turned": [((1, 1), (3, 2))],
    "tensors.brief": [((1, 0), (3, 2))],
    "optimizer.state.0.weight.step": [((), ())],
}


@pytest.mark.parametrize("name", BOXES)
def test_a_box_reads_the_items_that_it_touches_and_no_others(name, four_ranks):
    def read(box: Box) -> Any:
        with DCPFolder(four_ranks) as folder:
            return folder.box(name, box)

    described = pickle.loads((four_ranks / ".metadata").read_bytes())
    with DCPFolder(four_ranks) as folder:
        whole = folder.tensor(name)
    for offsets, shape in BOXES[name]:
        index = tuple(slice(a, a + n) for a, n in zip(offsets, shape, strict=True))
        box, expected = Box(offsets, shape), whole[index].contiguous()
        assert same(read(box), expected)
        for chunk in described.state_dict_metadata[name].chunks:
            ends = zip(offsets, shape, chunk.offsets, chunk.sizes, strict=True)
            info = described.storage_data[MetadataIndex(name, chunk.offsets)]
            path, start = four_ranks / info.relative_path, info.offset + info.length // 2
            before = path.read_bytes()
            path.write_bytes(before[:start] + bytes(64 * [255]) + before[start + 64 :])
            if all(max(a, b) < min(a + n, b + m) for a, n, b, m in ends):
                with pytest.raises(errors.StandfastError):
                    read(box)
            else:
                assert same(read(box), expected)
            path.write_bytes(before)


def test_a_mapped_chunk_is_not_copied_for_the_sake_of_a_box(tmp_path):
    weight = torch.arange(4_000_000, dtype=torch.float32).reshape(4000, 1000)
    path = save({"step": 1, "weight": weight}, tmp_path / "checkpoint")
    with DCPFolder(path, verify=False, mapped=True) as folder:
        assert folder.box("weight", Box((3, 2), (1, 2))).tolist() == [[3002, 3003]]
        tracemalloc.start()
        try:
            folder.box("weight", Box((2000, 2), (1, 2)))
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()


def test_neither_torch_nor_a_process_group_is_needed(four_ranks):
    program = """if True:
        import sys
        sys.modules["torch"] = None
        from standfast.dcp.folder.folder import DCPFolder
        with DCPFolder(sys.argv[1], framework="numpy") as folder:
            print(folder.tree()["tensors"]["rows"].tobytes().hex())
    """
    command = [sys.executable, "-c", program, str(four_ranks)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr
    rows = torch.load(f"{four_ranks}.pt", weights_only=True)["tensors"]["rows"]
    assert ran.stdout.split() == [rows.numpy().tobytes().hex()]


def save(state: dict[str, Any], folder: Path, **options: Any) -> Path:
    """A folder that one process writes."""
    planner = options.pop("planner", None)
    writer = dcp.FileSystemWriter(folder, sync_files=False, **options)
    dcp.save(state, storage_writer=writer, planner=planner)
    return folder


def some_state() -> dict[str, Any]:
    """Small, and with names of at least two parts: no byte of `.metadata` renames a leaf."""
    torch.manual_seed(5)
    return {
        "model": {"a": torch.randn(4, 3), "b": torch.randn(5).bfloat16()},
        "more": {"rate": 0.5, "list": [torch.arange(3), {"c": torch.tensor(True)}], "n": [1, 2]},
    }


DTYPES = [
    getattr(torch, name)
    for name in (
        "bool uint8 int8 int16 int32 int64 uint16 uint32 uint64 float16 bfloat16 float32 float64 "
        "complex64 complex128 float8_e4m3fn float8_e5m2"
    ).split()
]


@pytest.mark.parametrize(
    "options",
    [{}, {"thread_count": 2}, {"single_file_per_rank": False}],
    ids=["default", "threads", "many files"],
)
def test_every_dtype_and_shape_comes_back(options, tmp_path):
    data = torch.arange(96, dtype=torch.uint8)
    state = {
        "dtypes": {str(d): (data % 2 if d is torch.bool else data).view(d) for d in DTYPES},
        "empty": torch.zeros(0, 4),
        "number": torch.tensor(3.5),
        "ones": torch.ones(1, 1, 1, 1, 1),
        "expanded": torch.tensor([1.0, 2.0]).expand(3, 2),
        "part": torch.arange(100)[10:20:3],
        "grad": torch.nn.Parameter(torch.randn(3)),
    }
    folder = save(state, tmp_path / "checkpoint", **options)
    with DCPFolder(folder) as opened:
        tree = opened.tree()
        assert same(tree.pop("grad"), state.pop("grad").detach())
        assert same(tree, state)
        tree["number"].add_(1)  # what is handed out is the caller's
        assert opened.tensor("number").item() == 3.5


def test_pairs_of_float4_are_counted_one_by_one(tmp_path):
    pairs = torch.arange(12, dtype=torch.uint8).reshape(3, 4).view(torch.float4_e2m1fn_x2)
    with DCPFolder(save({"pairs": pairs}, tmp_path / "checkpoint")) as folder:
        assert folder.specs == {"pairs": TensorSpec("float4_e2m1fn", (3, 8))}
        found = folder.tensor("pairs")
        assert found.dtype == pairs.dtype
        assert torch.equal(found.view(torch.uint8), pairs.view(torch.uint8))
        part = folder.box("pairs", Box((1, 2), (2, 4))).view(torch.uint8)
        assert torch.equal(part, pairs.view(torch.uint8)[1:3, 1:3])
        with pytest.raises(errors.BadIndex, match="pairs"):
            folder.box("pairs", Box((1, 1), (2, 4)))


def test_the_tree_has_its_lists_again_and_is_flat_if_it_was(tmp_path):
    state = {
        "z": [torch.ones(1), {}, {"a": [torch.zeros(2), [torch.ones(3)]]}],
        "a": {"b": {"c": 1}, 5: torch.ones(2)},
        "nothing": {},
    }
    with DCPFolder(save(state, tmp_path / "nested")) as folder:
        expected = {"z": state["z"], "a": {"b": {"c": 1}, "5": torch.ones(2)}}
        assert same(folder.tree(), expected)
    planner = dcp.DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    flat = {"w": torch.ones(2), "rest": {1: [2, {"x": 3}]}}
    with DCPFolder(save(flat, tmp_path / "flat", planner=planner)) as folder:
        assert same(folder.tree(), flat)


def test_tensors_inside_of_values_share_what_they_shared(tmp_path):
    base = torch.arange(6.0)
    state = {"pair": (base, base[2:4], np.arange(3), torch.Size([2, 3]), torch.float16)}
    with DCPFolder(save(state, tmp_path / "checkpoint")) as folder:
        whole, part, array, size, dtype = folder.tree()["pair"]
    assert torch.equal(whole, base)
    whole[2] = 9
    assert part.tolist() == [9, 3]
    assert (array.tolist(), size, dtype) == ([0, 1, 2], (2, 3), "torch.float16")


class Config:
    """What no reader of data has."""


def test_an_object_is_refused_by_name_or_left_out(tmp_path):
    state = {"model": {"w": torch.ones(2)}, "config": Config(), "pair": (1, Config())}
    folder = save(state, tmp_path / "checkpoint")
    with DCPFolder(folder) as opened:
        assert opened.tensor("model.w").tolist() == [1, 1]
        with pytest.raises(errors.RefusedPickle, match="config"):
            opened.tree()
    with DCPFolder(folder, tensors_only=True) as opened:
        assert opened.tree()["model"]["w"].tolist() == [1, 1]
        assert opened.left_out == {"config": f"{__name__}.Config", "pair.1": f"{__name__}.Config"}


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(errors.MissingFile):
        DCPFolder(tmp_path)
    (tmp_path / "__0.metadata").touch()
    with pytest.raises(errors.UnsupportedFile, match="use_collectives"):
        DCPFolder(tmp_path)


class Flipped(StreamTransformExtension):
    """Stands for a compressor."""

    @staticmethod
    def from_descriptor(version: str) -> Flipped:
        return Flipped()

    @staticmethod
    def registry_name() -> str:
        return "stream.flipped"

    def get_descriptor(self) -> str:
        return "stream.flipped/1"

    def transform_to(self, output: IO[bytes]) -> IO[bytes]:
        return output

    def transform_from(self, input: IO[bytes]) -> IO[bytes]:
        return input


def test_other_ways_to_write_items_are_refused_by_name(tmp_path):
    state = some_state()
    transformed = save(state, tmp_path / "a", _extensions=[Flipped()])
    with pytest.raises(errors.UnsupportedFile, match=r"stream\.flipped/1"):
        DCPFolder(transformed)
    form = SerializationFormat.SAFETENSORS
    with pytest.raises(errors.UnsupportedFile, match="SAFETENSORS"):
        DCPFolder(save(state, tmp_path / "b", serialization_format=form))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save(some_state(), tmp_path / "checkpoint")


A, B, RATE = "model.a", "model.b", "more.rate"
FIRST, SECOND, LAST = MetadataIndex(A, (0, 0)), MetadataIndex(B, (0,)), MetadataIndex(RATE)


def cut(metadata: Any, *boxes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    """Have A in these chunks, each with an item, of which all but the first are B's."""
    found = metadata.state_dict_metadata[A].chunks
    found[:] = [
        dataclasses.replace(found[0], offsets=torch.Size(offsets), sizes=torch.Size(sizes))
        for offsets, sizes in boxes
    ]
    infos = [metadata.storage_data.pop(key) for key in (FIRST, SECOND)]
    for (offsets, _), info in zip(boxes, infos, strict=False):
        metadata.storage_data[MetadataIndex(A, offsets)] = info
    del metadata.state_dict_metadata[B], metadata.planner_data[B]


def move(metadata: Any, name: str, *path: Any) -> None:
    """Give RATE, a leaf, another name and place."""
    for kept in (metadata.state_dict_metadata, metadata.planner_data):
        kept[name] = kept.pop(RATE)
    metadata.planner_data[name] = path or tuple(name.split("."))
    metadata.storage_data[MetadataIndex(name)] = metadata.storage_data.pop(LAST)


FILES = ("../x", "/etc/passwd", "..\\x", "..", "", ".metadata", "a\0b", 5)
LIES = [
    *((f"item.relative_path = {name!r}", errors.BadField) for name in FILES),
    ("item.relative_path = '__9_0.distcp'", errors.MissingData),
    ("item.relative_path = 'ä' * 250", errors.MissingData),
    ("item.offset = -1", errors.BadField),
    ("item.length = 1 << 60", errors.LimitExceeded),
    ("item.offset = 1 << 40", errors.TruncatedFile),
    ("item.length = 47", errors.SizeMismatch),
    ("item.offset = items[SECOND].offset", errors.BadRange),
    ("items[FIRST], items[SECOND] = items[SECOND], items[FIRST]", errors.BadField),
    ("items[FIRST], items[LAST] = items[LAST], items[FIRST]", errors.BadField),
    ("items[MetadataIndex('x')] = item", errors.BadField),
    ("del items[LAST]", errors.BadField),
    ("a.size = torch.Size([5, 3])", errors.BadRange),
    ("a.size = torch.Size([3, 3])", errors.BadRange),
    ("a.size = torch.Size([12])", errors.BadRange),
    ("cut(m, ((0, 0), (3, 3)), ((2, 0), (2, 3)))", errors.BadRange),
    ("cut(m, ((0, 0), (1, 3)), ((2, 0), (2, 3)))", errors.BadRange),
    ("cut(m, ((0, 0), (4, 3)), ((0, 0), (4, 3)))", errors.DuplicateKey),
    ("a.chunks *= 100", errors.BadField),
    ("a.chunks.clear()", errors.BadRange),
    ("a.properties.layout = torch.sparse_coo", errors.UnsupportedFile),
    ("a.properties.dtype = torch.qint8", errors.UnsupportedFile),
    ("a.properties.dtype = torch.int32", errors.BadField),
    ("m.version = '2.0'", errors.UnsupportedFile),
    ("del paths[A]", errors.BadField),
    ("paths[A] = ('model', 'c')", errors.BadField),
    ("paths[A] = ('x' * 100_000,) * 99", errors.BadField),
    ("move(m, 'a' + '.a' * 100)", errors.LimitExceeded),
    ("move(m, 'model.a.x')", errors.BadField),
    ("move(m, 'model.0', 'model', 0)", errors.BadField),
    ("move(m, 'more.list.1000000000', 'more', 'list', 10**9)", errors.LimitExceeded),
    ("move(m, 'more.list.-1', 'more', 'list', -1)", errors.BadField),
    ("move(m, '0', 0)", errors.BadField),
    ("m = m.storage_meta", errors.BadField),
    ("m.storage_data = None", errors.BadField),
]
"""Statements that change the metadata `m`, and what it is refused with."""


@pytest.mark.parametrize(("lie", "error"), LIES, ids=[lie for lie, _ in LIES])
def test_metadata_that_lies_is_refused(lie, error, folder):
    path = folder / ".metadata"
    m = pickle.loads(path.read_bytes())
    a, items, paths = m.state_dict_metadata[A], m.storage_data, m.planner_data
    known = {**globals(), "m": m, "a": a, "items": items, "item": items[FIRST], "paths": paths}
    exec(lie, known)
    path.write_bytes(pickle.dumps(known["m"]))
    tracemalloc.start()
    try:
        with pytest.raises(error, match=re.escape(str(folder))) as caught:
            DCPFolder(folder).tree()
        assert tracemalloc.get_traced_memory()[1] < 4_000_000
    finally:
        tracemalloc.stop()
    assert type(caught.value) is error


class Call:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("where", ["metadata", "value"])
def test_no_name_is_called(where, folder, tmp_path):
    call, path = Call(tmp_path / "called"), folder / ".metadata"
    torch.save(call, folder / "other")
    metadata = pickle.loads(path.read_bytes())
    if where == "metadata":
        metadata.storage_meta.load_id = call
    info = metadata.storage_data[LAST]
    info.relative_path, info.offset, info.length = "other", 0, (folder / "other").stat().st_size
    path.write_bytes(pickle.dumps(metadata))
    with pytest.raises(errors.RefusedPickle, match=r"posix\.mkdir"):
        _ = DCPFolder(folder).values
    assert not (tmp_path / "called").exists()


def is_read(folder: Path) -> bool:
    """Whether a folder of `some_state()` comes back as it was; else it must be refused."""
    try:
        with DCPFolder(folder) as opened:
            assert same(opened.tree(), some_state())
    except errors.StandfastError:
        return False
    return True


def test_mutated_metadata_and_items_give_the_same_or_an_error(folder):
    path, draw, read = folder / ".metadata", random.Random(11), 0
    original = path.read_bytes()
    for number in range(400):
        mutated = bytearray(original)
        place = draw.randrange(len(mutated))
        match number % 4:
            case 0:
                mutated[place] ^= 1 << draw.randrange(8)
            case 1:
                mutated[place] = draw.randrange(256)
            case 2:
                del mutated[place : place + draw.randrange(1, 9)]
            case 3:
                start = draw.randrange(len(mutated))
                mutated[place:place] = mutated[start : start + draw.randrange(1, 40)]
        path.write_bytes(mutated)
        read += is_read(folder)
    assert 3 < read < 140  # the path and the id that were saved are for nobody
    path.write_bytes(original)
    items = folder / "__0_0.distcp"
    size = items.stat().st_size
    refused = 0
    for _ in range(60):
        place = draw.randrange(size)
        flip(items, place)
        refused += not is_read(folder)
        flip(items, place)
    assert refused > 30


def test_a_file_that_is_missing_or_cut_is_named(folder):
    data = folder / "__0_0.distcp"
    content = data.read_bytes()
    data.write_bytes(content[:-1])
    with pytest.raises(errors.TruncatedFile, match=r"__0_0\.distcp"):
        DCPFolder(folder)
    data.write_bytes(content + b"behind all items")
    with DCPFolder(folder) as opened:
        assert same(opened.tree(), some_state())
        data.unlink()
        assert same(opened.tensor(A), some_state()["model"]["a"])  # it is open
    with pytest.raises(errors.MissingData, match=r"__0_0\.distcp"):
        DCPFolder(folder)


@pytest.mark.parametrize("mapped", [True, False])
def test_a_flipped_bit_of_a_tensor_is_found(mapped, folder):
    data = folder / "__0_0.distcp"
    values = some_state()["model"]["a"].numpy().tobytes()
    content = bytearray(data.read_bytes())
    content[content.index(values) + 3] ^= 1
    data.write_bytes(content)
    with DCPFolder(folder, mapped=mapped) as opened:
        with pytest.raises(errors.DigestMismatch, match="verify=False") as caught:
            opened.tensor(A)
        assert caught.value.tensors == (A,)
        assert same(opened.tensor(B), some_state()["model"]["b"])
    with DCPFolder(folder, mapped=mapped, verify=False) as opened:
        assert opened.tensor(A).shape == (4, 3)


def test_boxes_fill_a_tensor_exactly_when_each_element_is_in_one():
    draw = random.Random(2)
    filled = 0
    for _ in range(1500):
        shape = tuple(draw.randrange(1, 4) for _ in range(draw.randrange(4)))
        boxes = [Box((0,) * len(shape), shape)]
        for _ in range(draw.randrange(5) if shape else 0):  # cut one of them in two
            box, axis = boxes.pop(draw.randrange(len(boxes))), draw.randrange(len(shape))
            middle = draw.randrange(box.shape[axis] + 1)
            for start, length in ((0, middle), (middle, box.shape[axis] - middle)):
                offsets, lengths = list(box.offsets), list(box.shape)
                offsets[axis], lengths[axis] = offsets[axis] + start, length
                boxes.append(Box(tuple(offsets), tuple(lengths)))
        if draw.random() < 0.6:  # and spoil it
            box = boxes.pop(draw.randrange(len(boxes)))
            for _ in range(draw.randrange(3)):
                offsets = [draw.randrange(n + 1) for n in shape]
                lengths = [draw.randrange(n - a + 1) for a, n in zip(offsets, shape, strict=True)]
                boxes.append(Box(tuple(offsets), tuple(lengths)))
        count = np.zeros(shape, int)
        for box in boxes:
            count[tuple(slice(a, a + n) for a, n in zip(*box, strict=True))] += 1
        try:
            check_filled(shape, boxes, "it")
            assert (count == 1).all()
            filled += 1
        except errors.BadRange:
            assert (count != 1).any()
    assert 250 < filled < 1250


def test_a_tensor_cut_along_too_many_dimensions_is_refused_at_once():
    shape = (2,) * 64
    halves = [Box((0,) * 64, (1,) * 64), Box((1,) * 64, (1,) * 64)]
    with pytest.raises(errors.LimitExceeded, match="64"):
        check_filled(shape, halves, "it")


if __name__ == "__main__":
    save_on_ranks(Path(sys.argv[1]))
