"""The commands that take packages, with URLs."""

from __future__ import annotations

import json

import pytest

from standfast.packages import load_model_folder, save_model_folder, save_to_store
from standfast.store import Store
from standfast.store.remote.client import Client
from tests.kit.cli import call
from tests.packages import hugging
from tests.packages.stored_models import TINY, bits, model


@pytest.fixture
def url(bucket_url: str) -> str:
    """A package."""
    url = f"{bucket_url}/models/recipes_20261116_120000"
    save_model_folder(model(1), hugging.byte_level_bpe(), TINY, url)
    return url


def test_packages_are_listed(url: str) -> None:
    done = call("models", url.rpartition("/")[0])
    assert (done.code, done.err) == (0, "")
    assert "recipes_20261116_120000" in done.out
    assert "whole" in done.out
    [found] = json.loads(call("models", url, "--json").out)
    assert found["path"] == url


def test_a_package_is_shown(url: str) -> None:
    done = call("show", url)
    assert (done.code, done.err) == (0, "")
    assert done.lines[0] == url
    assert "vocab_size: 300" in done.out
    assert "model.safetensors" in done.out
    above = call("show", url.rpartition("/")[0])
    assert above.code != 0
    assert "no model package" in above.err


def test_a_package_is_verified(url: str) -> None:
    done = call("verify", url)
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith(f"intact      {url}: ")
    [place] = {key.rpartition("/")[0] for key, _ in Client(url).list(".standfast")[0]}
    Client(url).delete([f"{place}/config.json"])
    damaged = call("verify", url)
    assert damaged.code == 1
    assert "config.json is missing" in damaged.out
    assert call("verify", f"{url}_gone").code != 0


def test_a_checkpoint_is_exported(bucket_url: str) -> None:
    run = Store(bucket_url).run("gpt", hp={"lr": 1})
    save_to_store(run, 3, model(1), hugging.byte_level_bpe(), TINY)
    target = f"{bucket_url}/exported/gpt"
    done = call("export", "--package", "gpt@3", target, "--store", bucket_url)
    assert (done.code, done.err) == (0, "")
    assert done.lines[0].startswith(f"exported    {target}: ")
    assert bits(load_model_folder(target)[0]) == bits(model(1))
    again = call("export", "--package", "gpt@3", target, "--store", bucket_url)
    assert again.code != 0
    assert "--yes replaces it" in again.err
    assert call("export", "--package", "gpt@3", target, "--store", bucket_url, "--yes").code == 0


@pytest.mark.parametrize("command", ["pack", "unpack", "show", "verify", "models"])
def test_a_password_in_a_url_is_not_shown(command: str) -> None:
    done = call(command, "s3://AKIA:HIDDEN@bucket/x.tar.gz")
    assert done.code != 0
    assert "credentials come from the environment" in done.out + done.err
    assert "HIDDEN" not in done.out + done.err
