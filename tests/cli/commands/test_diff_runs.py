"""`diff` inside a store: what differs between two runs, and between their checkpoints."""

import pytest

from standfast import Store
from standfast.display.output import hash_text
from standfast.store.schema import names
from tests.cli.experiments import HP, make_experiments, make_run
from tests.kit.cli import at, call, copy_of


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_experiments(tmp_path_factory.mktemp("diff") / "store")


def section(lines: list[str], title: str) -> list[str]:
    """The lines under a title."""
    if title not in lines:
        return []
    rest = lines[lines.index(title) + 1 :]
    inside = [line.startswith("  ") for line in rest]
    return [line.strip() for line in rest[: inside.index(False) if False in inside else None]]


def test_the_group_of_the_hash_that_differs_is_marked(store, cli, terminal):
    base, wide = (hash_text(store.find_run(name).hash) for name in ("base", "wide"))
    done = cli("diff", "base@300", "wide")
    assert done.code == 3
    assert done.lines[:3] == [f"base@300  {base}", f"wide@300  {wide}", f"{'':10}^^^^^^^^ ^^^^^^^^"]
    shown = terminal("diff", "base@300", "wide", *at(store))
    assert f"\x1b[31m{base[9:17]}\x1b[0m" in shown
    assert f"\x1b[32m{wide[9:17]}\x1b[0m" in shown
    assert "^" not in shown


def test_each_kind_of_change_has_a_section(store, cli):
    lines = cli("diff", "base@400", "low@400").lines
    assert section(lines, "hyperparameters") == ["lr: 0.1 → 0.01"]
    assert lines[5:] == ["2 tensors have the same digests in both (verify reads them)"]
    lines = cli("diff", "base@300", "wide").lines
    assert section(lines, "layers") == ["layer.weight: float32 3×4 → 5×4"]
    assert section(lines, "hyperparameters") == []
    assert lines[-2].split()[:2] == ["model.layer.weight", "shape"]
    lines = cli("diff", "low@400", "less").lines
    assert section(lines, "samples") == [
        "2 added: 20, 21",
        "5 removed: 0, 1, 2, 3, 4",
        "1 discarded: 9",
        "1 with other tags: 5 (+dog)",
    ]
    assert section(lines, "metrics") == ["loss: 0.25 → 0.2", "accuracy: 0.975 → 0.98"]
    assert section(lines, "values") == ["step: 400 → 500"]
    found, less = cli("diff", "low@400", "less", "--json").json, store.find_run("less")
    assert (found["before"], found["runs"][1]["run"]) == ("low@400", less.hash)
    assert found["runs"][1]["data"] == less.hash[16:]
    assert (found["identity"], found["trial"]) == (["hp", "data"], None)
    assert found["samples"]["removed"] == [0, 1, 2, 3, 4]
    assert found["samples"]["tags"] == {"5": {"before": ["hard"], "after": ["hard", "dog"]}}
    assert found["metadata"]["metrics"]["after"]["loss"] == 0.2
    found = cli("diff", "base@300", "wide", "--json").json
    assert found["layers"]["tensors"]["layer.weight"]["after"]["shape"] == [5, 4]


def test_a_run_without_a_checkpoint_can_be_compared(cli):
    done = cli("diff", "empty", "base")
    assert done.code == 3
    assert done.lines[0].startswith("empty, no checkpoint  ")
    assert section(done.lines, "hyperparameters")[0] == "lr: 5 → 0.1"
    assert section(done.lines, "layers") == ["only base@400 was given a model"]
    assert section(done.lines, "samples") == ["only base@400 was given data"]
    found = cli("diff", "empty", "base@300", "--json").json
    assert found["hyperparameters"]["version"] == {"after": "1.0", "counts": True}
    assert found["layers"] is None
    assert cli("diff", "empty", "empty").code == 0
    for before in ("empty@latest", "nobody"):
        assert cli("diff", before, "base").code == 2


def test_layers_that_nobody_described_are_those_of_the_tensors(store, tmp_path):
    copy = copy_of(store, tmp_path / "copy")
    copy.backend.delete([names.architecture_file(copy.find_run("base").hash)])
    lines = call("diff", "base", "wide", *at(copy)).lines
    assert section(lines, "layers") == ["layer.weight: float32 3×4 → 5×4"]
    copy.backend.delete([names.data_state_file(copy.find_run("less").hash)])
    lines = call("diff", "low", "less", *at(copy)).lines
    assert section(lines, "samples") == ["not the same, and not described"]


def test_what_is_not_in_the_hash_is_said_to_be_so(tmp_path):
    store = Store(tmp_path / "store")
    make_run(store, "one", range(1, 2), {**HP, "root_log_dir": "a"})
    make_run(store, "two", range(1, 2), {**HP, "root_log_dir": "b", "lr": 1})
    lines = call("diff", "one", "two", *at(store)).lines
    assert section(lines, "hyperparameters") == [
        "lr: 0.1 → 1",
        "root_log_dir: 'a' → 'b' (not in the hash)",
    ]
    store.run("three", HP, data=1, trial=2)
    for name, steps in (("four", 10), ("five", 20)):
        store.run(name, {"steps": steps}, data=name, trial=1, volatile=["steps"])
    assert section(call("diff", "four", "five", *at(store)).lines, "hyperparameters") == [
        "steps: 10 → 20 (not in the hash)"
    ]
    lines = call("diff", "one", "three", *at(store)).lines
    assert section(lines, "hyperparameters")[-1] == "trial: — → 2"


def test_metrics_that_look_the_same_have_all_their_digits(tmp_path):
    store = Store(tmp_path / "store")
    with store.run("one") as run:
        run.save(1, {}, {"loss": 0.1, "seen": 1})
        run.save(2, {}, {"loss": 0.1 + 1e-12, "new\x1b[2J": 2.0})
    lines = call("diff", "one@1", "one@2", *at(store)).lines
    assert section(lines, "metrics") == [
        "loss: 0.1 → 0.10000000000100001",
        "seen: 1 → —",
        r"new\x1b[2J: — → 2.0",
    ]


@pytest.mark.parametrize("given", [{"hp": HP}, {"data": 1}, {}], ids=["hp", "data", "alone"])
def test_a_name_is_no_hyperparameter_that_changed(tmp_path, given):
    store = Store(tmp_path / "store")
    first = store.run("seed0", **given)
    second = store.run("seed1", **given, parent=first.save(1, {}))
    for name in ("seed0", "better"):
        first.rename(name)
        found = call("diff", first.hash, second.hash, *at(store))
        assert section(found.lines, "hyperparameters") == []
        assert "from 1: nothing changed" in call("log", *at(store)).out
