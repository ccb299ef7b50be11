"""A store at a URL, as its users have it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import standfast
from standfast.cli.app import app
from standfast.errors import BadOption, NotAStore
from standfast.store.backends.local import LocalBackend
from standfast.store.backends.memory import MemoryBackend
from standfast.store.remote.backend import RemoteBackend
from standfast.store.retention.collection import carry_out, plan
from tests.kit.rank_threads import ThreadRanks, on_ranks
from tests.kit.stores import QUERIES
from tests.store import remote

STATE = {"model": {"w": torch.arange(70_000.0), "b": torch.ones(3)}, "step": 7}


def test_a_url_of_a_file_is_a_folder(tmp_path: Path) -> None:
    with standfast.Store(f"file://{quote(str(tmp_path))}/a%20b") as store:
        assert isinstance(store.backend, LocalBackend)
        store.run("x").save(1, {"w": np.arange(3.0)})
    assert standfast.Store(tmp_path / "a b").resolve("x@1").head.step == 1
    with pytest.raises(BadOption, match="no file on this machine"):
        standfast.Store("file://elsewhere/folder")


@pytest.mark.parametrize(
    "url", ["s3://", "s3://user:geheim@bucket/x", "s3://bucket/x?key=geheim", "nothing://x/y"]
)
def test_a_url_that_is_none_or_has_a_secret_is_refused(url: str) -> None:
    with pytest.raises(BadOption) as refused:
        standfast.Store(url).runs()
    assert "geheim" not in str(refused.value)


@pytest.mark.parametrize("query", QUERIES.values(), ids=QUERIES)
def test_what_is_no_store_says_so(bucket_url: str, query: Callable[[standfast.Store], Any]) -> None:
    store = standfast.Store(bucket_url)
    with pytest.raises(NotAStore, match=re.escape(bucket_url)):
        query(store)
    assert store.backend.list("") == []


def test_a_store_is_the_same_for_a_second_machine(
    bucket_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_torch_file_is_there_once(bucket_url: str) -> None:
    store = standfast.Store(bucket_url)
    run = store.run("a")
    run.save(1, STATE, format="torch")
    folder = f"models/{run.hash}"
    assert len(store.backend.list(folder, ".pt")) + len(store.backend.list(folder, ".pth")) == 1
    assert torch.equal(run.load(1)["model"]["w"], STATE["model"]["w"])


def test_ranks_save_as_one_and_any_number_loads(bucket_url: str) -> None:
    def save(comm: ThreadRanks) -> None:
        with standfast.Store(bucket_url).run("a") as run:
            mine = standfast.per_rank({"rank": comm.rank, "w": np.full(9, comm.rank)})
            run.save(1, {"shared": np.arange(50_000.0), "mine": mine}, comm=comm)

    on_ranks(3, save)
    store = standfast.Store(bucket_url)
    loaded = store.resolve("a@1").state()
    assert (loaded["shared"] == np.arange(50_000.0)).all()
    assert store.resolve("a@1").verify().tensors >= 4


def test_gc_knows_the_age_of_an_unfinished_upload(bucket_url: str) -> None:
    store = standfast.Store(bucket_url)
    run = store.run("a")
    run.save(1, STATE)
    parts = urlsplit(store.url)
    key = f"{parts.path.strip('/')}/models/{run.hash}/{run.hash}_step_000002.0123abcd.x.safetensors"
    program = Path(remote.__file__).with_name("begin_upload.py")
    with subprocess.Popen(
        [sys.executable, program, parts.netloc, key],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout
        assert child.stdout.readline() == "begun\n"
        child.kill()
    assert [each.name for each in store.backend.unfinished()] == [key.partition("checkpoints/")[2]]
    assert plan(store).lines == [], "somebody may be at it"
    later = plan(store, now=datetime.now(UTC) + timedelta(days=3))
    (line,) = later.lines
    assert (line.kind, line.run) == ("upload", run.hash)
    assert "begun 3 days ago, and never finished" in line.why
    done = carry_out(store, later)
    assert done.lines == [line]
    assert store.backend.unfinished() == []
    assert plan(store, now=later.now).lines == []
    assert store.resolve("a@1").verify().nbytes == 280_012


def test_gc_says_that_there_is_no_trash(bucket_url: str) -> None:
    with standfast.Store(bucket_url) as store, store.run("a") as run:
        for step in (1, 2, 3):
            run.save(step, {"w": np.full(100_000, step)})
    command = ["gc", "--keep-last", "1", "--store", bucket_url]
    shown = CliRunner().invoke(app, command)
    assert shown.exit_code == 0, shown.output
    assert "there is no trash in an object store: what goes does not come back" in shown.output
    done = CliRunner().invoke(app, [*command, "--yes"])
    assert "2 checkpoints deleted" in done.output
    assert standfast.Store(bucket_url).index.steps(run.hash) in ([], [3])
    assert standfast.Store(bucket_url).resolve("a").head.step == 3
    data = [name for name, _ in store.backend.list(f"models/{run.hash}", ".safetensors")]
    assert len(data) == 1


def test_its_place_opens_it_again(bucket_url: str, tmp_path: Path) -> None:
    with standfast.Store(bucket_url) as store:
        store.run("a").save(1, STATE)
    for given in (bucket_url, f"{bucket_url}/", str(tmp_path)):
        store = standfast.Store(given)
        assert store.place is not None
        assert standfast.Store(store.place).url == store.url
    assert standfast.Store(MemoryBackend()).place is None
    assert standfast.Store(LocalBackend(tmp_path / "elsewhere")).place is None
