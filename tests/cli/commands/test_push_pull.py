"""`push`, `pull`, and URLs where a command takes a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from standfast import Store
from standfast.cli import stores
from standfast.errors import NotAStore
from standfast.store.backends.memory import MemoryBackend
from standfast.store.schema import names
from tests.kit.cli import call, data_files, flip_in, make_store


@pytest.fixture(autouse=True)
def _outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STANDFAST_STORE", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return make_store(tmp_path / "store")


def sizes(store: Store, ref: str) -> int:
    return sum(file.size for file in store.resolve(ref).head.files)


# push


def test_push_copies_a_checkpoint_into_a_new_store(store: Store, tmp_path: Path) -> None:
    ref = store.resolve("gpt").ref
    done = call("push", "gpt", "backup", "--store", "store")
    target = tmp_path / "backup" / "checkpoints"
    assert (done.code, done.err) == (0, "")
    assert done.out == f"pushed      {ref} to {target}: 270 kB copied, 0 B there already\n"
    assert call("diff", "gpt@300", "gpt@300", "--store", "backup").code == 0
    assert [each["step"] for each in call("ls", "--json", "--store", "backup").json] == [300]
    assert ref.partition("@")[0] in (target / "manifest.yaml").read_text()


def test_push_again_copies_nothing_and_verify_finds_what_was_damaged_there(
    store: Store,
) -> None:
    push = ("push", "gpt", "backup", "--store", "store")
    call(*push)
    done = call(*push, "--verify")
    assert done.code == 0
    assert done.out.endswith(": 0 B copied, 270 kB there already, every byte read back\n")
    flip_in(Store("backup"), "gpt", "model.weight")
    assert call(*push).code == 0
    done = call(*push, "--verify")
    assert (done.code, done.out) == (1, "")
    assert "'model.weight' is damaged" in done.err


def test_a_step_a_tag_and_the_best_can_be_pushed(store: Store) -> None:
    store.resolve("gpt@100").tag("paper")
    for ref in ("paper", "gpt@best", f"{store.find_run('gpt').hash[:8]}@300"):
        assert call("push", ref, "backup", "--store", "store").code == 0
    listed = call("ls", "--json", "--store", "backup").json
    assert [each["step"] for each in listed] == [300, 200, 100]
    assert Store("backup").resolve("paper").step == 100


def test_push_all_copies_a_run_the_oldest_first(store: Store, tmp_path: Path) -> None:
    done = call("push", "gpt", "backup", "--all", "--store", "store", "--json")
    run = store.find_run("gpt").hash
    found = done.json
    assert [each["step"] for each in found["copied"]] == [100, 200, 300]
    assert found["from"] == store.url
    assert found["to"] == str(tmp_path / "backup" / "checkpoints")
    assert found["refused"] == []
    total = sum(path.stat().st_size for path in data_files(store, "gpt"))
    assert found["bytes"] == total
    assert found["bytes"] + found["shared_bytes"] == sum(
        sizes(store, f"gpt@{step}") for step in (100, 200, 300)
    )
    last = found["copied"][-1]
    assert (last["ref"], last["already"], last["left_out"]) == (f"{run}@300", False, [])
    assert last["shared_bytes"] > 100_000
    manifest = (tmp_path / "backup" / "checkpoints" / "manifest.yaml").read_text()
    assert f"last_used: '{store.resolve('gpt@300').head.time}'" in manifest
    again = call("push", "gpt", "backup", "--all", "--store", "store")
    assert again.out.startswith("pushed      3 checkpoints to ")


def test_push_all_goes_on_after_a_damaged_one(store: Store) -> None:
    flip_in(store, "gpt@100", "model.weight")
    done = call("push", "gpt@100", "backup", "--store", "store")
    assert (done.code, done.out) == (1, "")
    done = call("push", "gpt", "backup", "--all", "--store", "store")
    assert done.code == 1
    assert [line.split()[0] for line in done.lines] == ["damaged", "pushed"]
    assert "'model.weight'" in done.lines[0]
    assert "2 checkpoints" in done.lines[1]
    found = call("push", "gpt", "backup", "--all", "--store", "store", "--json").json
    assert [each["error"] for each in found["refused"]] == ["DigestMismatch"]
    assert [each["already"] for each in found["copied"]] == [True, True]


def test_what_is_left_out_is_told(store: Store) -> None:
    store.resolve("gpt@100").tag("paper")
    Store("backup").run("other").save(1, {}).tag("paper")
    done = call("push", "gpt@100", "backup", "--store", "store")
    assert done.code == 0
    assert done.lines[0].startswith(f"left out    {store.resolve('gpt@100').ref}: the tag 'paper'")


def test_what_the_target_has_made_of_its_own_is_refused(store: Store) -> None:
    for step in (200, 300):
        assert call("push", f"gpt@{step}", "backup", "--store", "store").code == 0
    theirs = Store("backup").run("gpt", hp={"lr": 0.1, "layers": 2})
    theirs.save(100, {"theirs": 1})
    assert call("push", "gpt@100", "backup", "--store", "store").code == 2
    done = call("push", "gpt", "backup", "--all", "--store", "store")
    assert done.code == 2
    assert done.lines[0].startswith("refused     ")
    assert "2 checkpoints" in done.lines[1]
    assert theirs.load(100) == {"theirs": 1}
    other = Store("other").run("gpt", hp={"lr": 0.1, "layers": 2})
    other.save(1000, {"theirs": 1})
    done = call("push", "gpt@300", "other", "--store", "store")
    assert done.code == 2
    assert "has gone on with run" in done.err
    assert other.checkpoint("latest").step == 1000


def test_push_errors(store: Store, tmp_path: Path) -> None:
    assert call("push", "nothing", "backup", "--store", "store").code == 2
    assert call("push", "gpt@100", "backup", "--all", "--store", "store").code == 2
    assert call("push", "gpt", "backup").code == 2
    store.run("empty")
    assert "no checkpoint" in call("push", "empty", "backup", "--all", "--store", "store").err
    assert not (tmp_path / "backup").exists()


# pull


def test_pull_brings_a_checkpoint_into_a_new_store(store: Store, tmp_path: Path) -> None:
    ref = store.resolve("gpt").ref
    done = call("pull", "gpt", "store", "--store", "here", "--verify")
    target = tmp_path / "here" / "checkpoints"
    assert done.out == (
        f"pulled      {ref} to {target}: 270 kB copied, 0 B there already, every byte read back\n"
    )
    assert call("verify", "gpt", "--store", "here").code == 0


def test_pull_goes_to_the_store_around(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = Store(tmp_path / "here")
    here.run("own").save(1, {})
    monkeypatch.chdir(tmp_path / "here")
    assert call("pull", "bert", "../store").code == 0
    assert [run.name for run in here.runs()] == ["bert", "own"]


def test_pull_wants_stores(store: Store, tmp_path: Path) -> None:
    done = call("pull", "gpt", "nowhere", "--store", "here")
    assert (done.code, done.err) == (
        2,
        "standfast: nowhere is no store: it has no folder checkpoints/models\n",
    )
    assert "$STANDFAST_STORE" in call("pull", "gpt", "store").err
    assert not (tmp_path / "here").exists()


# URLs


@pytest.fixture
def urls(monkeypatch: pytest.MonkeyPatch) -> dict[str, MemoryBackend]:
    """Buckets in memory, by the URLs that commands are given."""
    buckets: dict[str, MemoryBackend] = {}
    opened = Store

    def open_url(place: str | Path) -> Store:
        if "://" not in str(place):
            return opened(place)
        return opened(buckets.setdefault(str(place), MemoryBackend()))

    monkeypatch.setattr("standfast.store.Store", open_url)
    return buckets


def test_a_url_reaches_the_store_as_it_was_given(
    store: Store, urls: dict[str, MemoryBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = "s3://bucket/some//prefix"
    assert call("push", "gpt", url, "--store", "store").code == 0
    assert list(urls) == [url]
    assert call("ls", "--store", url).lines[1].startswith("gpt")
    assert call("show", "gpt", "--store", url).code == 0
    assert call("verify", "gpt", "--store", url).code == 0
    assert call("diff", "gpt", "gpt", "--store", url).code == 0
    assert call("pull", "gpt", url, "--store", "here").code == 0
    monkeypatch.setenv("STANDFAST_STORE", url)
    assert call("tag", "gpt", "remote").code == 0
    assert json.loads(call("show", "remote", "--json").out)["tags"] == ["remote"]
    assert list(urls) == [url]


def test_a_run_goes_to_a_bucket_and_back(store: Store, bucket_url: str) -> None:
    done = call("push", "gpt", bucket_url, "--all", "--verify", "--store", "store")
    assert (done.code, done.err) == (0, "")
    listed = call("ls", "--json", "--store", bucket_url).json
    assert [each["step"] for each in listed] == [300, 200, 100]
    found = call("pull", "gpt", bucket_url, "--all", "--store", "here", "--json").json
    assert [each["step"] for each in found["copied"]] == [100, 200, 300]
    here = Store("here")
    for step in (100, 200, 300):
        record = names.record_file(found["copied"][0]["run"], step)
        assert here.backend.read(record) == store.backend.read(record)
    assert call("verify", "--all", "--store", "here").code == 0


def test_a_url_without_a_store_is_refused_unless_one_may_be_made(
    urls: dict[str, MemoryBackend],
) -> None:
    done = call("ls", "--store", "s3://bucket/none")
    assert done.code == 2
    assert "is no store" in done.err
    assert stores.find_store("s3://bucket/none", new=True).runs is not None
    with pytest.raises(NotAStore):
        stores.open_store("s3://bucket/none")
