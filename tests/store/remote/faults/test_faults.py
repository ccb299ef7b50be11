"""Saves into an object store whose server dies, is silent, or loses its answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from standfast import Store
from standfast.errors import FileError, StepExists, UnreadableFile, WriteFailed
from standfast.store.maintenance.doctor import examine
from tests.kit.cases import kept
from tests.kit.object_store.faults import Answer, Call, DropAnswer, DropRequest, HoldAnswer
from tests.kit.object_store.fixtures import running, use
from tests.kit.object_store.messages import Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.object_store.server import Server
from tests.kit.stores import same
from tests.store.remote.places import (
    check,
    data_keys,
    fresh,
    is_completion,
    is_part,
    is_record,
    large,
    orphans,
    shown,
    state,
    straight,
    use_small_parts,
)

Match = Callable[[Request], bool]


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that the tests here kill."""
    with running(tmp_path_factory.mktemp("server")) as started:
        yield started


@pytest.fixture
def killable(mortal: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """The same, running, where clients find it."""
    if mortal.pid is None:
        mortal.start()
    use(monkeypatch, mortal.environment, tmp_path)
    return mortal


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    use_small_parts(monkeypatch)


# The server dies


@pytest.mark.parametrize(
    "moment",
    kept([is_part, is_completion, is_record], is_record),
    ids=["part", "end", "record"],
)
def test_a_server_that_dies_during_a_save_and_comes_back_has_all_or_nothing_of_it(
    killable: Server, moment: Match, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{killable.bucket('dying')}/{moment.__name__}"
    back = threading.Thread(target=lambda: (time.sleep(0.5), killable.start()))
    with Proxy(killable.port) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
        run = Store(url).run("a")
        run.save(1, large(1))

        def die(request: Request) -> None:
            killable.kill()
            back.start()

        rule = proxy.rule(Call(die), moment)
        try:
            run.save(2, large(2))
        except FileError:
            back.join()
            check(fresh(url), large(1))
            run.save(2, large(2))
        back.join()
        assert rule.hits == 1
        check(fresh(url), large(1), large(2))
        assert orphans(fresh(url)) == set()
        run.close()


@pytest.mark.long
def test_a_server_that_is_gone_is_told_of_in_time_and_has_what_it_had_when_it_is_back(
    killable: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "2")
    url = f"{killable.bucket('gone')}/store"
    run = Store(url).run("a")
    run.save(1, large(1))
    killable.kill()
    begun = time.monotonic()
    with pytest.raises(FileError, match=r"cannot be reached|no answer in time") as caught:
        run.save(2, large(2))
    with pytest.raises(UnreadableFile, match="cannot be reached"):
        run.load()  # and nobody takes it for a damaged one
    assert time.monotonic() - begun < 60
    for secret in killable.environment.values():
        assert secret in (killable.endpoint, "us-east-1") or secret not in shown(caught.value)
    killable.start()
    check(fresh(url), large(1))
    run.save(2, large(2))
    run.save(3, state(3))
    check(fresh(url), large(1), large(2), state(3))
    run.close()


# Silence


@pytest.mark.parametrize(
    ("moment", "times"), [(is_part, 1), (is_record, None)], ids=["part", "record"]
)
def test_a_request_that_times_out_ends_the_save(
    proxy: Proxy,
    bucket_url: str,
    moment: Match,
    times: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "2")
    run = Store(bucket_url).run("a")
    run.save(1, state(1))
    proxy.rule(HoldAnswer(600), moment, times)
    begun = time.monotonic()
    with pytest.raises(WriteFailed, match="no answer in time"):
        run.save(2, large(2))
    assert time.monotonic() - begun < 60
    proxy.heal()
    if moment is is_record:  # it was served
        check(fresh(bucket_url), state(1), large(2))
        with pytest.raises(StepExists):
            run.save(2, large(2))
    else:
        check(fresh(bucket_url), state(1))
        run.save(2, large(2))
    check(fresh(bucket_url), state(1), large(2))
    assert orphans(fresh(bucket_url)) == set()


@pytest.mark.parametrize("fault", ["answer", "request"])
def test_a_record_that_comes_late_is_never_there_without_its_data(
    proxy: Proxy, bucket_url: str, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "2")
    run = Store(bucket_url).run("a")
    late = threading.Event()
    if fault == "answer":
        proxy.rule(HoldAnswer(600), is_record)
        late.set()
    else:
        proxy.rule(Call(lambda request: (time.sleep(2), late.set())), is_record)
    run.save(1, state(1))  # the record is asked for once more
    assert late.wait(60)
    check(fresh(bucket_url), state(1))
    run.save(2, state(2))
    check(fresh(bucket_url), state(1), state(2))
    assert orphans(fresh(bucket_url)) == set()


@pytest.mark.guarantee("G10")
def test_a_load_that_times_out_says_so_and_takes_no_older_checkpoint(
    proxy: Proxy, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "2")
    run = Store(bucket_url).run("a")
    for step in (1, 2):
        run.save(step, state(step))
    second = run.checkpoint(2).head.files[0].name
    for fault, says in ((HoldAnswer(600), "no answer in time"), (Answer(503), "503")):
        proxy.rule(fault, lambda request: request.path.endswith(second), times=None)
        with pytest.raises(UnreadableFile, match=says):
            run.load()
        proxy.heal()
    assert same(run.load(), state(2))


def is_read(request: Request) -> bool:
    return request.method == "GET" and request.path.endswith("_step_000002.json")


def is_listed(request: Request) -> bool:
    return "/models/" in request.query.get("prefix", "").rpartition("/checkpoints")[2][:-1]


@pytest.mark.parametrize("moment", [is_read, is_listed], ids=["record", "folder"])
def test_what_cannot_be_read_now_is_neither_damaged_nor_gone(
    proxy: Proxy, bucket_url: str, moment: Match, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    with Store(bucket_url).run("a") as run:
        for step in (1, 2):
            run.save(step, state(step))
    rule = proxy.rule(Answer(503), moment, times=None)
    store = fresh(bucket_url)
    for ref in ("latest", 2):
        with pytest.raises(UnreadableFile, match="503"):
            store.run("a").load(ref)
    assert rule.hits > 0
    proxy.heal()
    assert same(store.run("a").load(), state(2))


def test_doctor_calls_nothing_damaged_that_it_cannot_read_now(
    proxy: Proxy, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    with Store(bucket_url).run("a") as run:
        run.save(1, state(1))
    store = fresh(bucket_url)
    for method in ("GET", "HEAD"):
        proxy.rule(
            Answer(503),
            lambda request, method=method: (
                request.method == method and request.path.endswith(".safetensors")
            ),
            times=None,
        )
        with pytest.raises(UnreadableFile, match="503"):
            examine(store.backend, store.index)
        proxy.heal()
    assert examine(store.backend, store.index).sound


# Lost answers


def is_lock(request: Request) -> bool:
    return request.method == "PUT" and "/.standfast/locks/" in request.path


def is_version(request: Request) -> bool:
    return request.method == "PUT" and "/.standfast/versions/" in request.path


def is_begin(request: Request) -> bool:
    return request.method == "POST" and "uploads" in request.query


def is_listing(request: Request) -> bool:
    return request.method == "GET" and "list-type" in request.query


MOMENTS = {
    "record": is_record,
    "lock": is_lock,
    "version": is_version,
    "begin": is_begin,
    "part": is_part,
    "completion": is_completion,
    "listing": is_listing,
}


@pytest.mark.parametrize("fault", [DropAnswer(), DropRequest()], ids=["answer", "request"])
@pytest.mark.parametrize("moment", kept(MOMENTS, "record", "part", "lock"))
def test_what_is_lost_on_the_way_is_asked_for_again(
    proxy: Proxy, bucket_url: str, moment: str, fault: DropAnswer | DropRequest
) -> None:
    rule = proxy.rule(fault, MOMENTS[moment])
    run = Store(bucket_url).run("a")
    run.save(1, large(1))
    assert rule.hits == 1
    proxy.heal()
    check(fresh(bucket_url), large(1))
    assert orphans(fresh(bucket_url)) == set()
    with pytest.raises(StepExists):
        run.save(1, large(1))
    run.close()


def test_a_step_is_saved_once_though_every_answer_to_its_record_is_lost(
    proxy: Proxy, bucket_url: str, server: Server
) -> None:
    run = Store(bucket_url).run("a")
    rule = proxy.rule(DropAnswer(), is_record, times=3)
    run.save(1, state(1))
    assert rule.hits == 3
    assert len(data_keys(straight(server, bucket_url))) == 1
    check(fresh(bucket_url), state(1))
