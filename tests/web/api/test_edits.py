"""What may be changed, and by whom."""

from pathlib import Path

import pytest

from standfast import Store
from tests.kit.cli import call
from tests.web.api.client import HERE, Api


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path)
    with store.run("a") as run:
        run.save(1, {"x": 1})
        run.save(2, {"x": 2})
    return store


@pytest.fixture
def run(store: Store) -> str:
    return store.find_run("a").hash


def test_tags_notes_and_names_are_those_of_the_command_line(store, run, tmp_path):
    edits = (
        (f"/checkpoints/{run}/1/tags", {"tag": "paper"}),
        (f"/checkpoints/{run}/1/notes", {"text": "The first <b>one</b>."}),
        (f"/runs/{run}/name", {"name": "another"}),
    )
    for path, body in edits:
        assert "--allow-edit" in Api(store).send(path, body, status=403)["error"]["message"]
    Api(store).send(f"/checkpoints/{run}/1/tags/paper", status=403, method="DELETE")
    api = Api(tmp_path, allow_edit=True)
    assert api("/store")["allow_edit"] is True
    for path, body in edits:
        api.send(path, body)
    shown = call("show", f"{run}@1", "--json", "--store", tmp_path).json
    assert (shown["tags"], shown["name"]) == (["paper"], "another")
    assert [note["text"] for note in shown["notes"]] == ["The first <b>one</b>."]
    assert api.send(f"/checkpoints/{run}/1/tags/paper", method="DELETE")["tags"] == []
    assert store.resolve(f"{run}@1").tags == []


def test_only_pages_of_the_dashboard_change_anything(store, run):
    client = Api(store, allow_edit=True).client
    path, body = f"/api/v1/checkpoints/{run}/1/tags", b'{"tag":"paper"}'
    good = {"X-Standfast": "1", "Content-Type": "application/json", "Origin": HERE}
    for status, headers in (
        (403, {**good, "X-Standfast": "0"}),
        (403, {key: value for key, value in good.items() if key != "X-Standfast"}),
        (403, {**good, "Origin": "http://elsewhere.example"}),
        (403, {**good, "Origin": "null"}),
        (403, {**good, "Sec-Fetch-Site": "cross-site"}),
        (403, {**good, "Sec-Fetch-Site": "same-site"}),
        (400, {**good, "Content-Type": "text/plain"}),
        (400, {**good, "Content-Type": "application/x-www-form-urlencoded"}),
    ):
        answer = client.post(path, content=body, headers=headers)
        assert answer.status_code == status, headers
        assert answer.json()["error"]["message"]
    assert store.resolve(f"{run}@1").tags == []
    assert client.post(path, content=body, headers=good).status_code == 200


def test_what_cannot_be_is_refused_in_words(store, run):
    api = Api(store, allow_edit=True)
    tags = f"/checkpoints/{run}/1/tags"
    for path, body, status, kind in (
        (tags, {"tag": "1"}, 400, "BadLabel"),
        (tags, {"tag": "a/b"}, 400, "BadLabel"),
        (tags, {"tag": 5}, 400, "BadOption"),
        (tags, {}, 400, "BadOption"),
        (tags, [], 400, "BadOption"),
        (f"/checkpoints/{run}/7/tags", {"tag": "x"}, 404, "RefNotFound"),
        (f"/checkpoints/{run}/1/notes", {"text": "  "}, 400, "BadLabel"),
        (f"/checkpoints/{run}/1/notes", {"text": "x" * 70_000}, 400, "BadOption"),
        (f"/runs/{run}/name", {"name": "latest"}, 400, "BadLabel"),
        (f"/runs/{'0' * 24}/name", {"name": "x"}, 404, "RefNotFound"),
    ):
        assert api.send(path, body, status)["error"]["kind"] == kind, body
    api.send(tags, {"tag": "paper"})
    api.send(f"/checkpoints/{run}/2/tags", {"tag": "paper"}, 400)
    api.send(f"{tags}/other", status=404, method="DELETE")
