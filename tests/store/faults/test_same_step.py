"""A step is saved once; it is replaced only by one who says so."""

import pytest

from standfast.errors import FellBack, Protected, StepExists
from standfast.store import Store
from standfast.store.schema.damage import mark_damaged
from tests.kit.fault_states import check_between, leftovers, state
from tests.kit.power import read_tree
from tests.kit.stores import flip, same
from tests.store.faults.damage import HELD, NEWEST, check_others


@pytest.mark.guarantee("G3")
@pytest.mark.parametrize("step", [1, NEWEST])
def test_a_step_that_is_there_is_refused_and_nothing_changes(step, store):
    before = read_tree(store.checkpoints / "models")
    with pytest.raises(StepExists, match="replace=True"):
        store.run().save(step, state(9))
    assert read_tree(store.checkpoints / "models") == before
    assert check_between(Store(store.path), {}, HELD)


def test_a_replaced_step_is_the_new_state_and_the_old_data_is_gone(store):
    old = [store.data_file(part) for part in ("model", "optimizer")]
    run = store.run()
    run.save(NEWEST, state(9), replace=True)
    assert same(run.load(NEWEST), state(9))
    assert same(run.load(), state(9))
    assert not any(file.exists() for file in old)
    assert len(run.checkpoints()) == 3
    check_others(store)
    assert leftovers(Store(store.path)) == []


def test_what_others_share_of_a_replaced_step_stays(store):
    shared, own = store.data_file("model", 1), store.data_file("optimizer", 1)
    run = store.run()
    run.save(1, state(9), replace=True)
    assert shared.exists()
    assert not own.exists()
    assert same(run.load(1), state(9))
    assert same(run.load(), state(9)), "the latest is the last commit, not the highest step"
    for key in (("first", 2), ("first", NEWEST), ("second", 1)):
        assert same(store.run(key[0]).load(key[1]), HELD[key])
    assert leftovers(Store(store.path)) == []


def test_a_tagged_step_is_not_replaced(store):
    run = store.run()
    run.checkpoint(NEWEST).tag("paper")
    with pytest.raises(Protected, match="paper"):
        run.save(NEWEST, state(9), replace=True)
    assert same(run.load("paper"), HELD["first", NEWEST])


@pytest.mark.parametrize("replace", [False, True])
def test_a_step_whose_record_is_damaged_can_be_saved_again(store, replace):
    """Whoever fell back to the step before it comes by here again."""
    store.record().write_bytes(b"garbage")
    store.forget()
    run = store.run()
    run.save(NEWEST, state(9), replace=replace)
    assert same(run.load(), state(9))
    run.close()
    store.run().save(10, state(10))
    assert leftovers(Store(store.path)) == [], "the data of the damaged record"
    check_others(store)


def test_a_step_whose_data_a_load_found_damaged_can_be_saved_again(store):
    run = store.run()
    flip(store.data_file("optimizer"), -1)
    with pytest.raises(StepExists):
        run.save(NEWEST, state(9))  # nobody knows yet
    with pytest.warns(FellBack):
        run.load()
    run.save(NEWEST, state(9))
    assert same(run.load(), state(9))
    check_others(store)


def test_an_intact_step_is_not_replaced_though_a_file_of_it_is_under_suspicion(store):
    run = store.run()
    mark_damaged(run._store.backend, store.data_file("optimizer").name, "a test")
    with pytest.raises(StepExists):
        run.save(NEWEST, state(9))


def test_replace_of_a_step_that_is_not_there_saves_it(store):
    store.run().save(10, state(10), replace=True)
    assert same(store.run().load(), state(10))
    assert leftovers(Store(store.path)) == []
