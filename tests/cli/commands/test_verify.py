"""`verify` inside a store."""

import numpy as np

import standfast
from standfast import Store
from tests.kit.cli import call, data_files, flip_in


def test_verify_says_what_was_verified(store, cli, tmp_path):
    standfast.save(tmp_path / "model.pt", {"w": np.ones(2)})
    done = cli("verify", "gpt@100", "latest", tmp_path / "model.pt")
    gpt, bert = store.resolve("gpt@100").ref, store.resolve("bert").ref
    assert done.code == 0
    assert done.lines == [
        f"intact      gpt@100 ({gpt}): 3 tensors, 262 kB, every byte",
        f"intact      latest ({bert}): 1 tensor, 131 kB, every byte",
        f"intact      {tmp_path}/model.pt: 1 tensor, 16 B, every byte",
    ]
    flip_in(store, "gpt@100", "model.bias")
    done = cli("verify", "gpt@100", "gpt@200", "--json")
    assert done.code == 1
    broken, intact = done.json
    assert (broken["status"], broken["tensors"]) == ("damaged", ["model.bias"])
    assert intact == {
        "ref": "gpt@200",
        "status": "intact",
        "checkpoint": store.resolve("gpt@200").ref,
        "verified_tensors": 3,
        "verified_bytes": 262_160,
    }


def test_verify_wants_something_to_verify(cli, tmp_path):
    for arguments in ([], ["gpt", "--all"]):
        cli("verify", *arguments).fails(2, "--all")
    Store(tmp_path / "empty").run("a")
    assert call("verify", "--all", "--store", tmp_path / "empty").code == 2


def test_verify_all_reads_shared_files_once_and_names_every_damaged_checkpoint(store, cli):
    done = cli("verify", "--all")
    assert done.code == 0
    assert "4 checkpoints, every byte: 524 kB" in done.out
    gpt = [checkpoint.head for checkpoint in store.find_run("gpt").checkpoints()]
    report = cli("verify", "--all", "--json").json
    assert report["verified_bytes"] == sum({f.name: f.held for h in gpt for f in h.files}.values())
    assert (len(report["intact"]), report["damaged"]) == (4, [])
    bert = store.resolve("bert").head.run
    flip_in(store, "bert", "model.weight")
    done = cli("verify", "--all")
    assert done.code == 1
    damaged = [line.split()[1] for line in done.lines if line.startswith("damaged")]
    assert damaged == [f"{bert}@7:", f"{gpt[0].run}@200:", f"{gpt[0].run}@300:"]
    assert "'model.weight'" in done.lines[0]
    assert done.lines[-1].startswith("intact      1 checkpoint,")
    report = cli("verify", "--all", "--json").json
    assert {tuple(each["tensors"]) for each in report["damaged"]} == {("model.weight",)}
    for path in data_files(store, "bert"):
        path.unlink()
    assert cli("verify", "latest").code == 1, "a checkpoint that is passed over is told"


def test_verify_oldest_verifies_one_checkpoint_however_short_the_time(cli):
    done = [cli("verify", "--oldest", "--for", "0s", "--json").json["intact"] for _ in range(4)]
    assert [len(intact) for intact in done] == [1] * 4
    assert len({intact[0] for intact in done}) == 4
