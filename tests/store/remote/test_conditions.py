"""A server that does not honour the conditions of a write is refused before anything is written."""

from collections.abc import Callable

import obstore
import pytest

from standfast import Store
from standfast.errors import DamagedFile, FellBack, UnsupportedStore
from standfast.packages.remote.folder import RemoteFolder
from standfast.packages.writer import uploading
from standfast.store.maintenance.verify import verify_store
from standfast.store.remote.backend import RemoteBackend
from standfast.store.remote.client import PROBES, Client
from tests.kit.cases import kept
from tests.kit.object_store.faults import Answer, Fault, Instead
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.object_store.server import Server
from tests.store.remote.places import check, data_key, fresh, keys, objects, state

CREATE, REPLACE = "if-none-match", "if-match"


def _is_probe(request: Request) -> bool:
    return f"/{PROBES}/" in request.path


def _let(proxy: Proxy, fault: Fault, *conditions: str) -> None:
    """Do this to each put with one of these conditions."""

    def conditional(request: Request) -> bool:
        return request.method == "PUT" and bool({*conditions} & request.headers.keys())

    proxy.rule(fault, conditional, times=None)


@pytest.fixture
def ignoring(server: Server, proxy: Proxy) -> Callable[..., None]:
    """Let the server ignore conditions."""

    def put(request: Request, body: bytes) -> Answer:
        _, bucket, key = request.path.split("/", 2)
        done = obstore.put(server.client(bucket), key, body)
        return Answer(200, headers=(f"ETag: {done['e_tag']}",))

    return lambda *conditions: _let(proxy, Instead(put), *conditions)


@pytest.fixture
def saved(
    bucket_url: str, server: Server, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> dict[int, str]:
    """Two checkpoints, saved at another address: the one of the proxy was not asked yet."""
    with monkeypatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        with Store(bucket_url) as store, store.run("a") as run:
            for step in (1, 2):
                run.save(step, state(step))
            return {step: data_key(run, step) for step in (1, 2)}


@pytest.mark.guarantee("G10")
def test_damage_is_reported_and_falls_back_on_a_server_that_cannot_be_written_to(
    saved, bucket_url, client, ignoring, tmp_path
):
    data = bytes(obstore.get(client, saved[2]).bytes())
    obstore.put(client, saved[2], data[:-1] + bytes([data[-1] ^ 1]))
    ignoring(CREATE, REPLACE)
    store = fresh(bucket_url)
    with pytest.warns(FellBack):
        assert store.find_run("a").load()["seed"] == 1
    for read in (
        lambda: store.find_run("a").load(2),
        lambda: store.resolve("a@2").verify(),
        lambda: store.resolve("a@2").copy_to(Store(tmp_path)),
    ):
        with pytest.raises(DamagedFile):
            read()
    assert verify_store(store).code == 1


def test_reading_does_not_ask(saved, bucket_url, proxy, ignoring):
    ignoring(CREATE, REPLACE)
    check(fresh(bucket_url), state(1), state(2))
    assert fresh(bucket_url).runs()
    assert not any(map(_is_probe, proxy.log))
    # This one would like to write a mark, and does without.
    assert fresh(bucket_url).resolve("a@1").verify().nbytes


def _new(backend: RemoteBackend) -> None:
    with backend.new("a/b.x") as file:
        file.finish(0)
        file.place()


WRITES: dict[str, Callable[[RemoteBackend], object]] = {
    "create": lambda backend: backend.create("a/b.json", b"1"),
    "replace": lambda backend: backend.replace("a/b.json", b"1"),
    "new": _new,
    "lock": lambda backend: backend.lock("a"),
    "delete": lambda backend: backend.delete(["a/b.json"]),
}


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("ignored", [(CREATE,), (REPLACE,), (CREATE, REPLACE)])
def test_it_is_refused_before_the_first_write(bucket_url, client, proxy, ignoring, ignored, write):
    ignoring(*ignored)
    for _ in range(2):
        with pytest.raises(UnsupportedStore):
            WRITES[write](RemoteBackend(f"{bucket_url}/checkpoints"))
    # A deletion of several objects, which their probes are, names them in its body.
    changes = [each for each in proxy.log if each.method in ("PUT", "DELETE")]
    assert changes
    assert all(map(_is_probe, changes))
    assert objects(client) == {}


@pytest.mark.parametrize("status", kept([400, 501], 400))
@pytest.mark.parametrize("condition", [CREATE, REPLACE])
def test_one_that_does_not_know_conditions_is_refused(bucket_url, client, proxy, condition, status):
    _let(proxy, Answer(status, b"<Error><Code>NotImplemented</Code></Error>"), condition)
    with pytest.raises(UnsupportedStore):
        fresh(bucket_url).run("a").save(1, state(1))
    assert objects(client) == {}


def test_it_is_asked_once_for_each_address(bucket_url, client, proxy):
    for place in (bucket_url, f"{bucket_url}/checkpoints"):
        for number in (1, 2):
            with fresh(place).run(f"run {number}") as run:
                run.save(number, state(number))
        probes = [each for each in proxy.log if _is_probe(each)]
        assert sum(each.method == "PUT" for each in probes) == 4
        assert len(probes) <= 6
        proxy.reset()
    assert not any(PROBES in key for key in keys(client))


def test_a_package_is_not_uploaded_there(bucket_url, client, ignoring):
    ignoring(REPLACE)
    with (
        pytest.raises(UnsupportedStore),
        uploading(RemoteFolder(Client(f"{bucket_url}/checkpoints")), lambda _: False) as aside,
    ):
        (aside / "config.json").write_text("{}")
    assert objects(client) == {}
