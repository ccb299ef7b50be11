"""Packages in an object store: all that folders can do, against a real server."""

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from standfast import errors
from standfast.packages import (
    Config,
    DatasetInfo,
    GenerationInfo,
    VarMap,
    export,
    list_saved_models,
    load_model,
    load_model_folder,
    load_model_mmaped,
    pack,
    save_model,
    save_model_folder,
    save_to_store,
    unpack,
    verify_package,
)
from standfast.packages.remote import places
from standfast.packages.remote.folder import FORMAT, SAVES, RemoteFolder, RemotePath
from standfast.store import Store
from standfast.store.remote.client import Client, Meta, Tag
from tests.kit.cli import call
from tests.kit.object_store.faults import Answer, Call, DropAnswer, Rule
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import Proxy
from tests.packages import hugging
from tests.packages.saved_packages import PARAMETERS, make_foreign, make_package
from tests.packages.stored_models import TINY, bits, check_refused, model


@pytest.fixture
def url(bucket_url: str) -> str:
    """Where nothing is yet."""
    return f"{bucket_url}/models/recipes"


def save(url: str, seed: int = 1, **options: Any) -> None:
    save_model_folder(model(seed), hugging.byte_level_bpe(), TINY, url, **options)


def put_package(url: str, folder: Path) -> str:
    """A package of `saved_packages` at a URL, as a copying tool puts it there."""
    client = Client(url)
    for path in sorted(folder.iterdir()):
        client.put(path.name, path.read_bytes())
    return url


def files(url: str) -> dict[str, bytes]:
    """All objects below a URL."""
    client = Client(url)
    return {key: bytes(client.get(key)) for key, _ in client.list()[0]}


def inside(url: str) -> str:
    """The URL of the folder that has the files of a package that was saved at a URL."""
    pointer = RemoteFolder(Client(url)).pointer()
    return url if pointer is None else f"{url}/{SAVES}/{pointer.folder}"


def change(url: str, name: str, data: bytes | None) -> None:
    """Let a file of a package have other content, or be missing."""
    client = Client(inside(url))
    client.delete([name]) if data is None else client.put(name, data)


def with_flips(data: bytes, *places: int) -> bytes:
    changed = bytearray(data)
    for at in places:
        changed[at] ^= 0xFF
    return bytes(changed)


def during(
    proxy: Proxy, method: str, name: str, action: Callable[[], None], late: bool = False
) -> Rule:
    """Do something when a file is first asked for, or when it was."""
    call = Call(lambda _: action(), late)
    return proxy.rule(call, lambda each: each.method == method and each.path.endswith(f"/{name}"))


@pytest.mark.parametrize(
    "options", [{}, {"max_shard_size": 20_000}, {"quantize": "int8"}], ids=["one", "shards", "int8"]
)
def test_a_package_is_as_from_a_folder(url, tmp_path, options):
    save(url, **options)
    save(str(tmp_path / "recipes"), **options)
    loaded, tokenizer, config, state = load_model_folder(url)
    assert bits(loaded) == bits(load_model_folder(tmp_path / "recipes")[0])
    assert tokenizer.decode(tokenizer.encode("Take two eggs").ids) == "Take two eggs"
    assert config == TINY
    assert state["ln_f.bias"] is loaded.ln_f.bias
    assert f"loaded from {url}, verified" in repr(loaded)
    assert files(inside(url)).keys() == {path.name for path in (tmp_path / "recipes").iterdir()}
    assert verify_package(url) == verify_package(tmp_path / "recipes")


def test_weights_that_cannot_be_mapped_are_read(url):
    save(url)
    loaded, config = load_model_mmaped(url)
    assert bits(loaded) == bits(model(1))
    assert f"read from {url}, not verified" in repr(loaded)
    assert config.n_embd == TINY.n_embd
    single, _ = load_model_mmaped(f"{url}/model.safetensors", verify=True)
    assert bits(single) == bits(model(1))


def test_a_large_object_is_uploaded_in_parts(url, proxy, seams):
    seams.bound("part of an uploaded package", 5 << 20)
    config = TINY.changed(vocab_size=100_000)
    large = model(1, config)
    save_model(large, f"{url}.safetensors", {"epoch": 3})
    assert proxy.requests["PUT"] > 1
    loaded, found, _ = load_model(f"{url}.safetensors")
    assert bits(loaded) == bits(large)
    assert found == config


def test_weights_may_be_in_one_object_without_their_configuration(url):
    path, other = f"{url}/weights.safetensors", model(2)
    save_model(model(1).state_dict(), path)
    with pytest.raises(errors.MissingFile, match=r"config\.json.*weights\.json"):
        load_model(path)
    TINY.save(f"{url}/weights.json")
    assert bits(load_model(path)[0]) == bits(model(1))
    VarMap(other).load(path)
    assert bits(other) == bits(model(1))
    VarMap(model(3)).save(path)
    assert bits(load_model(path)[0]) == bits(model(3))


def test_the_other_files_are_read_by_their_urls(url):
    info = GenerationInfo("recipes", "tiny", creation_date="2026-03-01T12:00:00+00:00")
    dataset = DatasetInfo.of_texts(["one text", "another"])
    save(url, generation_info=info, dataset=dataset)
    assert Config.load(f"{url}/config.json").n_embd == TINY.n_embd
    assert GenerationInfo.load(f"{url}/generation_info.json") == info
    assert DatasetInfo.load(f"{url}/dataset.json").samples == dataset.samples
    save_model_folder(model(2), url, url, f"{url}_2")  # its tokenizer, and its configuration
    assert files(inside(f"{url}_2"))["tokenizer.json"] == files(inside(url))["tokenizer.json"]


def test_packages_are_listed_the_newest_first(bucket_url, tmp_path):
    info = GenerationInfo("recipes", "small", creation_date="2026-03-01T12:00:00+00:00")
    put_package(f"{bucket_url}/new", make_package(tmp_path / "new", info))
    put_package(f"{bucket_url}/old_20250101_120000", make_package(tmp_path / "old"))
    Client(bucket_url).put(".hidden/model.safetensors", b"")
    Client(bucket_url).put("data/config.json", b"{}")
    new, old = list_saved_models(bucket_url)
    assert (new.name, new.integrity, new.problem) == ("new", "whole", "")
    assert new.creation_date == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert (new.parameters, new.model_size, new.dtype) == (PARAMETERS, "small", "float32")
    assert new.files == tuple(sorted(files(f"{bucket_url}/new")))
    assert new.nbytes == sum(map(len, files(f"{bucket_url}/new").values()))
    assert (old.name, old.integrity) == ("old_20250101_120000", "whole")


def test_the_path_of_a_listed_package_is_taken_by_all(bucket_url):
    url = f"{bucket_url}/recipes"
    save(url)
    [info], [alone] = list_saved_models(bucket_url), list_saved_models(url)
    assert info.path == alone.path == RemotePath(url)
    assert str(info.path) == url
    assert bits(load_model_folder(info.path)[0]) == bits(model(1))
    assert Config.load(info.path / "config.json").n_embd == TINY.n_embd


def test_a_foreign_package_is_unverified_and_loads_with_a_warning(url, tmp_path):
    put_package(url, make_foreign(tmp_path / "gpt2"))
    [info] = list_saved_models(url)
    assert (info.integrity, info.parameters) == ("unverified", PARAMETERS)
    save(f"{url}_own")
    change(f"{url}_own", "manifest.json", None)
    with pytest.warns(errors.NotVerified):
        load_model_folder(f"{url}_own")


def test_a_list_fetches_headers_only(bucket_url, tmp_path, proxy):
    config = Config(vocab_size=20_000, n_positions=8, n_embd=64, n_layer=1, n_head=2)
    folder = make_package(tmp_path / "large", config=config)
    assert (folder / "model.safetensors").stat().st_size > 5_000_000
    for number in range(2):
        put_package(f"{bucket_url}/{number}", folder)
    proxy.reset()
    assert [info.integrity for info in list_saved_models(bucket_url)] == ["whole"] * 2
    assert proxy.down < 2 * 80_000
    assert proxy.requests.total() <= 1 + 2 * 5


def test_a_load_fetches_little_more_than_the_package(url, tmp_path, proxy):
    config = TINY.changed(vocab_size=30_000)
    save_model_folder(model(1, config), hugging.byte_level_bpe(), config, url, max_shard_size=1e6)
    size = sum(map(len, files(url).values()))
    for load in (load_model_folder, load_model_mmaped):
        proxy.reset()
        load(url)
        assert proxy.down < size + 400_000
        assert proxy.requests.total() < 3 * len(files(url))


def test_verifying_part_by_part_names_all_damaged_tensors(url, seams):
    config = TINY.changed(n_embd=128, n_layer=6)
    save_model_folder(model(1, config), hugging.byte_level_bpe(), config, url)
    seams.bound("part of a check", 500_000)
    tracemalloc.start()
    try:
        verified = verify_package(url)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert verified.tensors == len(model(1, config).state_dict())
    assert peak < verified.nbytes / 2  # no more than a part is in memory
    data = Client(inside(url)).get("model.safetensors")
    header = int.from_bytes(data[:8], "little") + 8
    change(url, "model.safetensors", with_flips(data, header, -1))
    with pytest.raises(errors.DigestMismatch) as caught:
        verify_package(url)
    assert len(caught.value.tensors) == 2


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_or_damaged_file_is_named(url, name):
    save(url)
    content = Client(inside(url)).get(name)
    for changed, error in (
        (with_flips(content, -1), errors.DigestMismatch),
        (content[:-100], errors.DamagedFile),
        (None, (errors.MissingFile, errors.MissingData)),
    ):
        change(url, name, changed)
        check_refused(url, error, name)
        [info] = list_saved_models(url)
        is_seen = error is not errors.DigestMismatch or name != "model.safetensors"
        assert (info.integrity == "broken") == is_seen
        assert name in info.problem or not is_seen


def test_an_index_leads_nowhere_else(url):
    save(url, max_shard_size=20_000)
    change(url, "manifest.json", None)
    for start in ("../other/", "/", "s3://elsewhere/"):
        shard = f"{start}model-00001-of-00001.safetensors"
        index = {"weight_map": dict.fromkeys(model(1).state_dict(), shard)}
        change(url, "model.safetensors.index.json", json.dumps(index).encode())
        check_refused(url, errors.BadField, "index", load_model_folder)
        assert list_saved_models(url)[0].integrity == "broken"


def test_a_pickle_is_refused(url):
    save(url)
    change(url, "notes.txt", b"\x80\x04K\x01.")
    check_refused(url, errors.RefusedPickle, r"notes\.txt", load_model_folder)
    load_model_folder(url, ignore_pickles=True)


def test_where_nothing_is_nothing_is_found(url):
    all_that_look = (list_saved_models, load_model_folder, verify_package, load_model_mmaped)
    check_refused(url, errors.MissingFile, "recipes", *all_that_look)
    check_refused(f"{url}/model.safetensors", errors.MissingFile, "model.safetensors", load_model)


def test_wrong_credentials_are_not_shown(url, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret-at-all")
    for look in (list_saved_models, load_model_folder, verify_package, save):
        with pytest.raises(errors.FileError, match="credentials") as caught:
            look(url)
        assert "not-the-secret-at-all" not in str(caught.value)
        assert not isinstance(caught.value, errors.MissingFile)


def test_a_server_that_does_not_answer_breaks_no_package(url, proxy):
    save(url)
    proxy.rule(Answer(403), lambda request: "config.json" in request.path, times=None)
    [info] = list_saved_models(url)
    assert info.integrity == "unverified"
    assert info.problem
    check_refused(url, errors.FileError, r"config\.json", load_model_folder)


def test_a_package_is_replaced_and_what_is_not_of_it_stays(url):
    save(url, 1, max_shard_size=20_000)
    Client(url).put("README.md", b"mine")
    save(url, 2)
    assert bits(load_model_folder(url)[0]) == bits(model(2))
    assert Client(url).get("README.md") == b"mine"
    assert not any("-of-" in name for name in files(url))


def test_files_of_others_are_not_overwritten(url):
    client = Client(url)
    client.put("config.json", b"{}")
    client.put("merges.txt", b"a b")
    with pytest.raises(errors.AlreadyExists, match=r"config\.json"):
        save(url)
    assert files(url) == {"config.json": b"{}", "merges.txt": b"a b"}


def test_a_manifest_leads_nowhere_else_and_deletes_nothing_there(url):
    save(f"{url}_other")
    names = ["../recipes_other/manifest.json", "..", "", "/etc/passwd", "old.txt", 7]
    said = {"format": FORMAT, "folder": "0123456789abcdef", "replaced": names}
    client = Client(url)
    client.put("old.txt", b"of a package that was replaced")
    for folder in ("../../recipes_other", "..", 7, None):
        client.put("manifest.json", json.dumps({**said, "folder": folder}).encode())
        looks = (load_model_folder, verify_package, list_saved_models)
        check_refused(url, errors.BadField, "manifest", *looks)
    client.put("manifest.json", json.dumps(said).encode())
    check_refused(url, (errors.MissingFile, errors.MissingData), None, load_model_folder)
    save(url)
    assert "old.txt" not in files(url)
    verify_package(url)
    verify_package(f"{url}_other")


def changes_state(request: Request) -> bool:
    return request.method in ("PUT", "DELETE", "POST")


@pytest.mark.guarantee("G1")
@pytest.mark.parametrize(
    ("before", "fault"),
    [
        pytest.param("copied", Answer(403), id="copied, before"),
        *(
            pytest.param(before, fault, id=f"{before}, {when}", marks=pytest.mark.long)
            for before in ("nothing", "saved", "copied")
            for when, fault in (("before", Answer(403)), ("after", DropAnswer()))
            if (before, when) != ("copied", "before")
        ),
    ],
)
def test_a_save_that_ends_at_any_request_leaves_the_old_package_or_the_new(
    bucket_url, tmp_path, before, fault, proxy
):
    """From one request on, none reaches the server, as if the program had been killed there."""
    folder = tmp_path / "plain"
    save_model_folder(model(1), hugging.byte_level_bpe(), TINY, folder, max_shard_size=20_000)
    for number in range(40):
        url = f"{bucket_url}/{number}"
        if before == "saved":
            save(url, 1, max_shard_size=20_000)
        elif before == "copied":
            put_package(url, folder)
        reached = proxy.rule(fault, changes_state, times=1, skip=number)
        proxy.rule(Answer(403), lambda _, rule=reached: rule.fired.is_set(), times=None)
        with suppress(errors.FileError):
            save(url, 2)
        proxy.heal()
        if not reached.fired.is_set():
            break
        if before == "nothing" and "manifest.json" not in files(url):
            with suppress(errors.MissingFile):
                assert list_saved_models(url) == []
            with pytest.raises((errors.MissingFile, errors.MissingData)):
                load_model_folder(url)
        else:
            expected = [bits(model(seed)) for seed in ((2,) if before == "nothing" else (1, 2))]
            assert bits(load_model_folder(url)[0]) in expected
            assert [info.integrity for info in list_saved_models(url)] == ["whole"]
            verify_package(url)
        save(url, 3)  # which removes what was left
        assert bits(load_model_folder(url)[0]) == bits(model(3))
        place = inside(url).removeprefix(f"{url}/")
        left = files(url).keys() - {"manifest.json", *(f"{place}/{n}" for n in files(inside(url)))}
        assert not {name for name in left if "/probes/" not in name}
    assert number > 6
    assert bits(load_model_folder(url)[0]) == bits(model(2))


@pytest.mark.parametrize("is_there", [False, True])
def test_a_save_that_fails_leaves_nothing_of_it(url, is_there, proxy):
    if is_there:
        save(url)
    there = files(url)
    proxy.rule(Answer(403), lambda each: each.path.endswith("/tokenizer.json"), times=None)
    with pytest.raises(errors.FileError):
        save(url, 2)
    proxy.heal()
    assert files(url) == there


def test_names_that_lead_elsewhere_are_not_listed():
    class Odd(Client):
        def list(self, prefix: str = "", deep: bool = True) -> Any:
            meta = Meta(1, Tag("tag"), 0.0)
            return [("..", meta), ("x/.", meta), ("config.json", meta)], ["..", "x/", "."]

    folder = RemoteFolder(Odd("s3://bucket/models"))
    assert list(folder.files) == ["config.json"]
    assert folder.folders == ["x"]


def test_a_copy_on_this_machine_says_where_the_package_is(url, tmp_path):
    save(url)
    for name, data in files(url).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(data)
    with pytest.raises(errors.UnsupportedFile):
        verify_package(tmp_path)
    verify_package(tmp_path / inside(url).removeprefix(f"{url}/"))


@pytest.mark.parametrize("at", ["model.safetensors", "tokenizer_config.json"])
def test_of_two_saves_at_once_one_is_refused(url, at, proxy):
    during(proxy, "PUT", at, lambda: save(url, 2), late=True)
    other = TINY.changed(resid_pdrop=0.5)
    with pytest.raises(errors.AlreadyExists):
        save_model_folder(model(1, other), hugging.byte_level_bpe(), other, url)
    assert bits(load_model_folder(url)[0]) == bits(model(2))


@pytest.mark.parametrize("verify", [True, False], ids=["verified", "not verified"])
def test_a_package_that_is_replaced_is_read_and_listed_again(url, verify, proxy):
    save(url, 1, max_shard_size=20_000)
    shard = "model-00002-of-00003.safetensors"
    rule = during(proxy, "GET", shard, lambda: save(url, 2, max_shard_size=20_000))
    assert bits(load_model_folder(url, verify=verify)[0]) == bits(model(2))
    assert rule.fired.is_set()
    rule = during(proxy, "GET", "config.json", lambda: save(url, 3, max_shard_size=20_000))
    [info] = list_saved_models(url)
    assert (info.integrity, info.problem) == ("whole", "")
    assert rule.fired.is_set()


def test_a_path_does_not_stand_for_a_url(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(errors.BadOption):
        save(Path("s3://bucket/models"))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


def test_archives_stay_on_this_machine(url, tmp_path):
    folder = make_package(tmp_path / "gpt")
    for action in (
        lambda: pack(url),
        lambda: pack(folder, f"{url}/gpt.tar.gz"),
        lambda: unpack(f"{url}/gpt.tar.gz"),
        lambda: unpack(pack(folder), url),
    ):
        with pytest.raises(errors.BadOption):
            action()


SECRETS = (
    "s3://AKIA:HIDDEN@bucket/models/x.json",
    "s3://AKIA:1/HIDDEN@bucket/models/x.json",
    "s3://bucket/models/x.json?token=HIDDEN",
    "https://somebody:HIDDEN@host/x.json",
)
PLACES: dict[str, Callable[[Any], Any]] = {
    "folder": places.folder_at,
    "file": places.file_at,
    "no file": lambda url: places.file_at(f"{url}/"),
    "either": places.either_at,
    "file in": lambda url: places.file_in(url, "config.json"),
    "here": places.check_are_here,
    "opened": places.opened,
    "written": lambda url: places.written_here(url).__enter__(),
    "path": lambda url: places.file_at(Path(url)),
    "unpack": unpack,
    "load": load_model,
}


@pytest.mark.parametrize("url", SECRETS, ids=range(len(SECRETS)))
def test_a_secret_in_a_url_is_in_no_error(url):
    for name, use in PLACES.items():
        with pytest.raises(errors.BadOption) as caught:
            use(url)
        error: BaseException | None = caught.value
        while error is not None:
            assert "HIDDEN" not in str(error), name
            error = error.__cause__ or error.__context__


def test_a_file_url_is_a_folder(tmp_path):
    make_package(tmp_path / "my models" / "gpt")
    [info] = list_saved_models(f"file://{tmp_path}/my%20models")
    assert (info.path, info.integrity) == (tmp_path / "my models" / "gpt", "whole")


def test_commands_list_show_and_verify_a_package(bucket_url):
    url, above = f"{bucket_url}/recipes_20261116_120000", bucket_url
    save(url)
    listed, shown, verified = call("models", above), call("show", url), call("verify", url)
    assert [(done.code, done.err) for done in (listed, shown, verified)] == [(0, "")] * 3
    assert "recipes_20261116_120000" in listed.out
    assert "whole" in listed.out
    [found] = json.loads(call("models", url, "--json").out)
    assert found["path"] == url == shown.lines[0]
    assert "vocab_size: 300" in shown.out
    assert "model.safetensors" in shown.out
    assert url in verified.lines[0]
    assert call("show", above).code != 0
    change(url, "config.json", None)
    damaged = call("verify", url)
    assert damaged.code == 1
    assert "config.json" in damaged.out
    assert call("verify", f"{url}_gone").code != 0


def test_a_checkpoint_is_exported_from_one_url_to_another(bucket_url):
    run = Store(bucket_url).run("gpt", hp={"lr": 1})
    save_to_store(run, 3, model(1), hugging.byte_level_bpe(), TINY, metrics={"loss": 2.5})
    target = f"{bucket_url}/exported/gpt"
    command = ("export", "--package", "gpt@3", target, "--store", bucket_url)
    done = call(*command)
    assert (done.code, done.err) == (0, "")
    assert target in done.lines[0]
    assert bits(load_model_folder(target)[0]) == bits(model(1))
    again = call(*command)
    assert again.code != 0
    assert "--yes" in again.err
    assert call(*command, "--yes").code == 0
    manifest = export("gpt@latest", f"{target}_2", store=bucket_url)
    assert manifest.provenance["checkpoint"]["step"] == 3


def test_commands_show_no_password_of_a_url():
    for command in ("pack", "unpack", "show", "verify", "models"):
        done = call(command, "s3://AKIA:HIDDEN@bucket/x.tar.gz")
        assert done.code != 0
        assert "HIDDEN" not in done.out + done.err
