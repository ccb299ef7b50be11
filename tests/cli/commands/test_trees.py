"""Trees of blocks on the command line: `.sunc` files, and snapshots in a store."""

import re
from pathlib import Path

import numpy as np
import pytest

from standfast import Store
from standfast.amr.inspect.logical import logical_digest
from tests.amr.saved_states import GAUGE, State, divided, refined, save, snapshot
from tests.kit.cli import call, flip, flip_in


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Files of a gauge field: whole, bare, unsound, of three ranks, and a few updates later."""
    tree, _ = state = refined(GAUGE)
    save(tmp_path / "a.sunc", state)
    save(tmp_path / "bare.sunc", state, extras=False)
    slots = tree.field_slots.copy()
    slots[5] = slots[6]
    save(tmp_path / "unsound.sunc", state, field_slots=slots)
    for number, rank in enumerate(divided(state, 3)):
        save(tmp_path / f"rank{number}.sunc", rank)
    save(tmp_path / "b.sunc", update(state))
    return tmp_path


def update(state: State) -> State:
    tree, arena = state
    arena.storage[2, 5] += 0.25
    arena.storage[2, 7] += 0.125
    tree.links[3, 9] *= 2  # type: ignore[attr-defined]
    tree.invalidate_block(1)
    tree.insert_block_with_field((8, 0), 1, arena)
    return state


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Snapshots of one state on 3, 2 and 1 ranks, then of a later one; and no snapshot."""
    store = Store(tmp_path / "store")
    state = refined(GAUGE)
    with store.run("su2") as run:
        run.save(1, snapshot(*divided(state, 3)))
        run.save(2, snapshot(*divided(state, 2), time=0.75))
        run.save(3, snapshot(state))
        run.save(4, snapshot(update(state)))
        run.save(5, {"weight": np.ones(3)})
    return store


TREE = """\
2 dimensions, blocks of 4×4 sites, 32 bytes a site
level  spacing  live  dead  with field  sites  volume
0            1     3     1           3     48   75.0%
1          0.5     4     0           4     64   25.0%
all                7     1           7    112
16 slots: 7 taken, 8 free, 1 named by dead blocks alone
  next to be taken: 8, 9, 10, 11, 12, 13, 14, 15
links of SU(2), 32 a block: 224 of live blocks, 32 of dead ones
the tree is sound
"""


def test_show_tells_the_tree_of_a_file(folder):
    done = call("show", folder / "a.sunc")
    assert done.code == 0
    assert done.out.endswith("\n\n" + TREE)
    tree = call("show", folder / "a.sunc", "--json").json["tree"]
    assert tree["levels"][1]["live"] == 4
    assert tree["slots"]["next"] == [8, 9, 10, 11, 12, 13, 14, 15]
    assert (tree["links"]["name"], tree["problems"], tree["fields"]) == ("SU(2)", [], None)
    lines = call("show", folder / "a.sunc", "--all").lines
    at_fields = lines.index("level  least |field|     mean  greatest  not finite")
    assert re.fullmatch(r"0 +0\.228147  1\.39549 +3\.12026 +0", lines[at_fields + 1])
    assert any(re.search(r"unitary to \d\.\de-16$", line) for line in lines)
    scanned = call("show", folder / "a.sunc", "--json", "--all").json["tree"]["fields"]
    assert scanned["levels"]["0"]["not_finite"] == 0
    flip(folder / "a.sunc", 100)
    done = call("show", folder / "a.sunc")
    assert (done.code, "'blocks'" in done.lines[-1]) == (1, True)


def test_an_unsound_tree_with_the_right_digests_is_damage(folder):
    unsound = folder / "unsound.sunc"
    done = call("show", unsound, "--all")
    assert done.code == 1
    assert "0            1     3     1           3     48   75.0%" in done.lines
    assert "blocks 5 and 6" in done.lines[-1]
    shown = call("show", unsound, "--json")
    assert (shown.code, len(shown.json["tree"]["problems"])) == (1, 1)
    done = call("verify", unsound)
    assert (done.code, "blocks 5 and 6" in done.out) == (1, True)
    done = call("diff", folder / "a.sunc", unsound)
    assert done.code == 1
    assert done.lines[1].startswith("field_slots  changed")


def test_verify_says_that_a_tree_is_sound(folder, store, cli):
    for what in (folder / "a.sunc", "su2@1"):
        done = cli("verify", what)
        assert (done.code, "7 live blocks" in done.out) == (0, True)
    assert call("verify", folder / "a.sunc", "--json").json[0]["live_blocks"] == 7
    assert call("verify", folder / "bare.sunc").code == 2
    state = refined(GAUGE)
    state[0].blocks["block_index"][3] = 5
    assert call("verify", save(folder / "odd.sunc", state, extras=False)).code == 1


def test_show_tells_the_simulation_of_a_snapshot(store, cli):
    done = cli("show", "su2@1")
    for line in (
        "  step: 1",
        "  time: 0.5",
        "  ranks: 3, sharding manual",
        "  frontend: gauge, 1 spinor component, 2 colours each, complex128",
        "  topology: periodic, 8 × 8",
        "  random states: kicks, global (numpy), on each rank",
        "  value beta: 2.5",
        "48 slots: 7 taken, 41 free",
        "rank  live  by level  dead  slots  taken  free  links",
        "0        3  1 + 2        0     16      3    13     96",
    ):
        assert line in done.lines
    shown = cli("show", "su2@1", "--json").json
    assert shown["tree"]["simulation"]["ranks"] == 3
    assert [rank["live"] for rank in shown["tree"]["ranks"]] == [3, 2, 2]
    assert "rank0.storage.0" not in done.out
    assert "rank0.storage.0" in cli("show", "su2@1", "--all").out


def test_a_terminal_of_80_columns_has_room_for_the_tables(folder, terminal):
    for arguments in (("show", folder / "a.sunc"), ("diff", folder / "a.sunc", folder / "b.sunc")):
        shown = re.sub(r"\x1b\[[0-9;]*m", "", terminal(*arguments))
        assert max(len(line) for line in shown.splitlines() if str(folder) not in line) <= 80


def test_verify_logical_prints_one_digest_however_ranks_divide_a_state(folder, store, cli):
    digest, whole = logical_digest(refined(GAUGE)), folder / "a.sunc"
    ranks = [folder / f"rank{n}.sunc" for n in range(3)]
    done = call("verify", "--logical", *ranks)
    assert done.code == 0
    assert done.lines == [
        f"intact      {', '.join(map(str, ranks))}: 7 live blocks of 3 ranks, every byte",
        f"logical     {digest}",
    ]
    done = cli("verify", "--logical", whole, "su2@1", "su2@2", "su2@3")
    logical = [line.split()[1] for line in done.lines if line.startswith("logical")]
    assert logical == [str(digest)] * 4
    assert call("verify", "--logical", folder / "bare.sunc").code == 0
    mixed = call("verify", "--logical", whole, folder / "b.sunc")
    assert (mixed.code, "(0, 4)" in mixed.out) == (2, True), "the block that both have"
    assert cli("verify", "--logical", "--all").code == 2
    (later,) = cli("verify", "--logical", "su2@4", "--json").json
    assert later["status"] == "intact"
    assert later["logical"] != digest
    flip_in(store, "su2@3", "rank0.random.own.kicks")
    flip(whole, 92 + 8 * 48)
    for what in ("su2@3", whole):
        done = cli("verify", "--logical", what, "--json")
        assert (done.code, done.json[0]["error"]) == (1, "DigestMismatch")


def test_diff_names_blocks_and_sites_the_worst_first(folder):
    done = call("diff", folder / "a.sunc", folder / "b.sunc")
    assert done.code == 3
    assert done.lines == [
        "metadata blocks_len: 8 → 9",
        "metadata field_slots_len: 8 → 9",
        "metadata arena_free_count: 8 → 7",
        "block  level  origin  what         first    worst       by  how many",
        "3          0  4,4     links        4,5 μ=1  4,5 μ=1  0.985      1/32",
        "2          0  0,4     field        1,5      1,5       0.25      2/16",
        "1          0  4,0     only before",
        "8          1  8,0     only after",
        "4 blocks are the same, bit for bit",
        "  1 dead block differs",
        "  1 free list differs",
    ]
    tree = call("diff", folder / "a.sunc", folder / "b.sunc", "--json").json["tree"]
    assert tree["same_blocks"] is False
    assert tree["changed"][0]["worst"] == {"number": 4, "coordinates": [4, 5], "direction": 1}
    assert tree["removed"] == [{"level": 0, "origin": [4, 0], "rank": 0, "index": 1}]


def test_diff_says_if_only_the_places_differ(folder):
    tree, arena = state = refined(GAUGE)
    tree.reorder()
    arena.defragment(tree)
    done = call("diff", folder / "a.sunc", save(folder / "c.sunc", state))
    assert done.code == 3
    assert "  4 blocks are in other slots" in done.lines
    assert "  1 list of blocks is in another order" in done.lines


def test_diff_of_equal_trees_finds_nothing(folder, store, cli):
    done = call("diff", folder / "a.sunc", folder / "bare.sunc")
    assert (done.code, done.out) == (0, "7 blocks are the same, bit for bit\n")
    done = cli("diff", "su2@3", folder / "a.sunc")
    assert done.code == 0
    assert done.out.startswith("no difference found in 7 blocks; 14 fields and links ")
    path = next(Path(store.url, "models").glob("*/*_step_000003.*.safetensors"))
    flip(path, -1)
    assert cli("diff", "su2@3", folder / "a.sunc").code == 1


def test_diff_of_snapshots_of_several_ranks_names_ranks(cli):
    done = cli("diff", "su2@2", "su2@4")
    assert done.code == 3
    assert "  simulation.time: 0.75 → 0.5" in done.lines
    assert any(re.match(r"1:2 → 0:2 +0  0,4 +field +1,5 ", line) for line in done.lines)
    assert "storage" not in done.out
    found = cli("diff", "su2@1", "su2@2", "--json").json
    assert found["tree"]["same_blocks"] is True
    assert list(found["removed"]) == ["rank2.random.own.kicks"]


def test_a_snapshot_is_exported_as_the_files_of_its_ranks(store, cli, tmp_path):
    folder = tmp_path / "exported"
    folder.mkdir()
    export = ("export", "su2@1", folder / "a.sunc")
    done = cli(*export)
    files = [folder / f"a_rank{rank}.sunc" for rank in range(3)]
    assert done.code == 0
    assert [line.split(": ")[0] for line in done.lines] == [f"exported    {f}" for f in files]
    assert logical_digest(*files) == logical_digest(store.resolve("su2@1"))
    cli(*export).fails(2, str(files[0]))
    assert cli(*export, "--yes").code == 0
    assert cli("export", "su2@5", folder / "b.sunc").code == 2, "no snapshot"
    assert cli("export", "su2@1", folder, "--format", "sunc").code == 0
    assert (folder / "su2_step1_rank2.sunc").is_file()
