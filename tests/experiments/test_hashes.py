"""The hash of an experiment: what counts in it, and what differs between two."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from standfast.errors import BadOption, UnstableValue
from standfast.experiments import ExperimentHashGenerator
from standfast.identity import identify
from tests.experiments.models import DATA, HP, new_model


def test_a_hash_is_that_of_the_identity_of_a_run() -> None:
    model = new_model()
    made = ExperimentHashGenerator().generate_hash(model, HP, DATA)
    assert made == identify(hp=HP, model=model, data=DATA).hash


def test_data_counts_as_the_manager_counts_it() -> None:
    generator = ExperimentHashGenerator()
    made = generator.generate_hash(data_state={"train": "a.csv"})
    loaded = {"uids": [], "discarded": [], "tags": {}, "data": {"train": "a.csv"}}
    assert generator.has_changed(data_state=loaded) == (False, set())
    assert generator.generate_hash(data_state=loaded) == made
    assert generator.generate_hash(data_state={"uids": []}) == "0" * 24
    assert generator.generate_hash(data_state={**loaded, "uids": ["a"]}) != made


def test_a_part_that_is_not_given_is_zeros() -> None:
    generator = ExperimentHashGenerator()
    assert generator.generate_hash() == "0" * 24
    made = generator.generate_hash(config=HP)
    assert made[8:] == "0" * 16
    assert made[:8] != "0" * 8


def test_where_and_whether_an_experiment_goes_on_does_not_count() -> None:
    generator = ExperimentHashGenerator()
    volatile = {"root_log_dir": "/a", "is_training": True, "pause_at_step": 3}
    volatile |= {"experiment_name": "x"}
    assert generator.generate_hash(config=HP | volatile) == generator.generate_hash(config=HP)


def test_an_object_without_a_stable_form_is_refused_by_its_key() -> None:
    with pytest.raises(UnstableValue, match="callback"):
        ExperimentHashGenerator().generate_hash(config={"lr": 0.1, "callback": object()})


def test_what_has_changed_is_named() -> None:
    generator = ExperimentHashGenerator()
    model = new_model()
    generator.generate_hash(model, HP, DATA)
    assert generator.has_changed(model, HP, DATA) == (False, set())
    assert generator.has_changed(config=HP | {"lr": 0.1}) == (True, {"hp"})
    assert generator.has_changed(new_model(9), HP, {**DATA, "tags": {}}) == (
        True,
        {"model", "data"},
    )
    assert generator.has_changed(model, HP, force=True) == (True, {"hp", "model"})


def test_before_the_first_hash_everything_has_changed() -> None:
    assert ExperimentHashGenerator().has_changed(config=HP) == (True, {"hp"})


def test_the_components_are_those_of_the_last_hash() -> None:
    generator = ExperimentHashGenerator()
    assert generator.get_last_hash() is None
    assert set(generator.get_component_hashes().values()) == {None}
    made = generator.generate_hash(new_model(), HP)
    assert generator.get_last_hash() == made
    assert generator.get_component_hashes() == {
        "hp": made[:8],
        "model": made[8:16],
        "data": "00000000",
        "combined": made,
    }


def test_hashes_that_are_restored_are_compared_with() -> None:
    first, second = ExperimentHashGenerator(), ExperimentHashGenerator()
    made = first.generate_hash(new_model(), HP, DATA)
    second.restore_hashes(first.get_component_hashes())
    assert second.get_last_hash() == made
    assert second.has_changed(new_model(), HP, {**DATA, "discarded": []}) == (True, {"data"})
    second.restore_hashes(combined_hash=made)
    assert second.has_changed(new_model(), HP, DATA) == (False, set())
    second.restore_hashes({"hp": "12345678", "model": "87654321", "data": "abcdabcd"})
    assert second.get_last_hash() == "1234567887654321abcdabcd"


@pytest.mark.parametrize(
    "given",
    [{"hp": "123"}, {"hp": "ABCDEFGH"}, {"layers": "12345678"}, {"combined": "a1b2c3d4"}],
    ids=["short", "upper", "unknown", "combined"],
)
def test_what_is_no_hash_is_not_restored(given: dict[str, str]) -> None:
    generator = ExperimentHashGenerator()
    made = generator.generate_hash(config=HP)
    with pytest.raises(BadOption):
        generator.restore_hashes(given)
    assert generator.get_last_hash() == made


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ("a1b2c3d4e5f6g7h8i9j0k1l2", set()),
        ("a1b2c3d4_e5f6g7h8_i9j0k1l2", set()),
        ("f0f0f0f0e5f6g7h8i9j0k1l2", {"hp"}),
        ("f0f0f0f0_e5f6g7h8_i9j0k1l3", {"hp", "data"}),
        ("a1b2c3d4" + "0" * 16, {"model", "data"}),
    ],
)
def test_two_hashes_are_compared_part_by_part(other: str, expected: set[str]) -> None:
    generator = ExperimentHashGenerator()
    assert generator.compare_hashes("a1b2c3d4e5f6g7h8i9j0k1l2", other) == expected
    assert generator.compare_hashes(other, "a1b2c3d4e5f6g7h8i9j0k1l2") == expected


@pytest.mark.parametrize("wrong", ["", "a1b2c3d4", "A" * 24, "a" * 25, None, 24])
def test_what_is_no_hash_is_not_compared(wrong: str) -> None:
    with pytest.raises(BadOption, match="24 characters"):
        ExperimentHashGenerator().compare_hashes("a" * 24, wrong)


def test_weights_do_not_count_and_shapes_do() -> None:
    generator = ExperimentHashGenerator()
    narrow, wide = nn.Linear(10, 20), nn.Linear(10, 30)
    generator.generate_hash(narrow)
    with torch.no_grad():
        narrow.weight.zero_()
    assert generator.has_changed(narrow) == (False, set())
    assert generator.has_changed(wide) == (True, {"model"})
