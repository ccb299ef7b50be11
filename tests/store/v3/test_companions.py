"""The files that layout V3 has of every run: its config, its data state, its architecture."""

import math
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import yaml

from standfast import KeepLast, Store, errors
from standfast.identity import recorded
from standfast.policies import Retention
from standfast.store.backends.backend import Backend
from standfast.store.backends.memory import MemoryBackend
from standfast.store.maintenance.verify import verify_store
from standfast.store.schema import names
from standfast.store.schema.record import Place
from standfast.store.schema.run_file import Monitor, RunFile
from standfast.store.v3 import companions
from tests.kit.seams import Seams
from tests.kit.stores import same

RUN = "0123456789abcdef01234567"


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend()


def run_file(hp: Any) -> RunFile:
    """A run file with text in it that YAML does not have, even in a comment."""
    keep, monitor = Retention((KeepLast(2),)), Monitor("\x7f", "max")
    place = Place("f" * 24, 3, 7, "0123abcd")
    return RunFile(
        RUN, {"hp": "a"}, "\u2028é😀\ufeff", ["\x85\n# "], "now", place, hp, {}, keep, monitor
    )


def read_by_others(backend: Backend, name: str) -> Any:
    """What PyYAML reads, in Python and in C, which must be the same."""
    text = backend.read(name)
    found = yaml.safe_load(text)
    assert same(found, yaml.load(text, Loader=yaml.CSafeLoader))
    return found


HYPERPARAMETERS = {
    "nothing": None,
    "floats": {"lr": 1e-4, "tiny": 5e-324, "huge": 1e22, "minus": -0.0, "eps": 1e-08},
    "integers": {"a": 0, "b": -(2**63), "c": 2**63},
    "no numbers": {"nan": math.nan, "inf": math.inf, "minus": -math.inf},
    "words": {"a": "yes", "b": "1", "c": "null", "d": "2026-01-01", "e": "1e-4", "f": "~", "g": ""},
    "keys that are words": {"yes": 1, "on": 2, "null": 3, "1": 4, "~": 5, "<<": 6, "=": 7, "": 8},
    "signs": {"a: b": "# no", "- x": "[1]", "&a": "*a", "!t": "%d", '"': "'", "\\": "\\n"},
    "control characters": {"a": "\0\x07\x1b\t\r\n", "b\n": "\x7f\x80\x9f"},
    "line breaks of YAML": {"a": "x\u0085y\u2028z\u2029", "b\u2028": 1, "c": "\ufeffx\ufeff"},
    "emoji": {"😀": "🏳️‍🌈", "noncharacters": "\ufffe\uffff\U0001fffe"},
    "spaces": {" a ": "  b  ", "long": "word " * 100},
    "long keys": {"k" * 1500: {"é" * 900: [{"\u2028" * 400: 1}]}, "x" * 1001: "y"},
    "nested": {"a": {"b": {"c": [1, [2, {"d": {}}], []]}}, "e": {}},
    "a list": [1, {"a": 2}],
    "a text": "adam",
}


@pytest.mark.parametrize("name", HYPERPARAMETERS)
def test_hyperparameters_come_back_as_they_are_recorded(name, backend):
    expected = recorded(HYPERPARAMETERS[name])
    companions.write_config(backend, run_file(expected))
    assert same(read_by_others(backend, names.config_file(RUN))["hyperparameters"], expected)
    assert companions.read_config(backend, RUN) == run_file(expected)
    assert same(companions.read_config(backend, RUN).hyperparameters, expected)


def test_a_config_is_for_people(backend):
    settings = {"lr": 1e-4, "model": {"name": "gpt", "sizes": [1, 2]}}
    companions.write_config(backend, run_file(settings))
    *lines, updated, rest, digest = backend.read(names.config_file(RUN)).decode().splitlines()
    assert rest.startswith("# {")
    assert digest.startswith("# digest: ")
    assert lines == [
        "hyperparameters:",
        "  lr: 0.0001",
        "  model:",
        '    name: "gpt"',
        "    sizes: [1, 2]",
        f'exp_hash: "{RUN}"',
    ]
    assert updated.startswith('last_updated: "20')


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"[1]", b"a: &x [1]\nb: [*x, *x]\n", b"hyperparameters: {\n", b"\xff", b"[" * 5000),
        b"hyperparameters: !!python/object/apply:os.system [ls]\n",
        b"hyperparameters: {}\nexp_hash: 5\nlast_updated: x\n",
        b"hyperparameters: {}\nexp_hash: abc\nlast_updated: x\n",
        b"hyperparameters: {}\n",
    ],
)
def test_a_config_that_is_none_is_refused(text, backend):
    backend.replace(names.config_file(RUN), text)
    with pytest.raises(errors.DamagedFile, match="_config"):
        companions.read_config(backend, RUN)


def test_a_config_keeps_what_a_later_version_adds_and_says_what_it_needs(backend):
    newer = msgspec.structs.replace(run_file({"lr": 1}), others={"colour": "blue"})
    companions.write_config(backend, newer)
    assert companions.read_config(backend, RUN) == newer
    assert b',"colour":"blue"}' in backend.read(names.config_file(RUN))
    newer = msgspec.structs.replace(newer, others={"needs": ["groups"]})
    companions.write_config(backend, newer)
    with pytest.raises(errors.TooNew, match=r"_config.*groups"):
        companions.read_config(backend, RUN)


def uids(count: int) -> list[str]:
    return [f"sample-{number:06d}" for number in range(count)]


EMPTY: dict[str, Any] = {"uids": [], "discarded": [], "tags": {}}
DATA_STATES = {
    "text": {"uids": ["a", "yes", "1"], "discarded": ["1"], "tags": {"a": ["cat"], "yes": []}},
    "integers": {"uids": [3, -1, 2**40], "discarded": [3], "tags": {3: ["cat"], -1: ["no, 5: x"]}},
    "integers and text": {"uids": [1, "1"], "discarded": [], "tags": {1: ["a"], "1": ["b"]}},
    "other scalars": {"uids": [2.5e-7, None, True], "discarded": [1e22], "tags": {2.5: ["a"]}},
    "signs in integers' tags": {**EMPTY, "uids": [1], "tags": {1: ['{7: "x', ",8: "]}},
    "strange text": {**EMPTY, "uids": ["\u2028\x85", "😀", '"', "\0"], "tags": {"\u2028": ["é"]}},
    "a long uid": {**EMPTY, "uids": ["k" * 2000], "tags": {"k" * 2000: ["a"], "b": ["c"]}},
    "many": {"uids": uids(1000), "discarded": uids(10), "tags": {u: ["a"] for u in uids(1000)}},
    "more keys": {**EMPTY, "split": "train", "sizes": {"a": 1}},
    "nothing": EMPTY,
}


@pytest.mark.parametrize("name", DATA_STATES)
def test_a_data_state_comes_back(name, backend):
    companions.write_data_state(backend, RUN, DATA_STATES[name])
    assert same(read_by_others(backend, names.data_state_file(RUN)), DATA_STATES[name])
    assert same(companions.read_data_state(backend, RUN), DATA_STATES[name])


DATA: list[tuple[Any, dict[str, Any]]] = [
    (None, {}),
    ([1, 2], {"data": [1, 2]}),
    ({"path": Path("a/b")}, {"data": {"path": "a/b"}}),
    ({"uids": np.arange(2), "discarded": {1, 0}}, {"uids": [0, 1], "discarded": [0, 1]}),
    ({"uids": ("a",), "tags": {"a": {"y", "x"}}}, {"uids": ["a"], "tags": {"a": ["x", "y"]}}),
    ({"uids": ["\ud800"]}, {"uids": ["\\ud800"]}),
    ({"uids": [(1, 2)]}, {"uids": ["[1, 2]"]}),
    ({"uids": [2**70]}, {"uids": [2**70]}),
]


@pytest.mark.parametrize(("data", "expected"), DATA)
def test_data_of_other_types_is_written_plainly(data, expected, backend):
    companions.write_data_state(backend, RUN, data)
    assert same(read_by_others(backend, names.data_state_file(RUN)), EMPTY | expected)
    assert same(companions.read_data_state(backend, RUN), EMPTY | expected)


def test_a_data_state_of_v3_is_read(backend):
    state = {"uids": ["a", 2], "discarded": None, "tags": {"a": ["x"]}}
    backend.replace(names.data_state_file(RUN), yaml.safe_dump(state).encode())
    assert companions.read_data_state(backend, RUN) == state | {"discarded": []}


@pytest.mark.parametrize(
    "text",
    [
        *(b"5", b"uids: {}\ndiscarded: []\ntags: {}\n", b"uids: [[1]]\n", b"tags: []\n"),
        *(b"tags: {a: b}\n", b"tags: {a: [[1]]}\n", b"tags: {1: [1], 1: [2]}\n", b"\xff\xfe"),
        *(b"uids: &a [1]\ndiscarded: *a\n", b"uids: !!set {a}\n", b"uids: ["),
        b"uids: " + b"[" * 10_000,
    ],
)
def test_a_data_state_that_is_none_is_refused(text, backend):
    backend.replace(names.data_state_file(RUN), text)
    with pytest.raises(errors.DamagedFile, match="_data_state"):
        companions.read_data_state(backend, RUN)


def test_a_file_of_any_length_is_not_read(backend, seams):
    seams.bound("bytes of a data state", 100)
    companions.write_data_state(backend, RUN, {"uids": uids(20)})
    with pytest.raises(errors.LimitExceeded, match="100"):
        companions.read_data_state(backend, RUN)


def write_architecture(backend: Backend, model: Any) -> None:
    text = companions.encode_architecture(RUN[8:16] * 8, model)
    companions.write_shared(backend, RUN, names.architecture_file, text)


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(2, 3)
        self.again = self.first
        self.norm = torch.nn.BatchNorm1d(3)
        self.norm.bias = self.first.bias


def test_the_architecture_of_a_module_is_described(backend):
    write_architecture(backend, Tied())
    found = companions.read_architecture(backend, RUN)
    linear = "torch.nn.modules.linear:Linear"
    assert found["modules"]["first"] == linear
    assert found["modules"]["again"] == {"same": "first"}
    assert found["parameters"]["first.weight"] == ["float32", [3, 2]]
    assert found["parameters"]["norm.bias"] == {"same": "first.bias"}
    assert found["buffers"]["norm.num_batches_tracked"] == ["int64", []]


def test_any_other_model_is_what_its_identity_sees(backend):
    model = {"layers": [np.zeros((2, 3)), torch.ones(2)], "kind": dict, 1: "x"}
    write_architecture(backend, model)
    assert companions.read_architecture(backend, RUN) == {
        "value": {
            "layers": [["float64", [2, 3]], ["float32", [2]]],
            "kind": "builtins:dict",
            "1": "x",
        }
    }


def test_an_architecture_that_was_changed_or_is_of_another_model_is_refused(backend):
    write_architecture(backend, Tied())
    path, other = (names.architecture_file(run) for run in (RUN, "f" * 24))
    backend.replace(other, backend.read(path))
    with pytest.raises(errors.BadField):
        companions.read_architecture(backend, "f" * 24)
    backend.replace(path, backend.read(path).replace(b"[3,2]", b"[2,3]"))
    with pytest.raises(errors.DamagedFile, match=r"architecture\.json"):
        companions.read_architecture(backend, RUN)


def test_a_new_run_has_them_all(store, tmp_path):
    model, data = torch.nn.Linear(2, 3), {"uids": ["a"]}
    run = store.run(hp={"lr": 1, "steps": 10}, model=model, data=data, volatile=["steps"])
    config = companions.read_config(store.backend, run.hash)
    assert config.hyperparameters == {"lr": 1, "steps": 10}
    assert companions.read_data_state(store.backend, run.hash)["uids"] == ["a"]
    assert "weight" in companions.read_architecture(store.backend, run.hash)["parameters"]
    for name in ("HP/*/*_config.yaml", "data/*/*_data_state.yaml", "models/*/*_architecture.json"):
        assert len([*tmp_path.glob(f"checkpoints/{name}")]) == 1
    run.describe({"lr": 1, "steps": 20})
    config = companions.read_config(store.backend, run.hash)
    assert config.hyperparameters == {"lr": 1, "steps": 20}
    run.save(1, {"a": 1})
    run.delete_all()
    left = [path.name for path in tmp_path.rglob("*") if run.hash in path.name]
    assert [name for name in left if not name.endswith(".lock")] == []


def test_a_run_of_a_name_alone_has_empty_ones_and_opens_without_them(store, tmp_path):
    with store.run("plain") as run:
        run.save(1, {"a": 1})
    assert companions.read_config(store.backend, run.hash).hyperparameters is None
    assert companions.read_data_state(store.backend, run.hash) == EMPTY
    with pytest.raises(errors.MissingFile):
        companions.read_architecture(store.backend, run.hash)
    for name in ("HP", "data"):
        shutil.rmtree(tmp_path / "checkpoints" / name)
    again = Store(tmp_path)
    assert [each.hash for each in again.runs()] == [run.hash]
    assert again.run("plain").load() == {"a": 1}


def test_they_are_there_before_the_run_is(store, tmp_path):
    def fail(*_: Any) -> None:
        raise RuntimeError("the power failed")

    with Seams.until_end() as seams:
        seams.backend(create=fail)
        with pytest.raises(RuntimeError):
            store.run("plain", hp={"lr": 1})
    assert len(list(tmp_path.rglob("*.yaml"))) == 2
    with pytest.raises(errors.NotAStore):
        Store(tmp_path).known_run("plain", hp={"lr": 1})


def test_a_run_whose_deletion_was_cut_short_lacks_none_of_them(store, seams):
    left = [0]

    def killed(delete: Callable[[list[str]], None], files: Iterable[str]) -> None:
        for name in files:
            left[0] -= 1
            if left[0] < 0:
                raise RuntimeError("killed")
            delete([name])

    seams.backend(delete=killed)
    for count in range(4):
        run = store.run("a", model={"a": 1}, data={"uids": [1]})
        left[0] = count
        with pytest.raises(RuntimeError):
            run.delete_all()
        assert verify_store(store).damaged == {}, count


def test_runs_with_the_same_model_and_data_share_the_files(store, tmp_path):
    model, data = torch.nn.Linear(2, 3), {"uids": uids(1000)}
    first = store.run(hp={"lr": 1}, model=model, data=data)
    second = store.run(hp={"lr": 2}, model=model, data=data)
    other = store.run(hp={"lr": 2}, model=torch.nn.Linear(3, 3), data={"uids": uids(999)})
    for name_of in (names.architecture_file, names.data_state_file):
        one, same_one, another = (
            tmp_path / "checkpoints" / name_of(run.hash) for run in (first, second, other)
        )
        assert one.samefile(same_one)
        assert not one.samefile(another)
        assert one.read_bytes() != another.read_bytes()


def test_a_file_that_was_damaged_is_not_shared_and_a_shared_one_outlives_its_runs(store, tmp_path):
    data = {"uids": uids(10)}
    first, second = (store.run(hp={"lr": lr}, data=data) for lr in (1, 2))
    first.delete_all()
    assert companions.read_data_state(store.backend, second.hash)["uids"] == uids(10)
    path = tmp_path / "checkpoints" / names.data_state_file(second.hash)
    path.write_bytes(path.read_bytes().replace(b"sample-000003", b"sample-000004"))
    third = store.run(hp={"lr": 3}, data=data)
    assert companions.read_data_state(store.backend, third.hash)["uids"] == uids(10)
