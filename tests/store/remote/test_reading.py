"""Objects that are not what was saved, and answers that are not what the server said."""

from collections.abc import Callable
from contextlib import suppress

import obstore
import pytest
from obstore.store import S3Store

from standfast import Run, Store
from standfast.errors import (
    ChangedFile,
    DamagedFile,
    DigestMismatch,
    FellBack,
    MissingData,
    MissingFile,
    TruncatedFile,
)
from standfast.store.maintenance.doctor import examine
from standfast.store.remote.backend import RemoteBackend
from standfast.store.schema import names
from tests.kit.object_store.faults import Call, CutAnswer, ReplaceInAnswer
from tests.kit.object_store.proxy import Proxy
from tests.kit.stores import same
from tests.store.remote.places import data_key, fresh, gets, is_listing, state

SIZE = 300_000


def change(how: Callable[[bytes], bytes]) -> Callable[[S3Store, str, str], None]:
    """Puts other bytes in the place of an object."""

    def changed(client: S3Store, key: str, other: str) -> None:
        obstore.put(client, key, how(bytes(obstore.get(client, key).bytes())))

    return changed


def swap(client: S3Store, key: str, other: str) -> None:
    obstore.put(client, key, obstore.get(client, other).bytes())


def delete(client: S3Store, key: str, other: str) -> None:
    obstore.delete(client, key)


def turned(data: bytes) -> bytes:
    return data[: SIZE // 2] + bytes([data[SIZE // 2] ^ 1]) + data[SIZE // 2 + 1 :]


HARM: dict[str, tuple[Callable[[S3Store, str, str], None], type[DamagedFile]]] = {
    "cut": (change(lambda data: data[:-1]), TruncatedFile),
    "lengthened": (change(lambda data: data + b"\0"), TruncatedFile),
    "swapped": (swap, DigestMismatch),
    "turned": (change(turned), DigestMismatch),
    "deleted": (delete, MissingData),
}


@pytest.fixture
def run(proxy: Proxy, bucket_url: str) -> Run:
    """Two checkpoints, each with one data file of the same size."""
    run = Store(bucket_url).run("a")
    for step in (1, 2):
        run.save(step, state(step, SIZE))
    return run


@pytest.mark.parametrize("how", HARM)
def test_a_damaged_object_is_never_loaded(run, how, client, bucket_url):
    harm, kind = HARM[how]
    harm(client, data_key(run, 2), data_key(run, 1))
    for store in (run.store, fresh(bucket_url)):
        found = store.run("a")
        with pytest.raises(kind):
            found.load(2)
        with pytest.warns(FellBack, match=f"{run.hash}@1"):
            assert same(found.load(), state(1, SIZE))
        with pytest.raises(DamagedFile):
            found.checkpoint(2).verify()
        found.checkpoint(1).verify()
    diagnosis = examine(store.backend, store.index)
    assert list(diagnosis.damaged) == [f"{run.hash}@2"]
    assert diagnosis.checkpoints == 2
    run.save(2, state(3, SIZE))  # whoever fell back comes by here again
    assert same(fresh(bucket_url).run("a").load(), state(3, SIZE))


def test_a_record_that_is_damaged_is_named(run, client, bucket_url):
    key = names.record_file(run.hash, 2)
    change(lambda data: data[:-30])(client, key, "")
    with pytest.raises(DamagedFile, match=r"_step_000002\.json"):
        fresh(bucket_url).run("a").load(2)
    with pytest.warns(FellBack):
        assert same(fresh(bucket_url).run("a").load(), state(1, SIZE))
    obstore.delete(client, key)
    assert [each.step for each in fresh(bucket_url).run("a").checkpoints()] == [1]


@pytest.mark.parametrize("how", ["swapped", "turned", "deleted"])
def test_an_object_that_changes_while_it_is_open_is_not_read_on(run, how, client, bucket_url):
    key = data_key(run, 2)
    opened = RemoteBackend(f"{bucket_url}/checkpoints").open(key)
    assert len(opened.read(0, 100)) == 100
    HARM[how][0](client, key, data_key(run, 1))
    with pytest.raises((ChangedFile, MissingFile)):
        opened.read(opened.size - 70_000, 70_000)
    opened.close()


def test_an_object_that_changes_in_the_middle_of_a_load_is_never_half_of_each(proxy, run, client):
    key, other = data_key(run, 2), data_key(run, 1)
    rule = proxy.rule(Call(lambda request: swap(client, key, other)), gets(key.rpartition("/")[2]))
    with pytest.raises((ChangedFile, DigestMismatch)):
        run.load(2)
    assert rule.hits == 1


# Answers


@pytest.mark.parametrize("at", [0, 5_000, SIZE])
def test_bytes_that_change_on_the_way_are_noticed(proxy, run, bucket_url, at):
    for end in (data_key(run, 1).rpartition("/")[2], "_step_000001.json"):
        rule = proxy.rule(ReplaceInAnswer(at, b"?!"), gets(end), times=None)
        with suppress(DamagedFile):  # some bytes of a file are not asked for
            assert same(fresh(bucket_url).run("a").load(1), state(1, SIZE))
        assert rule.hits > 0
        proxy.heal()
    assert same(run.load(1), state(1, SIZE))


ANSWERS = {
    "data": gets(".safetensors"),
    "record": gets("_step_000002.json"),
    "listing": is_listing,
}


@pytest.mark.parametrize("after", [0, 1, 100_000])
@pytest.mark.parametrize("what", ANSWERS)
def test_an_answer_that_breaks_off_is_asked_for_again(proxy, run, bucket_url, what, after):
    rule = proxy.rule(CutAnswer(after), ANSWERS[what])
    assert same(fresh(bucket_url).run("a").load(), state(2, SIZE))
    assert rule.hits == 1
