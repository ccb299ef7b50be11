"""A link in a store that leads out of it, at each place in turn: nothing is changed through it."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from standfast import KeepLast, Run, Store
from standfast.errors import StandfastError
from standfast.store.index import database
from standfast.store.maintenance.doctor import clean, examine
from standfast.store.query.mirrors import remember_mirror
from standfast.store.retention.collection import carry_out, plan
from standfast.store.retention.trash import Trash
from standfast.store.schema.damage import mark_damaged
from standfast.training.metrics import Line, MetricsLog
from tests.kit.cases import kept
from tests.kit.fault_states import state
from tests.kit.stores import same

LINE = Line(1, None, "2026-01-01T00:00:00.000Z", {"loss": 1.0})
OWN = "checkpoints/.standfast"
RUNS = "checkpoints/models/*"
PLACES = [
    *("logs", "logs/*_metrics.jsonl", "logs/*_retention.jsonl"),
    *("checkpoints/manifest.yaml", "checkpoints/mirrors.json", "checkpoints/store.json"),
    *("checkpoints/HP", "checkpoints/HP/*", "checkpoints/HP/*/*_config.yaml"),
    *("checkpoints/data", "checkpoints/data/*", "checkpoints/data/*/*_data_state.yaml"),
    *("checkpoints/damaged", "checkpoints/damaged/*", "checkpoints/models"),
    *(RUNS, f"{RUNS}/.*.standfast", f"{RUNS}/*_run.json", f"{RUNS}/*_step_000003.json"),
    *(f"{RUNS}/*_step_00000[124].json", f"{RUNS}/*_step_*.marks.json"),
    *(f"{RUNS}/*.safetensors", f"{RUNS}/*.pth", f"{RUNS}/*.pt"),
    *(OWN, f"{OWN}/{database.NAME}", f"{OWN}/locks", f"{OWN}/trash", f"{OWN}/trash/*"),
    *(f"{OWN}/trash/*/entry.json", f"{OWN}/trash/*/*_step_*", f"{OWN}/trash/*/*_run.json"),
    *(f"{OWN}/trash/*/*_config.yaml", f"{OWN}/trash/*/*_data_state.yaml"),
]
NEW_PLACES = [
    *(f"{OWN}/{database.NAME}{end}" for end in ("-journal", "-wal", "-shm", ".lock")),
    *(f"{OWN}/locks/{name}.lock" for name in ("trash", "RUN", "RUN.change")),
    f"{RUNS}/.0123abcd.standfast",
    *(f"{RUNS}/RUN_step_000005.{end}" for end in ("json", "pt")),
]
"""Where a store has nothing, or an empty file, at rest. RUN is the name of the run."""


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with everything in it that a store has."""
    place = tmp_path_factory.mktemp("original") / "store"
    store = Store(place)
    run = store.run(name="a", hp={"lr": 1})
    for step in (1, 2, 3, 4):
        run.save(step, state(step), format="torch" if step == 2 else "safetensors")
    run.checkpoint(1).tag("mine")
    run.checkpoint(3).note("note")
    MetricsLog(_log(store, run)).append([LINE])
    run.delete(4, trash="rm")
    remember_mirror(store.backend, run.hash, str(place / "mirror"))
    [lost, *_] = place.glob(f"{RUNS}/*_step_000001.*.safetensors")
    mark_damaged(store.backend, lost.name, "for the test")
    run.close()
    store.close()
    Path(lost.parent, ".0123abcd.standfast").write_bytes(b"left by a crash")
    Path(place, OWN, "locks", f"{run.hash}.pin.1.lock").touch()
    return place


@pytest.fixture
def place(original: Path, tmp_path: Path) -> Path:
    """A copy of such a store, its hard links included, with a folder `outside` next to it."""
    subprocess.run(["cp", "-a", original, tmp_path / "store"], check=True)
    (tmp_path / "outside").mkdir()
    return tmp_path / "store"


def _log(store: Store, run: Run) -> Path:
    return store.logs / f"{run.hash}_metrics.jsonl"


def _write_metrics(store: Store) -> None:
    log = MetricsLog(_log(store, store.run(name="a")))
    log.prepare()
    log.append([LINE])
    log.cut(1)


def _save(step: int, **options: str | bool) -> Callable[[Store], object]:
    return lambda store: store.run(name="a").save(step, state(step), **options)


OPERATIONS: list[Callable[[Store], object]] = [
    lambda store: [run.checkpoints() for run in store.runs()],
    lambda store: store.resolve("a@3").verify(),
    _save(5),
    _save(5, format="torch", replace=True),
    lambda store: store.resolve("a@3").tag("kept"),
    lambda store: store.untag("mine"),
    lambda store: store.resolve("a@3").note("again"),
    lambda store: store.resolve("a@3").add_metrics({"loss": 1.0}, best=True),
    _write_metrics,
    lambda store: store.write_manifest(),
    lambda store: examine(store.backend, store.index),
    lambda store: clean(store.backend, store.index),
    lambda store: store.restore(store.run(name="a").hash),
    lambda store: store.run(name="a").delete(3, trash="rm"),
    lambda store: store.run(name="a").retain(KeepLast(1)),
    lambda store: store.run(name="a").describe({"lr": 2}),
    lambda store: carry_out(store, plan(store)),
    lambda store: Trash(store.backend).empty(),
    _save(6),
    lambda store: store.run(name="a").delete_all(),
]


def _moved_out(place: Path, pattern: str, outside: Path) -> Iterator[Path]:
    """Put a link in each place of the pattern; gives those places."""
    found = sorted(place.glob(pattern))
    for number, path in enumerate(found):
        target = outside / str(number) / path.name
        target.parent.mkdir()
        if path.is_dir():
            shutil.copytree(path, target)
            shutil.rmtree(path)
        else:
            shutil.copy(path, target)
            path.unlink()
        path.symlink_to(target)
        yield path


def _contents(outside: Path) -> dict[Path, object]:
    return {
        path: path.is_file() and (path.read_bytes(), path.stat().st_nlink, path.stat().st_ino)
        for path in outside.rglob("*")
    }


def _check_operations(place: Path, outside: Path) -> None:
    before = _contents(outside)
    assert before
    succeeded = 0
    for number, operation in enumerate(OPERATIONS):
        store = Store(place)
        try:
            operation(store)
            succeeded += 1
        except StandfastError:
            pass
        finally:
            store.close()
        assert _contents(outside) == before, f"operation {number}"
        with suppress(StandfastError, IndexError):
            for checkpoint in Store(place).runs()[0].checkpoints():
                assert same(checkpoint.state(), state(checkpoint.step))
    assert succeeded


@pytest.mark.guarantee("G14")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("pattern", kept(PLACES, "checkpoints/HP", *PLACES[::4]))
def test_nothing_is_changed_through_a_link_out_of_the_store(pattern, place):
    outside = place.with_name("outside")
    assert [*_moved_out(place, pattern, outside)]
    _check_operations(place, outside)


@pytest.mark.guarantee("G14")
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("pattern", kept(NEW_PLACES, *NEW_PLACES[::3]))
def test_nothing_is_written_through_a_link_where_nothing_is_yet(pattern, is_folder, place):
    outside = place.with_name("outside")
    [run] = place.glob(RUNS)
    above, name = os.path.split(pattern)
    [folder] = place.glob(above)
    path = folder / name.replace("RUN", run.name)
    path.unlink(missing_ok=True)
    target = outside / "target"
    if is_folder:
        target.mkdir()
        (target / "file").write_bytes(b"precious")
    else:
        target.write_bytes(b"precious")
    path.symlink_to(target)
    _check_operations(place, outside)


def test_the_places_are_all_that_a_store_has(original):
    known = {path for pattern in PLACES for path in original.glob(pattern)}
    found = {path for path in original.rglob("*") if path != original / "checkpoints"}
    assert {path for path in found - known if path.suffix != ".lock"} == set()


def test_a_store_and_its_folder_may_be_links(tmp_path):
    (tmp_path / "disk" / "checkpoints").mkdir(parents=True)
    (tmp_path / "store").mkdir()
    (tmp_path / "link").symlink_to("store")
    (tmp_path / "store" / "checkpoints").symlink_to("../disk/checkpoints")
    run = Store(tmp_path / "link").run(name="a")
    run.save(1, state(1))
    assert same(Store(tmp_path / "link").resolve("a").state(), state(1))
