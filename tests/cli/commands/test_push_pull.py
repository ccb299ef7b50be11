"""`push` and `pull`, between folders and with a bucket."""

from pathlib import Path

import pytest

from standfast import Store
from standfast.store.schema import names
from tests.kit.cli import Done, call, data_files, flip_in


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


def push(*arguments: str) -> Done:
    return call("push", *arguments, "--store", "store")


def steps(place: str) -> list[int]:
    return [each["step"] for each in call("ls", "--json", "--store", place).json]


def test_push_copies_a_checkpoint_once(store, tmp_path):
    ref, target = store.resolve("gpt").ref, tmp_path / "backup" / "checkpoints"
    done = push("gpt", "backup")
    assert (done.code, done.err) == (0, "")
    assert done.out == f"pushed      {ref} to {target}: 270 kB copied, 0 B there already\n"
    assert call("diff", "gpt@300", "gpt@300", "--store", "backup").code == 0
    assert steps("backup") == [300]
    assert ref.partition("@")[0] in (target / "manifest.yaml").read_text()
    done = push("gpt", "backup", "--verify")
    assert done.code == 0
    assert "0 B copied, 270 kB there already, every byte read back" in done.out
    flip_in(Store("backup"), "gpt", "model.weight")
    assert push("gpt", "backup").code == 0
    push("gpt", "backup", "--verify").fails(1, "'model.weight'")


def test_a_step_a_tag_and_the_best_can_be_pushed(store):
    store.resolve("gpt@100").tag("paper")
    for ref in ("paper", "gpt@best", f"{store.find_run('gpt').hash[:8]}@300"):
        assert push(ref, "backup").code == 0
    assert steps("backup") == [300, 200, 100]
    assert Store("backup").resolve("paper").step == 100


def test_push_all_copies_a_run_the_oldest_first(store, tmp_path):
    found = push("gpt", "backup", "--all", "--json").json
    run = store.find_run("gpt").hash
    assert [each["step"] for each in found["copied"]] == [100, 200, 300]
    assert (found["from"], found["refused"]) == (store.url, [])
    assert found["to"] == str(tmp_path / "backup" / "checkpoints")
    assert found["bytes"] == sum(path.stat().st_size for path in data_files(store, "gpt"))
    whole = [file.size for n in (100, 200, 300) for file in store.resolve(f"gpt@{n}").head.files]
    assert found["bytes"] + found["shared_bytes"] == sum(whole)
    last = found["copied"][-1]
    assert (last["ref"], last["already"], last["left_out"]) == (f"{run}@300", False, [])
    assert last["shared_bytes"] > 100_000
    manifest = (tmp_path / "backup" / "checkpoints" / "manifest.yaml").read_text()
    assert f"last_used: '{store.resolve('gpt@300').head.time}'" in manifest
    assert "3 checkpoints" in push("gpt", "backup", "--all").out


def test_push_all_goes_on_after_a_damaged_one(store):
    flip_in(store, "gpt@100", "model.weight")
    done = push("gpt@100", "backup")
    assert (done.code, done.out) == (1, "")
    done = push("gpt", "backup", "--all")
    assert done.code == 1
    assert [line.split()[0] for line in done.lines] == ["damaged", "pushed"]
    assert "'model.weight'" in done.lines[0]
    found = push("gpt", "backup", "--all", "--json").json
    assert [each["error"] for each in found["refused"]] == ["DigestMismatch"]
    assert [each["already"] for each in found["copied"]] == [True, True]


def test_what_the_target_has_of_its_own_stays(store):
    store.resolve("gpt@200").tag("paper")
    backup = Store("backup")
    backup.run("other").save(1, {}).tag("paper")
    done = push("gpt@200", "backup")
    assert done.code == 0
    assert done.lines[0].startswith(f"left out    {store.resolve('gpt@200').ref}: the tag 'paper'")
    assert push("gpt@300", "backup").code == 0
    theirs = backup.run("gpt", hp={"lr": 0.1, "layers": 2})
    theirs.save(100, {"theirs": 1})
    assert push("gpt@100", "backup").code == 2
    done = push("gpt", "backup", "--all")
    assert done.code == 2
    assert {"refused", "pushed"} <= {line.split()[0] for line in done.lines}
    assert theirs.load(100) == {"theirs": 1}
    Store("gone on").run("gpt", hp={"lr": 0.1, "layers": 2}).save(1000, {"theirs": 1})
    assert push("gpt@300", "gone on").code == 2
    assert steps("gone on") == [1000]


def test_pull_copies_into_the_store_that_is_named_or_around(store, tmp_path, monkeypatch):
    ref, target = store.resolve("gpt").ref, tmp_path / "here" / "checkpoints"
    done = call("pull", "gpt", "store", "--store", "here", "--verify")
    assert done.out == (
        f"pulled      {ref} to {target}: 270 kB copied, 0 B there already, every byte read back\n"
    )
    assert call("verify", "gpt", "--store", "here").code == 0
    monkeypatch.chdir(tmp_path / "here")
    assert call("pull", "bert", "../store").code == 0
    assert [run.name for run in Store(tmp_path / "here").runs()] == ["bert", "gpt"]


def test_what_cannot_be_pushed_or_pulled_is_refused(store, tmp_path):
    store.run("empty")
    for arguments, told in (
        (["push", "nothing", "backup", "--store", "store"], "nothing"),
        (["push", "gpt@100", "backup", "--all", "--store", "store"], "gpt@100"),
        (["push", "empty", "backup", "--all", "--store", "store"], "empty"),
        (["push", "gpt", "backup"], "$STANDFAST_STORE"),
        (["pull", "gpt", "nowhere", "--store", "here"], "nowhere"),
        (["pull", "gpt", "store"], "$STANDFAST_STORE"),
    ):
        done = call(*arguments)
        assert (done.code, done.out) == (2, ""), arguments
        assert told in done.err
    assert not (tmp_path / "backup").exists()
    assert not (tmp_path / "here").exists()


def test_commands_take_the_url_of_a_bucket(store, bucket_url, monkeypatch):
    assert call("ls", "--store", bucket_url).code == 2, "there is no store yet"
    done = push("gpt", bucket_url, "--all", "--verify")
    assert (done.code, done.err) == (0, "")
    assert steps(bucket_url) == [300, 200, 100]
    monkeypatch.setenv("STANDFAST_STORE", bucket_url)
    assert call("diff", "gpt", "gpt").code == 0
    assert call("tag", "gpt", "remote").code == 0
    assert call("show", "remote", "--json").json["tags"] == ["remote"]
    found = call("pull", "gpt", bucket_url, "--all", "--store", "here", "--json").json
    assert [each["step"] for each in found["copied"]] == [100, 200, 300]
    here = Store("here")
    for step in (100, 200, 300):
        record = names.record_file(found["copied"][0]["run"], step)
        assert here.backend.read(record) == store.backend.read(record)
    assert call("verify", "--all", "--store", "here").code == 0
