"""Trees of blocks as numbers for a picture, against the trees in memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import Store
from standfast.amr import AMRTree, FieldArena, OpenTopology, ScalarFrontend
from standfast.errors import BadOption, BlockNotFound, DamagedFile, DigestMismatch
from standfast.tensorfile.open import TensorFile
from standfast.web.mesh import blocks, field
from tests.amr.meshes import random_mesh
from tests.amr.saved_states import GAUGE, State, divided, empty, refined, save, snapshot
from tests.kit.cases import kept
from tests.kit.cli import flip


@pytest.fixture(params=kept(["file", "bare", "snapshot"], "file", "snapshot"))
def saved(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Saves a state as a file, with digests or without, or as a snapshot."""

    def put(state: State) -> Any:
        if request.param == "snapshot":
            return checkpoint(tmp_path, state)
        return TensorFile(save(tmp_path / "a.sunc", state, extras=request.param == "file"))

    return put


def checkpoint(folder: Path, *ranks: State) -> Any:
    store = Store(folder / "store")
    with store.run("heat") as run:
        return run.save(1, snapshot(*ranks))


def real(values: Any, component: int) -> Any:
    """One component of a field, as it is shown."""
    values = values.reshape(values.shape[0], -1)[:, component]
    return np.abs(values) if values.dtype.kind == "c" else values.astype(np.float64)


def check(found: dict[str, Any], state: State, component: int = 0) -> None:
    tree, arena = state
    size = tree.frontend.block_size
    assert found["blocks_total"] == len(found["blocks"]) == len(tree.live)
    places = {
        (int(tree.blocks[i]["level"]), tuple(tree.blocks[i]["origin"].tolist())): i
        for i in tree.live.tolist()
    }
    lows, highs = [], []
    for block in found["blocks"]:
        spacing = tree.spacing(block["level"])
        origin = tuple(round(x / spacing) for x in block["origin"])
        index = places.pop((block["level"], origin))
        assert block["origin"] == [x * spacing for x in origin]
        assert block["size"] == [size * spacing] * tree.frontend.nd
        values = real(arena.storage[int(tree.field_slots[index])], component)
        assert block["mean"] == pytest.approx(values.mean(), rel=1e-12)
        lows.append(values.min())
        highs.append(values.max())
    assert not places
    assert (found["field"]["min"], found["field"]["max"]) == (min(lows), max(highs))
    assert found["bounds"] == [
        [
            min(block["origin"][d] for block in found["blocks"]),
            max(block["origin"][d] + block["size"][d] for block in found["blocks"]),
        ]
        for d in range(tree.frontend.nd)
    ]
    json.dumps(found, allow_nan=False)


def test_blocks_have_the_places_and_means_of_the_tree(saved):
    state = refined()
    found = blocks(saved(state))
    check(found, state)
    assert (found["dims"], found["block_size"], found["ranks"]) == (2, 4, 1)
    assert found["bounds"] == [[0.0, 8.0], [0.0, 8.0]]
    assert [block["level"] for block in found["blocks"]] == [0, 0, 0, 1, 1, 1, 1]
    assert all(block["unitarity"] is None for block in found["blocks"])
    assert found["field"]["of"] == "value"


@pytest.mark.parametrize(
    "of",
    [
        {"nd": 1},
        {"nd": 3, "base": 2},
        {"nd": 4, "base": 2, "changes": 1},
        {"dtype": np.float32},
        {"gauge": 2, "base": 2},
    ],
)
def test_meshes_of_all_kinds_are_told_of(tmp_path, of):
    state = random_mesh(5, **of)
    check(blocks(checkpoint(tmp_path, state)), state)


def test_complex_fields_are_told_by_their_modulus_and_links_by_their_unitarity(saved):
    state = refined(GAUGE)
    tree, _ = state
    tree.links[3, 9] *= 2  # type: ignore[attr-defined]
    found = blocks(saved(state), component=1)
    check(found, state, 1)
    assert (found["field"]["of"], found["field"]["components"]) == ("modulus", 2)
    apart = {block["block"]: block["unitarity"] for block in found["blocks"]}
    assert apart.pop(tree.live.tolist().index(3)) == pytest.approx(3.0)
    assert max(apart.values()) < 1e-12


def test_the_trees_of_ranks_are_one_mesh(tmp_path):
    state = refined(GAUGE)
    found = blocks(checkpoint(tmp_path, *divided(state, 3)))
    check(found, state)
    assert (found["ranks"], {block["rank"] for block in found["blocks"]}) == (3, {0, 1, 2})


def test_the_sites_of_a_block_are_those_of_the_arena(saved):
    tree, arena = state = refined()
    what = saved(state)
    for block in blocks(what)["blocks"]:
        found = field(what, block["block"])
        index = int(tree.live[block["block"]])
        sites = arena.storage[int(tree.field_slots[index])].reshape(4, 4)
        assert found["values"] == sites.tolist()
        assert (found["rows"], found["columns"], found["plane"]) == (4, 4, [])
        assert {key: found[key] for key in ("level", "origin", "size")} == {
            key: block[key] for key in ("level", "origin", "size")
        }
        assert (found["min"], found["max"]) == (sites.min(), sites.max())


def test_a_component_of_a_field_is_shown_by_its_modulus(saved):
    tree, arena = state = refined(GAUGE)
    what = saved(state)
    found = field(what, 2, 1)
    sites = arena.storage[int(tree.field_slots[int(tree.live[2])])]
    assert found["values"] == np.abs(sites[:, 1]).reshape(4, 4).tolist()
    assert (found["of"], found["components"]) == ("modulus", 2)
    for refused in (lambda: field(what, 2, 2), lambda: blocks(what, -1)):
        with pytest.raises(BadOption):
            refused()
    for block in (-1, 7, 10**9):
        with pytest.raises(BlockNotFound):
            field(what, block)


def test_of_more_dimensions_a_middle_plane_is_shown(tmp_path):
    for nd in (1, 3, 4):
        tree, arena = state = random_mesh(6, nd=nd, base=2, changes=1)
        found = field(checkpoint(tmp_path / str(nd), state), 0)
        index = int(tree.live[0])
        sites = arena.storage[int(tree.field_slots[index])].reshape((4,) * nd)
        middle = sites[(2,) * (nd - 2)] if nd > 2 else sites.reshape(1, 4)
        assert found["values"] == middle.tolist()
        assert [each["dimension"] for each in found["plane"]] == list(range(2, nd))
        for each in found["plane"]:
            spacing = found["size"][0] / 4
            assert each["at"] == found["origin"][each["dimension"]] + 2.5 * spacing


def test_a_large_block_is_reduced_to_means(tmp_path):
    for nd in (1, 2):
        frontend = ScalarFrontend(nd, 256, OpenTopology(nd, (256.0,) * nd))
        tree, arena = AMRTree(frontend, 1.0, 2, 0), FieldArena(frontend, 1)
        tree.insert_block_with_field((0,) * nd, 0, arena)
        arena.storage[0] = np.random.default_rng(nd).standard_normal(256**nd)
        with TensorFile(save(tmp_path / f"{nd}.sunc", (tree, arena))) as file:
            found = field(file, 0)
        assert (found["rows"], found["columns"]) == (1 if nd == 1 else 64, 64)
        assert found["reduced"] == "mean"
        sites = arena.storage[0].reshape((256,) * nd)
        cells = sites.reshape(1, 1, 64, 4) if nd == 1 else sites.reshape(64, 4, 64, 4)
        np.testing.assert_allclose(found["values"], cells.mean(axis=(1, 3)))


def test_what_is_no_number_is_null(saved):
    tree, arena = state = refined()
    slot = int(tree.field_slots[int(tree.live[1])])
    arena.storage[slot, 3] = np.nan
    what = saved(state)
    found = blocks(what)
    means = {block["block"]: block["mean"] for block in found["blocks"]}
    assert means[1] is None
    assert None not in [means[number] for number in means if number != 1]
    assert field(what, 1)["values"][0][3] is None
    json.dumps(found, allow_nan=False)


def test_a_block_without_a_field_and_a_tree_without_blocks_are_empty(saved, tmp_path):
    state = refined()
    state[0].insert_block((8, 0), 0)
    what = saved(state)
    last = blocks(what)["blocks"][3]
    assert (last["origin"], last["mean"]) == ([8.0, 0.0], None)
    found = field(what, last["block"])
    assert (found["values"], found["rows"], found["min"]) == ([], 0, None)
    with TensorFile(save(tmp_path / "empty.sunc", empty())) as file:
        found = blocks(file)
    assert (found["blocks"], found["blocks_total"], found["bounds"]) == ([], 0, [])
    assert found["field"]["min"] is None


def test_of_very_many_blocks_the_coarsest_are_told(saved, seams):
    seams.bound("blocks of the mesh page", 5)
    found = blocks(saved(refined()))
    assert found["blocks_total"] == 7
    assert [block["level"] for block in found["blocks"]] == [0, 0, 0, 1, 1]
    assert found["bounds"] == [[0.0, 8.0], [0.0, 8.0]]


def test_fields_beyond_what_may_be_read_have_no_mean(tmp_path, seams):
    frontend = ScalarFrontend(2, 256, OpenTopology(2, (2048.0, 2048.0)))
    tree, arena = AMRTree(frontend, 1.0, 4, 0), FieldArena(frontend, 64)
    for number in range(64):
        tree.insert_block_with_field((number % 8 * 256, number // 8 * 256), 0, arena)
        arena.storage[number] = number
    seams.bound("fields of the mesh page", 16 << 20)  # of 32 MiB
    with TensorFile(save(tmp_path / "a.sunc", (tree, arena))) as file:
        found = blocks(file)
    means = [block["mean"] for block in found["blocks"]]
    assert found["field"]["blocks"] == sum(mean is not None for mean in means) == 32
    assert all(mean in (None, float(n)) for n, mean in enumerate(means))


def test_damage_and_what_is_no_tree_are_refused(tmp_path):
    path = save(tmp_path / "a.sunc", refined())
    with TensorFile(path) as file:
        at = 92 + file.spec("blocks").nbytes + file.spec("field_slots").nbytes + 200
    flip(path, at)
    with TensorFile(path) as file, pytest.raises(DigestMismatch):
        blocks(file)
    state = refined()
    slots = state[0].field_slots.copy()
    slots[5] = slots[6]
    unsound = save(tmp_path / "b.sunc", state, field_slots=slots)
    with TensorFile(unsound) as file, pytest.raises(DamagedFile):
        blocks(file)
    standfast.save(tmp_path / "w.safetensors", {"w": np.zeros(3)})
    with TensorFile(tmp_path / "w.safetensors") as file, pytest.raises(BadOption):
        blocks(file)
    plain = Store(tmp_path / "store").run("a").save(1, {"w": np.zeros(3)})
    with pytest.raises(BadOption):
        blocks(plain)
