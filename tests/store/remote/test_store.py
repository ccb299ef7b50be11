"""A store at a URL, as its users have it."""

import re
import secrets
from urllib.parse import quote

import numpy as np
import obstore
import pytest
import torch
from typer.testing import CliRunner

import standfast
from standfast.cli.app import app
from standfast.errors import NotAStore
from standfast.store.backends.local import LocalBackend
from standfast.store.backends.memory import MemoryBackend
from standfast.store.remote.backend import RemoteBackend
from tests.kit.cases import kept
from tests.kit.rank_threads import ThreadRanks, on_ranks
from tests.kit.stores import QUERIES
from tests.store.remote.places import check, fresh, state, unfinished

STATE = {"model": {"w": torch.arange(70_000.0), "b": torch.ones(3)}, "step": 7}


def test_a_url_of_a_file_is_a_folder(tmp_path):
    with standfast.Store(f"file://{quote(str(tmp_path))}/a%20b") as store:
        assert isinstance(store.backend, LocalBackend)
        store.run("x").save(1, {"w": np.arange(3.0)})
    assert standfast.Store(tmp_path / "a b").resolve("x@1").head.step == 1


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_what_is_no_store_says_so(bucket_url, query):
    store = standfast.Store(bucket_url)
    with pytest.raises(NotAStore, match=re.escape(bucket_url)):
        query(store)
    assert store.backend.list("") == []


def test_a_store_is_the_same_for_a_second_machine(bucket_url, tmp_path, monkeypatch):
    with standfast.Store(bucket_url) as store:
        run = store.run("gpt", hp={"lr": 0.1})
        run.save(100, STATE, metrics={"loss": 0.5}, best=True)
        store.resolve("gpt@100").tag("paper")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "another"))
    other = standfast.Store(bucket_url)
    assert isinstance(other.backend, RemoteBackend)
    found = other.resolve("paper")
    assert found.metrics == {"loss": 0.5}
    loaded = found.load()
    assert torch.equal(loaded["model"]["w"], STATE["model"]["w"])
    assert loaded["step"] == 7
    assert found.verify().nbytes == 280_012


def test_a_torch_file_is_there_once(bucket_url):
    store = standfast.Store(bucket_url)
    run = store.run("a")
    run.save(1, STATE, format="torch")
    files = [name for name, _ in store.backend.list(f"models/{run.hash}")]
    assert len([name for name in files if name.endswith((".pt", ".pth"))]) == 1
    assert torch.equal(run.load(1)["model"]["w"], STATE["model"]["w"])


def test_ranks_save_as_one_and_any_number_loads(bucket_url):
    def save(comm: ThreadRanks) -> None:
        with standfast.Store(bucket_url).run("a") as run:
            mine = standfast.per_rank({"rank": comm.rank, "w": np.full(9, comm.rank)})
            run.save(1, {"shared": np.arange(50_000.0), "mine": mine}, comm=comm)

    on_ranks(3, save)
    store = standfast.Store(bucket_url)
    loaded = store.resolve("a@1").state()
    assert (loaded["shared"] == np.arange(50_000.0)).all()
    assert store.resolve("a@1").verify().tensors >= 4


def test_gc_says_that_there_is_no_trash(bucket_url):
    with standfast.Store(bucket_url) as store, store.run("a") as run:
        for step in (1, 2, 3):
            run.save(step, {"w": np.full(100_000, step)})
    command = ["gc", "--keep-last", "1", "--store", bucket_url]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "no trash" in shown.output
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert done.exit_code == 0, done.output
    assert standfast.Store(bucket_url).index.steps(run.hash) in ([], [3])
    assert standfast.Store(bucket_url).resolve("a").head.step == 3
    data = [name for name, _ in store.backend.list(f"models/{run.hash}", ".safetensors")]
    assert len(data) == 1


def test_its_place_opens_it_again(bucket_url, tmp_path):
    with standfast.Store(bucket_url) as store:
        store.run("a").save(1, STATE)
    for given in (bucket_url, f"{bucket_url}/", str(tmp_path)):
        store = standfast.Store(given)
        assert store.place is not None
        assert standfast.Store(store.place).url == store.url
    assert standfast.Store(MemoryBackend()).place is None
    assert standfast.Store(LocalBackend(tmp_path / "elsewhere")).place is None


# Where in a bucket a store may be


@pytest.mark.parametrize(
    "prefix",
    kept(
        ["/", "/a/b/c/d/e/f/g/h", "/with space", "/müßig", "/100%", "/%41", "/a+b&c=d", "/a'b(c)!"],
        "/",
        "/%41",
    ),
)
def test_a_store_may_be_anywhere_in_a_bucket(prefix, server, bucket_url):
    url = server.bucket(f"place-{secrets.token_hex(4)}") + prefix
    with standfast.Store(url) as store, store.run("a") as run:
        run.save(1, state(1))
        run.save(2, state(2)).tag("paper")
        run.delete(1)
    check(fresh(url.rstrip("/")), state(2))
    assert fresh(url.rstrip("/")).resolve("paper").step == 2
    assert unfinished(server, url) == []
    with standfast.Store(url).run("a") as run:
        run.save(3, state(3))
    check(fresh(url.rstrip("/")), state(2), state(3))


def test_stores_beside_each_other_have_nothing_in_common(bucket_url):
    urls = [bucket_url, f"{bucket_url}2", f"{bucket_url}/store", f"{bucket_url}/checkpoints"]
    for number, url in enumerate(urls):
        with standfast.Store(url) as store, store.run("a") as run:
            run.save(number, state(number))
    for number, url in enumerate(urls):
        check(fresh(url), state(number))
        assert fresh(url).index.count() in (0, 1), "its own, once it was looked at"


def test_objects_of_others_are_let_be(bucket_url, client):
    for key in ("readme.txt", "models/notes.txt", "models/x/y"):
        obstore.put(client, key, b"theirs")
    with standfast.Store(bucket_url) as store, store.run("a") as run:
        run.save(1, state(1))
        run.save(2, state(2))
        run.delete(1)
        run.delete_all()
        assert store.runs() == []
    for key in ("readme.txt", "models/notes.txt", "models/x/y"):
        assert bytes(obstore.get(client, key).bytes()) == b"theirs"
