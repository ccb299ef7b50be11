"""Saves into an object store whose server dies, is silent, or loses its answers."""

import threading

import pytest

from standfast import Store
from standfast.errors import FileError, StepExists, UnreadableFile, WriteFailed
from standfast.store.maintenance.doctor import examine
from tests.kit.cases import kept
from tests.kit.object_store.faults import Answer, Call, DropAnswer, DropRequest, Fault, HoldAnswer
from tests.kit.object_store.messages import Disconnected, Request
from tests.kit.object_store.proxy import Proxy
from tests.kit.stores import same
from tests.store.remote.places import (
    Match,
    check,
    fresh,
    gets,
    is_completion,
    is_listing,
    is_part,
    is_record,
    keys,
    large,
    orphans,
    state,
)

pytestmark = pytest.mark.usefixtures("small_parts")


def stop_server(proxy: Proxy, moment: Match) -> threading.Event:
    """Let the server be gone from this moment on, until the event that is returned is cleared."""
    gone = threading.Event()

    def die(request: Request) -> None:
        if gone.is_set() or (moment(request) and not fired):
            fired.append(request)
            gone.set()
            raise Disconnected

    fired: list[Request] = []
    proxy.rule(Call(die), times=None)
    return gone


@pytest.mark.parametrize("moment", kept([is_part, is_completion, is_record], is_record))
def test_a_server_that_goes_during_a_save_and_comes_back_has_all_or_nothing_of_it(
    proxy, bucket_url, moment, monkeypatch
):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    run = Store(bucket_url).run("a")
    run.save(1, large(1))
    gone = stop_server(proxy, moment)
    with pytest.raises(FileError):
        run.save(2, large(2))
    gone.clear()
    check(fresh(bucket_url), large(1))
    run.save(2, large(2))
    check(fresh(bucket_url), large(1), large(2))
    run.close()
    # The server may carry out the request for the record yet: until then its data stay.
    assert len(orphans(fresh(bucket_url))) == (moment is is_record)


@pytest.mark.parametrize(("moment", "times"), [(is_part, 1), (is_record, None)])
def test_a_request_that_times_out_ends_the_save(proxy, bucket_url, moment, times, monkeypatch):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    run = Store(bucket_url).run("a")
    run.save(1, state(1))
    proxy.rule(HoldAnswer(600), moment, times)
    with pytest.raises(WriteFailed):
        run.save(2, large(2))
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
    proxy, bucket_url, fault, monkeypatch
):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    run = Store(bucket_url).run("a")
    second, done = threading.Event(), threading.Event()
    if fault == "answer":
        proxy.rule(HoldAnswer(600), is_record)
        done.set()
    else:  # it arrives after the record that is asked for once more
        proxy.rule(Call(lambda request: (second.wait(60), done.set())), is_record)
        proxy.rule(Call(lambda request: second.set(), late=True), is_record)
    run.save(1, state(1))
    assert done.wait(60)
    check(fresh(bucket_url), state(1))
    run.save(2, state(2))
    check(fresh(bucket_url), state(1), state(2))
    assert orphans(fresh(bucket_url)) == set()


@pytest.mark.guarantee("G10")
def test_what_cannot_be_read_now_is_neither_damaged_nor_gone(proxy, bucket_url, monkeypatch):
    monkeypatch.setenv("STANDFAST_TIMEOUT", "1")
    with Store(bucket_url).run("a") as run:
        for step in (1, 2):
            run.save(step, state(step))
    data = run.checkpoint(2).head.files[0].name
    folder = f"/models/{run.hash}"

    def is_listed(request: Request) -> bool:
        return is_listing(request) and folder in request.query.get("prefix", "")

    faults: list[tuple[Match, Fault]] = [
        (gets(data), HoldAnswer(600)),
        (gets(data), Answer(503)),
        (gets("_step_000002.json"), Answer(503)),
        (is_listed, Answer(503)),
    ]
    for moment, fault in faults:
        rule = proxy.rule(fault, moment, times=None)
        store = fresh(bucket_url)
        with pytest.raises(UnreadableFile):
            store.run("a").load()
        assert rule.hits > 0
        proxy.heal()
        assert same(store.run("a").load(), state(2)), "it took an older one, or called it damaged"
    for method in ("GET", "HEAD"):
        proxy.rule(
            Answer(503),
            lambda request, method=method: request.method == method and request.path.endswith(data),
            times=None,
        )
        with pytest.raises(UnreadableFile):
            examine(store.backend, store.index)
        proxy.heal()
    assert examine(store.backend, store.index).sound


# Lost answers


def is_internal(folder: str) -> Match:
    return lambda request: request.method == "PUT" and f"/.standfast/{folder}/" in request.path


MOMENTS: dict[str, Match] = {
    "record": is_record,
    "lock": is_internal("locks"),
    "version": is_internal("versions"),
    "begin": lambda request: request.method == "POST" and "uploads" in request.query,
    "part": is_part,
    "completion": is_completion,
    "listing": is_listing,
}


@pytest.mark.parametrize("fault", [DropAnswer(), DropRequest()], ids=["answer", "request"])
@pytest.mark.parametrize("moment", kept(MOMENTS, "part", "lock"))
def test_what_is_lost_on_the_way_is_asked_for_again(proxy, bucket_url, moment, fault):
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


def test_a_step_is_saved_once_though_every_answer_to_its_record_is_lost(proxy, bucket_url, client):
    run = Store(bucket_url).run("a")
    rule = proxy.rule(DropAnswer(), is_record, times=3)
    run.save(1, state(1))
    assert rule.hits == 3
    assert len(keys(client, ".safetensors")) == 1
    check(fresh(bucket_url), state(1))
