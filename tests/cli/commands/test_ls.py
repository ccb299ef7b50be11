"""`ls`: which checkpoints are listed, and in which order."""

from pathlib import Path
from typing import Any

import pytest

from standfast import KeepBest, Store
from tests.cli.experiments import make_experiments
from tests.kit.cli import at, call, copy_of

EVERY = ["sweep", "less", "wide", "low", "base"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_experiments(tmp_path_factory.mktemp("ls") / "store")


def listed(store: Store, *arguments: str) -> list[tuple[str, int]]:
    done = call("ls", *arguments, "--json", *at(store))
    assert done.code == 0, done.err
    return [(each["name"], each["step"]) for each in done.json]


def names_of(store: Store, *arguments: str) -> list[str]:
    """Those of the runs, each once, the newest first."""
    return list(dict.fromkeys(name for name, _ in listed(store, *arguments)))


def test_runs_by_a_hyperparameter(store):
    for hyperparameter, expected in (
        ("lr=0.01", ["less", "low"]),
        ("lr=1.0", ["sweep"]),
        ("lr=.01", ["less", "low"]),
        ("lr=1e-2", ["less", "low"]),
        ("lr=true", []),
        ("warm.up=true", ["sweep"]),
        ("warm.up=1", []),
        ("warm", ["sweep"]),
        ("optimizer.betas=[0.9, 0.99]", EVERY),
        ("optimizer.betas.1=0.99", EVERY),
        ("version=1.0", EVERY),
        ("version=1", []),
        ('optimizer={"betas": [0.9, 0.99], "name": "adam"}', EVERY),
        ("lr=", []),
    ):
        assert names_of(store, "--hp", hyperparameter) == expected, hyperparameter


def test_several_filters_are_all_to_fit(store, tmp_path):
    base, wide, less = (store.find_run(name).hash for name in ("base", "wide", "less"))
    assert names_of(store, "--model", wide[8:16]) == ["wide"]
    assert names_of(store, "--model", wide[8:12].upper()) == ["wide"]
    assert names_of(store, "--data", less[16:]) == ["less"]
    assert names_of(store, "--data", base[16:20], "--hp", "lr=0.01") == ["low"]
    assert names_of(store, "--hp", "lr=0.01", "--hp", "version", "low") == ["low"]
    assert names_of(store, "--hp", "lr=0.01", "base") == []
    copy, run = copy_of(store, tmp_path / "store"), store.find_run("low").hash
    Path(copy.url, "models", run, f"{run}_run.json").write_bytes(b"{")
    assert names_of(copy, "--hp", "lr=0.01") == ["less", "low"], "the config says it, too"


def test_a_filter_or_order_that_makes_no_sense_is_refused(cli):
    for arguments, told in (
        *(("--model abc", "'abc'"), ("--hp =1", "'=1'"), ("nobody", "'nobody'"), ("-n 0", "-n")),
        *(("--max", "--best"), ("--best loss --sort step", "--best")),
        *(("--hp lrr=0.1", "lr, optimizer.name"), ("--hp lr>=0.01", "'lr>=0.01'")),
        *(("--hp optimizer.betas.2 low", "'optimizer.betas.2'"), ("--hp lr==0.01", "'lr==0.01'")),
        *(("--best los", "loss, accuracy"), ("--best step", "loss, accuracy")),
        ("--sort stepp", "step, time, size, loss, accuracy"),
    ):
        cli("ls", *arguments.split()).fails(2, told)


def test_what_another_run_has_is_no_typing_error(store, cli, tmp_path):
    other = Store(tmp_path / "store")
    other.run("rated", hp={"a>b": 1}).save(1, {}, {"loss": 1.0})
    other.run("late").save(1, {}).add_metrics({"bleu": float("nan")})
    for arguments, place in (
        ("--hp lr=7", store),
        ("low --hp warm.up", store),
        ("late --best loss", other),
        ("--best bleu", other),
        ("rated --best bleu", other),
    ):
        assert listed(place, *arguments.split()) == [], arguments
    assert listed(other, "--hp", "a>b=1") == [("rated", 1)]
    assert cli("ls", "--hp", "lr=7").code == 0


def test_the_metric_that_decides_on_the_best_has_the_first_column(store, tmp_path):
    copy = copy_of(store, tmp_path / "copy")
    assert call("ls", "base", *at(copy)).lines[0].split()[4:6] == ["loss", "accuracy"]
    copy.find_run("base").set_monitor("accuracy", "max")
    for command in ("ls", "log"):
        heading = next(line for line in call(command, "base", *at(copy)).lines if "step" in line)
        assert heading.index("accuracy") < heading.index("loss")
    lines = call("ls", "base", "--best", "loss", *at(copy)).lines
    assert lines[0].index("loss") < lines[0].index("accuracy")
    copy.find_run("low").retain(KeepBest(5, "accuracy", "max"))
    assert call("ls", "low", *at(copy)).lines[0].split()[4:6] == ["accuracy", "loss"]


def test_orders(store):
    best = [("less", 500), ("low", 400), ("base", 400)]
    assert listed(store, "--best", "loss", "-n", "3") == best
    assert listed(store, "--best", "loss", "--max", "sweep", "-n", "2") == [("sweep", 10)] * 2
    steps = [step for _, step in listed(store, "--sort", "step")]
    assert steps == sorted(steps, reverse=True)
    assert [step for _, step in listed(store, "--sort", "step", "--reverse")] == steps[::-1]
    assert listed(store, "--reverse", "-n", "2") == [("base", 100), ("base", 200)]
    assert listed(store, "--sort", "size", "-n", "1") == [("wide", 300)]
    assert listed(store, "--sort", "loss") == listed(store, "--best", "loss")
    assert listed(store, "--sort", "time") == listed(store)


def test_values_that_cannot_be_compared_come_last(tmp_path):
    store = Store(tmp_path / "store")
    values: list[Any] = [float("nan"), None, 2, True, float("-inf"), 10**400]
    with store.run("odd") as run:
        for step, value in enumerate(values):
            run.save(step, {}, {} if value is None else {"x": value})
    run.checkpoint(1).add_metrics({"x": 1.5})  # after its commit
    assert [step for _, step in listed(store, "--sort", "x")] == [4, 3, 1, 2, 5, 0]
    assert [step for _, step in listed(store, "--best", "x", "--max")] == [5, 2, 1, 3, 4]


def test_a_terminal_has_no_column_that_says_nothing(store, terminal):
    title, heading, row, *_ = terminal("ls", "low", *at(store)).splitlines()
    assert "low" in title
    assert store.find_run("low").hash[:8] in title
    assert not {"epoch", "hash"} & set(heading.split())
    assert row.split()[:3] == ["400", "0.25", "0.975"]
    assert "run" in terminal("ls", *at(store)).splitlines()[0]
    assert "12 more; --all" in terminal("ls", "--best", "loss", "-n", "2", *at(store))
