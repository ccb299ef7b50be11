"""`verify` inside a store."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import standfast
from standfast import Store
from tests.kit.cli import at, call, data_files, flip_in, make_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def test_verify_says_what_was_verified(store: Store, tmp_path: Path) -> None:
    standfast.save(tmp_path / "model.pt", {"w": np.ones(2)})
    done = call("verify", "gpt@100", "latest", tmp_path / "model.pt", *at(store))
    gpt, bert = store.resolve("gpt@100").ref, store.resolve("bert").ref
    assert done.code == 0
    assert done.lines == [
        f"intact      gpt@100 ({gpt}): 3 tensors, 262 kB, every byte",
        f"intact      latest ({bert}): 1 tensor, 131 kB, every byte",
        f"intact      {tmp_path}/model.pt: 1 tensor, 16 B, every byte",
    ]
    (result,) = call("verify", "gpt@100", "--json", *at(store)).json
    assert result == {
        "ref": "gpt@100",
        "status": "intact",
        "checkpoint": gpt,
        "verified_tensors": 3,
        "verified_bytes": 262_160,
    }


def test_verify_names_the_damaged_tensor(store: Store) -> None:
    flip_in(store, "gpt@100", "model.bias")
    done = call("verify", "gpt@100", "gpt@200", "--json", *at(store))
    broken, intact = done.json
    assert done.code == 1
    assert (broken["status"], broken["tensors"]) == ("damaged", ["model.bias"])
    assert intact["status"] == "intact"
    assert call("verify", "gpt@200", *at(store)).code == 0


def test_verify_wants_something_to_verify(store: Store, tmp_path: Path) -> None:
    for arguments in ([], ["gpt", "--all"]):
        done = call("verify", *arguments, *at(store))
        assert done.code == 2
        assert "--all" in done.err
    (tmp_path / "empty" / "checkpoints" / "models").mkdir(parents=True)
    done = call("verify", "--all", "--store", tmp_path / "empty")
    assert done.code == 2
    assert "nothing to verify" in done.err


def test_verify_all_reads_what_is_shared_once(store: Store) -> None:
    done = call("verify", "--all", *at(store))
    assert (done.code, done.out) == (
        0,
        "intact      4 checkpoints, every byte: 524 kB were read\n",
    )
    held = sum(
        {
            file.name: file.held
            for c in store.find_run("gpt").checkpoints()
            for file in c.head.files
        }.values()
    )
    report = call("verify", "--all", "--json", *at(store)).json
    assert report["verified_bytes"] == held
    assert len(report["intact"]) == 4
    assert report["damaged"] == []


def test_verify_oldest_verifies_one_checkpoint_however_short_the_time(
    store: Store,
) -> None:
    verified = set()
    for _ in range(4):
        done = call("verify", "--oldest", "--for", "0s", "--json", *at(store))
        [one] = done.json["intact"]
        verified.add(one)
    assert len(verified) == 4


def test_verify_all_names_every_checkpoint_that_is_hit(store: Store) -> None:
    gpt, bert = store.resolve("gpt").head, store.resolve("bert").head
    flip_in(store, "bert", "model.weight")
    done = call("verify", "--all", *at(store))
    assert done.code == 1
    damaged = [line.split()[1] for line in done.lines if line.startswith("damaged")]
    assert damaged == [f"{bert.run}@7:", f"{gpt.run}@200:", f"{gpt.run}@300:"]
    assert "tensor 'model.weight' is damaged" in done.lines[0]
    assert done.lines[-1].startswith("intact      1 checkpoint,")
    report = call("verify", "--all", "--json", *at(store)).json
    assert {tuple(each["tensors"]) for each in report["damaged"]} == {("model.weight",)}
    for path in data_files(store, "bert"):
        path.unlink()
    done = call("verify", "latest", *at(store))  # which is not passed over
    assert done.code == 1
    assert "fell back to" in done.out
