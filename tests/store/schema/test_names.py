"""The names of files, runs and tags: the grammar, and nothing beside it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.errors import BadLabel
from standfast.store.schema import names

RUN = "0123456789abcdef01234xyz"
OTHER = "f" * 24


def test_files_have_the_names_that_the_format_gives_them():
    assert names.run_file(RUN) == f"models/{RUN}/{RUN}_run.json"
    assert names.record_file(RUN, 100) == f"models/{RUN}/{RUN}_step_000100.json"
    assert names.record_file(RUN, 12345678) == f"models/{RUN}/{RUN}_step_12345678.json"
    assert names.marks_file(RUN, 0) == f"models/{RUN}/{RUN}_step_000000.marks.json"
    name = names.data_file(RUN, 7, "0123abcd", "model")
    assert name == f"{RUN}_step_000007.0123abcd.model.safetensors"
    assert names.whole_file(RUN, 100) == f"models/{RUN}/{RUN}_step_000100.pt"
    assert names.config_file(RUN) == f"HP/{RUN}/{RUN}_config.yaml"
    assert names.data_state_file(RUN) == f"data/{RUN}/{RUN}_data_state.yaml"


@given(st.integers(0, 2**53 - 1))
def test_every_name_that_is_made_is_read_back(step):
    for kind, path in (
        ("record", names.record_file(RUN, step)),
        ("marks", names.marks_file(RUN, step)),
        ("data", names.data_file(RUN, step, "0123abcd", "model-2_x")),
        ("data", names.data_file(RUN, step, "0123abcd", "state", ".pth")),
        ("name", names.whole_file(RUN, step)),
    ):
        assert names.parse(path.rpartition("/")[2], RUN) == names.Named(kind, RUN, step)
    assert names.parse(f"{RUN}_run.json", RUN) == names.Named("run", RUN, 0)
    for suffix in (".json", ".pkl"):
        name = names.architecture_file(RUN, suffix).rpartition("/")[2]
        assert names.parse(name, RUN) == names.Named("architecture", RUN, 0)


def test_in_a_folder_only_data_may_be_that_of_another_run():
    data = names.data_file(OTHER, 7, "0123abcd", "model")
    assert names.parse(data, RUN) == names.Named("data", OTHER, 7)
    for path in (names.run_file, lambda run: names.record_file(run, 1)):
        assert names.parse(path(OTHER).rpartition("/")[2], RUN) is None


FOREIGN = [
    *("", "notes.txt", f"{RUN}.json", f"{RUN}_run.json.bak", f" {RUN}_run.json"),
    *(f"{RUN}_run.json\n", f"{RUN.upper()}_run.json", f"{RUN[:-1]}_run.json"),
    f"{RUN}_architecture.yaml",
    *(f"{RUN}_step_{step}.json" for step in ("100", "0000100", "00010a", "٠٠٠١٠٠", "-00100")),
    *(f"{RUN}_step_{10**20}.json", f"{RUN}_step_000100.marks.json.standfast"),
    *(f"{RUN}_step_000100.{end}" for end in ("pth", "0123abcd.pt", "0123abcd.state.pt")),
    *(f"{RUN}_step_000100.{part}.safetensors" for part in ("0123ABCD.model", "0123abc.model")),
    *(f"{RUN}_step_000100.0123abcd.{part}.safetensors" for part in ("", "Model", "a/b", "x" * 41)),
    f"{RUN}_step_000100.safetensors",
]


@pytest.mark.parametrize("name", FOREIGN)
def test_any_other_name_is_foreign(name):
    assert names.parse(name, RUN) is None


@pytest.mark.parametrize(
    ("key", "label"),
    [("model", "model"), ("Model.EMA", "model-ema"), ("../x", "x"), ("a\0b", "a-b")]
    + [(key, "part") for key in ("", "绿", "---")],
)
def test_a_part_has_a_label_that_is_no_path(key, label):
    assert names.label_of(key) == label


@given(st.text())
def test_every_label_fits_the_grammar(key):
    label = names.label_of(key)
    assert re.fullmatch("[a-z0-9_-]{1,40}", label)
    # Numbered, because there may be several parts of one label, it still does.
    assert names.parse(names.data_file(RUN, 1, "0123abcd", f"{label}-999"), RUN) is not None


def test_a_name_may_be_any_text_that_does_not_mislead():
    for name in ("a", "x" * 200, "GPT 2 (small), 3e-4", "Grün", "绿", "1", "_", "."):
        assert names.check_label(name, "a tag") == name
    for name in (
        *("", "x" * 201, "a/b", "a@b", "@", "latest", "best"),
        *("a\nb", "\x00", "\x7f", "a\x1b[31m", "\u2028", None, 5, b"a"),
    ):
        with pytest.raises(BadLabel):
            names.check_label(name, "a tag")


def test_paths_in_trees_are_dotted_text_that_a_file_can_hold():
    assert names.dotted(("optimizer", "state", 0, "exp_avg")) == "optimizer.state.0.exp_avg"
    assert names.dotted(()) == "state"
    assert names.dotted((None, True, 1.5)) == "None.True.1.5"
    for key in ("\udc80", 1 << 20_000, -(1 << 20_000)):
        assert names.key_text(key).encode()
