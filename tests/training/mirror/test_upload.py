"""What a mirror lacks of a run, and how it gets there, without a process of its own."""

import errno
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from standfast import KeepBest, KeepEvery, KeepLast, Run, Store
from standfast.errors import (
    DigestMismatch,
    Protected,
    RunCollision,
    StandfastError,
    TooNew,
    UnreadableFile,
    WriteFailed,
)
from standfast.policies import Retention, retention
from standfast.store.maintenance.doctor import examine
from standfast.store.retention.pins import pinned_steps
from standfast.store.retention.removal import orphans
from standfast.store.schema import marks, names, run_file, settings
from standfast.training.mirror.upload import Uploader
from tests.kit.seams import Seams
from tests.kit.stores import flip
from tests.store.schema.test_versions import resealed

SIZE = 1 << 15


class Copies:
    """All that is written into the mirror, in its order, and what a test does meanwhile."""

    def __init__(self, mirror: Store, seams: Seams) -> None:
        self.steps: list[int] = []
        self.files: list[str] = []
        self.meanwhile: Callable[[int], object] = lambda step: None

        def new(real: Any, name: str) -> Any:
            if real.__self__.url == mirror.url:
                self.files.append(name)
                self.meanwhile(int(name.partition("_step_")[2][:6]))
            return real(name)

        def put(real: Any, name: str, data: bytes) -> None:
            real(name, data)
            if real.__self__.url == mirror.url and re.fullmatch(r".*_step_\d{6}\.json", name):
                self.steps.append(int(name[-11:-5]))

        seams.backend(new=new, create=put, replace=put)


@pytest.fixture
def copies(mirror: Store, seams: Seams) -> Copies:
    return Copies(mirror, seams)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture
def mirror(tmp_path: Path) -> Store:
    return Store(tmp_path / "mirror")


def save(store: Store, *steps: int, **options: Any) -> Run:
    run = store.run("gpt")
    with run:
        for step in steps:
            weights = np.random.default_rng(step).random(SIZE)
            run.save(step, {"model": {"w": weights}}, {"loss": abs(step - 3.0)}, **options)
    return run


def uploader(store: Store, mirror: Store, keep: Any = None) -> Uploader:
    place = str(Path(mirror.url).parent)
    return Uploader(store, store.run("gpt").hash, place, retention(keep))


def again(store: Store) -> Store:
    """The same store, as another process has it."""
    return Store(Path(store.url).parent)


def catch_up(uploader: Uploader) -> None:
    while missing := uploader.missing():
        uploader.copy(missing[0], lambda nbytes: None)
    uploader.tidy()


def steps_in(store: Store) -> list[int]:
    return [checkpoint.step for run in store.runs() for checkpoint in run.checkpoints()]


def record(store: Store, step: int) -> bytes:
    return next(Path(store.url).glob(f"models/*/*_step_{step:06d}.json")).read_bytes()


def test_the_newest_go_first_and_arrive_as_they_are(store, mirror, copies):
    run = save(store, 1, 2, 3)
    catch_up(uploader(store, mirror))
    assert copies.steps == [3, 2, 1]
    assert steps_in(mirror) == [1, 2, 3]
    for step in (1, 2, 3):
        assert record(mirror, step) == record(store, step)
        mirror.checkpoint(run.hash, step).verify()
    save(store, 4)
    catch_up(uploader(store, mirror))
    assert copies.steps == [3, 2, 1, 4], "what is there is not copied again"


def test_a_copy_that_was_interrupted_is_finished_by_the_next(store, mirror, copies):
    def interrupt(step: int) -> None:
        if step == 2:
            raise KeyboardInterrupt

    save(store, 1, 2, 3)
    copies.meanwhile = interrupt
    with pytest.raises(KeyboardInterrupt):
        catch_up(uploader(store, mirror))
    assert steps_in(mirror) == [3]
    copies.meanwhile = lambda step: None
    catch_up(uploader(store, mirror))
    assert copies.steps == [3, 2, 1]
    assert len(copies.files) == 3 + 1, "no file is copied twice but the one that was interrupted"


def test_a_newer_one_that_comes_meanwhile_goes_next(store, mirror, copies):
    save(store, 1, 2)

    def meanwhile(step: int) -> None:
        copies.meanwhile = lambda step: None
        save(store, 9)

    copies.meanwhile = meanwhile
    catch_up(uploader(store, mirror))
    assert copies.steps == [2, 9, 1]


def test_a_copy_is_verified_only_if_every_byte_of_it_was_copied(store, mirror):
    run = store.run("gpt")
    with run:
        for step in (1, 2):
            run.save(step, {"frozen": {"w": np.arange(SIZE)}, "model": {"w": np.ones(SIZE) * step}})
            catch_up(uploader(store, mirror))
    mirror.index.refresh()
    assert list(mirror.index.verified(run.hash)) == [1]


def test_no_run_is_made_in_a_mirror_that_is_too_new(store, mirror):
    mirror.run("other").save(1, {"w": np.ones(3)})
    mirror.budget = 10**12
    resealed(Path(mirror.url) / settings.NAME, settings.FORMAT, needs=["x"])
    run = save(store, 1)
    with pytest.raises(TooNew):
        uploader(store, mirror).open()
    assert not (Path(mirror.url) / names.run_folder(run.hash)).exists()


def test_retention_here_and_there_are_separate(store, mirror):
    run = save(store, 1, 2, 3, 4)
    catch_up(uploader(store, mirror, KeepLast(3)))
    run.retain(KeepLast(1))
    assert steps_in(store) == [4]
    assert steps_in(mirror) == [2, 3, 4]
    catch_up(uploader(store, mirror))
    assert mirror.runs()[0].retention == retention(KeepLast(3))
    save(store, 5)
    catch_up(uploader(store, mirror))
    assert steps_in(mirror) == [3, 4, 5]


@pytest.mark.parametrize(
    ("keep", "expected"),
    [
        (KeepLast(2), [8, 7]),
        (KeepBest(2, "loss"), [8, 4, 3]),  # step 4 was before step 2, which is as good
        (KeepEvery(steps=4), [8, 4]),
        (KeepBest(2, "accuracy"), [8, 7, 6, 5, 4, 3, 2, 1]),
    ],
    ids=["last", "best", "every", "unknown"],
)
def test_what_the_mirror_would_delete_at_once_is_not_copied(store, mirror, copies, keep, expected):
    save(store, 1, 4, 2, 3, 5, 6, 7, 8)
    for _ in range(2):  # nor by the next
        catch_up(uploader(store, mirror, keep))
    assert sorted(copies.steps, reverse=True) == expected
    assert sorted(steps_in(mirror)) == sorted(expected)


def test_what_the_mirror_has_no_room_for_is_not_copied_again(store, mirror, copies):
    save(store, 1, 2, 3, 4)
    one = uploader(store, mirror)
    one.open()
    mirror.budget = 3 * SIZE * 8
    catch_up(one)
    catch_up(one)
    assert copies.steps == [4, 3, 2, 1]
    assert steps_in(mirror) == [3, 4]


def test_a_checkpoint_on_its_way_is_not_deleted_and_one_that_is_gone_is_skipped(
    store, mirror, copies
):
    run = save(store, 1, 2, 3)
    seen = set()

    def retain(step: int) -> None:
        seen.update(pinned_steps(store.backend, run.hash))
        run.retain(KeepLast(1))

    copies.meanwhile = retain
    one = uploader(store, mirror)
    missing = one.missing()
    for head in missing[1:]:
        one.copy(head, lambda nbytes: None)
    assert copies.steps == [2]
    assert seen == {2}
    assert steps_in(store) == [2, 3]
    catch_up(one)
    assert steps_in(mirror) == [2, 3]
    assert one.problem is None


@pytest.mark.parametrize("is_damaged", [True, False])
def test_one_that_cannot_be_read_here_holds_no_other_up(store, mirror, copies, seams, is_damaged):
    def fail(open: Callable[[str], Any], name: str) -> Any:
        if "_step_000002." in name:
            raise UnreadableFile(errno.EIO, name)
        return open(name)

    save(store, 1, 2, 3)
    if is_damaged:
        flip(next(Path(store.url).glob("models/*/*_step_000002.*.safetensors")))
    else:
        seams.backend(store.backend, open=fail)
    one = uploader(store, mirror)
    catch_up(one)
    assert copies.steps == [3, 1]
    assert steps_in(mirror) == [1, 3]
    assert "2" in str(one.problem)


def test_a_step_that_was_saved_again_takes_the_place_of_the_old_one(store, mirror, copies):
    run = save(store, 1, 2)
    one = uploader(store, mirror)
    catch_up(one)
    run.save(2, {"model": {"w": np.ones(SIZE)}}, replace=True)
    copies.meanwhile = lambda step: mirror.checkpoint(run.hash, step).verify()
    catch_up(one)  # the old one is there until then
    assert copies.steps == [2, 1, 2]
    assert record(mirror, 2) == record(store, 2)
    there = again(mirror)
    assert there.checkpoint(run.hash, 2).state()["model"]["w"].tolist() == [1.0] * SIZE
    assert orphans(there.backend, there.index, run.hash) == []


def test_a_run_that_was_begun_anew_overwrites_nothing(store, mirror, copies, tmp_path):
    save(store, 1, 3)
    catch_up(uploader(store, mirror))
    before = {path: path.read_bytes() for path in Path(mirror.url).glob("models/*/*.json")}
    other = Store(tmp_path / "other")
    save(other, 0, 1, 2, 3)  # by number and time, each of them is later
    with pytest.raises(RunCollision, match=r"`standfast rm`"):
        uploader(other, mirror, KeepLast(1)).missing()
    assert {path: path.read_bytes() for path in before} == before
    assert copies.steps == [3, 1]


def test_a_run_that_another_took_the_place_of_copies_no_more(store, mirror):
    run = save(store, 1, 2)
    one = uploader(store, mirror)
    missing = one.missing()
    file = msgspec.structs.replace(run.file, created=run_file.now())
    mirror.backend.replace(names.run_file(run.hash), run_file.encode(file))
    with pytest.raises(RunCollision):
        one.copy(missing[0], lambda nbytes: None)
    store.checkpoint(run.hash, 1).copy_to(mirror)  # which replaces nothing, and is asked for
    assert steps_in(mirror) == [1]


def test_a_run_without_a_checkpoint_in_the_mirror_holds_no_place(store, mirror):
    mirror.run("gpt").set_retention(retention(KeepLast(2)) or Retention())
    run = save(store, 1, 2, 3)
    catch_up(uploader(store, mirror))
    assert steps_in(mirror) == [2, 3]
    assert mirror.open_run(run.hash).file.created == run.file.created


@pytest.mark.parametrize("lost", ["store", "mirror"])
def test_a_run_file_that_was_made_again_is_that_of_the_same_run(store, mirror, lost):
    run = save(store, 1, 2)
    catch_up(uploader(store, mirror))
    one = store if lost == "store" else mirror
    Path(one.url, names.run_file(run.hash)).unlink()
    assert examine(one.backend, one.index).sound
    save(store, 3)
    catch_up(uploader(store, mirror))
    assert steps_in(mirror) == [1, 2, 3]


def test_tags_and_late_metrics_follow_and_those_of_the_mirror_stay(store, mirror):
    run = save(store, 1, 2)
    one = uploader(store, mirror)
    catch_up(one)
    mirror.checkpoint(run.hash, 2).tag("theirs")
    store.checkpoint(run.hash, 1).add_metrics({"accuracy": 0.5}, best=True)
    store.checkpoint(run.hash, 2).tag("ours")
    catch_up(one)
    there = again(mirror)
    assert there.checkpoint(run.hash, 1).metrics["accuracy"] == 0.5
    assert there.resolve("gpt@best").step == 1
    assert there.checkpoint(run.hash, 2).tags == ["theirs", "ours"]


@pytest.mark.guarantee("G12")
@pytest.mark.parametrize("members", [{}, {"needs": ["groups"]}], ids=["tagged", "too new"])
def test_what_is_marked_in_the_mirror_is_not_replaced_by_a_later_save(members, store, mirror):
    run = save(store, 1, 2)
    one = uploader(store, mirror)
    catch_up(one)
    before = record(mirror, 1)
    mirror.checkpoint(run.hash, 1).tag("theirs")
    path = Path(mirror.url, names.marks_file(run.hash, 1))
    resealed(path, marks.FORMAT, **members)
    marked = path.read_bytes()
    save(store, 1, replace=True)
    with suppress(Protected):  # until it has looked again
        catch_up(one)
    one.forget_mirror()
    catch_up(one)
    assert "tagged" in str(one.problem)
    assert (record(mirror, 1), path.read_bytes()) == (before, marked)


def test_members_of_marks_that_are_unknown_come_to_the_mirror(store, mirror):
    run = save(store, 1)
    one = uploader(store, mirror)
    catch_up(one)
    store.checkpoint(run.hash, 1).tag("ours")
    name = names.marks_file(run.hash, 1)
    resealed(Path(store.url, name), marks.FORMAT, colour="blue")
    store.index.refresh()
    catch_up(one)
    assert marks.marks_at(mirror.backend, run.hash, 1).others == {"colour": "blue"}


def test_a_tag_that_is_elsewhere_in_the_mirror_is_said(store, mirror):
    run = save(store, 1, 2)
    store.checkpoint(run.hash, 1).tag("prod")
    one = uploader(store, mirror)
    catch_up(one)
    assert one.problem is None
    store.untag("prod")
    store.checkpoint(run.hash, 2).tag("prod")
    catch_up(one)
    assert "prod" in str(one.problem)
    mirror.untag("prod")
    another = uploader(store, mirror)
    catch_up(another)
    assert another.problem is None
    assert again(mirror).resolve("prod").step == 2


def test_what_is_wrong_with_the_mirror_is_raised_and_known_to_be_missing(store, mirror, copies):
    save(store, 1, 2)
    Path(mirror.url).parent.write_text("a file where the folder should be")
    one = uploader(store, mirror)
    with pytest.raises(StandfastError):
        one.missing()
    assert one.count_missing() == 2
    Path(mirror.url).parent.unlink()
    catch_up(one)
    assert copies.steps == [2, 1]
    assert one.count_missing() == 0


def test_damage_on_the_way_is_told_from_a_mirror_that_cannot_be_read_or_written(
    store, mirror, copies
):
    def fail(step: int) -> None:
        raise error

    save(store, 1)
    copies.meanwhile = fail
    one = uploader(store, mirror)
    error: StandfastError
    for error in (UnreadableFile(errno.EIO, ""), WriteFailed(errno.ENOSPC, "")):
        with pytest.raises(type(error)):
            catch_up(one)
        assert one.problem is None
    error = DigestMismatch("some-damage", ())
    catch_up(one)
    assert "some-damage" in str(one.problem)


def test_another_run_of_the_same_short_hash_is_refused(store, mirror):
    run = save(store, 1)
    identity = {**run.file.identity, "hp": "0" * 64}
    other = msgspec.structs.replace(run.file, identity=identity)
    mirror.backend.create(names.run_file(run.hash), run_file.encode(other))
    with pytest.raises(RunCollision):
        uploader(store, mirror).missing()
