"""The hash of an experiment: what counts in it, and what differs between two."""

import pytest
import torch

from standfast import errors
from standfast.experiments import ExperimentHashGenerator
from standfast.identity import identify
from tests.experiments.models import DATA, HP, new_model


def test_a_hash_is_that_of_the_identity_of_a_run_with_its_components():
    generator = ExperimentHashGenerator()
    assert generator.get_last_hash() is None
    assert set(generator.get_component_hashes().values()) == {None}
    model = new_model()
    made = generator.generate_hash(model, HP)
    assert made == generator.get_last_hash() == identify(hp=HP, model=model).hash
    parts = {"hp": made[:8], "model": made[8:16], "data": "00000000", "combined": made}
    assert generator.get_component_hashes() == parts
    assert generator.generate_hash(model, HP, DATA) == identify(hp=HP, model=model, data=DATA).hash


def test_what_has_changed_is_named():
    generator = ExperimentHashGenerator()
    assert generator.has_changed(config=HP) == (True, {"hp"})
    model = new_model()
    generator.generate_hash(model, HP, DATA)
    with torch.no_grad():
        model[0].weight.zero_()  # weights do not count, shapes do
    assert generator.has_changed(model, HP, DATA) == (False, set())
    assert generator.has_changed(config=HP | {"lr": 0.1}) == (True, {"hp"})
    changed = generator.has_changed(new_model(9), HP, {**DATA, "tags": {}})
    assert changed == (True, {"model", "data"})
    assert generator.has_changed(model, HP, force=True) == (True, {"hp", "model"})
    tagged = {**DATA, "tags": {**DATA["tags"], "b": ["new"]}}
    assert generator.has_changed(model, HP, tagged) == (True, {"data"})
    shuffled = {"tags": DATA["tags"], "uids": DATA["uids"][::-1], "discarded": ["b"]}
    assert generator.has_changed(model, HP, shuffled) == (False, set())


def test_two_hashes_are_compared_part_by_part():
    generator, made = ExperimentHashGenerator(), "a1b2c3d4e5f6g7h8i9j0k1l2"
    for other, expected in (
        (made, set()),
        ("a1b2c3d4_e5f6g7h8_i9j0k1l2", set()),
        ("f0f0f0f0e5f6g7h8i9j0k1l2", {"hp"}),
        ("f0f0f0f0_e5f6g7h8_i9j0k1l3", {"hp", "data"}),
        ("a1b2c3d4" + "0" * 16, {"model", "data"}),
    ):
        assert generator.compare_hashes(made, other) == expected
        assert generator.compare_hashes(other, made) == expected
    for wrong in ("", "a1b2c3d4", "A" * 24, "a" * 25, None, 24):
        with pytest.raises(errors.BadOption):
            generator.compare_hashes(made, wrong)


def test_data_counts_as_the_manager_counts_it():
    generator = ExperimentHashGenerator()
    made = generator.generate_hash(data_state={"train": "a.csv"})
    loaded = {"uids": [], "discarded": [], "tags": {}, "data": {"train": "a.csv"}}
    assert generator.has_changed(data_state=loaded) == (False, set())
    assert generator.generate_hash(data_state=loaded) == made
    assert generator.generate_hash(data_state={"uids": []}) == "0" * 24
    assert generator.generate_hash(data_state={**loaded, "uids": ["a"]}) != made


def test_a_part_that_is_not_given_is_zeros_and_volatile_settings_do_not_count():
    generator = ExperimentHashGenerator()
    assert generator.generate_hash() == "0" * 24
    made = generator.generate_hash(config=HP)
    assert made[8:] == "0" * 16
    assert made[:8] != "0" * 8
    volatile = {"root_log_dir": "/a", "is_training": True, "pause_at_step": 3}
    assert generator.generate_hash(config=HP | volatile | {"experiment_name": "x"}) == made


def test_an_object_without_a_stable_form_is_refused_by_its_key():
    with pytest.raises(errors.UnstableValue, match="callback"):
        ExperimentHashGenerator().generate_hash(config={"lr": 0.1, "callback": object()})


def test_restored_hashes_are_compared_with():
    first, second = ExperimentHashGenerator(), ExperimentHashGenerator()
    made = first.generate_hash(new_model(), HP, DATA)
    second.restore_hashes(first.get_component_hashes())
    assert second.get_last_hash() == made
    assert second.has_changed(new_model(), HP, {**DATA, "discarded": []}) == (True, {"data"})
    second.restore_hashes(combined_hash=made)
    assert second.has_changed(new_model(), HP, DATA) == (False, set())
    second.restore_hashes({"hp": "12345678", "model": "87654321", "data": "abcdabcd"})
    assert second.get_last_hash() == "1234567887654321abcdabcd"
    for wrong in ({"hp": "123"}, {"hp": "ABCDEFGH"}, {"x": "12345678"}, {"combined": "a1b2c3d4"}):
        with pytest.raises(errors.BadOption):
            second.restore_hashes(wrong)
        assert second.get_last_hash() == "1234567887654321abcdabcd"
