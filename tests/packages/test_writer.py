"""A package takes the place of a package; what somebody else put into the folder is not touched."""

import os
from typing import Any

import numpy as np
import pytest

from standfast import errors
from standfast.packages import verify_package
from standfast.packages.writer import Contents, own_files, write_package
from standfast.tensors import TensorSpec, source_of
from tests.files.states import leftovers
from tests.kit.power import read_tree, write_tree
from tests.packages.saved_packages import make_package

IN_THE_WAY = """
    config.json tokenizer.json tokenizer_config.json generation_info.json dataset.json dataset.txt
    manifest.json model.safetensors model.safetensors.index.json model.int8.safetensors
    model-00001-of-00002.safetensors generation_config.json special_tokens_map.json
    added_tokens.json vocab.json merges.txt chat_template.jinja adapter_config.json extra.txt
""".split()
"""Files of other programs that a new package would overwrite, or be read with."""


IN_EACH_PACKAGE = {"config.json", "tokenizer.json", "manifest.json", "model.safetensors"}


class Unread:
    """Weights that nobody may ask for."""

    spec = TensorSpec("float32", (2, 2))
    sequential = False

    def contiguous(self) -> Any:
        pytest.fail("the save was begun")

    def copy_to(self, out: Any, start: int) -> None:
        pytest.fail("the save was begun")


def _contents(tensor: Any) -> Contents:
    files = {"tokenizer.json": b"{}", "extra.txt": b"extra"}
    return Contents({"weight": tensor}, {"model_type": "other"}, files)


@pytest.mark.parametrize("is_package", [False, True])
def test_a_file_of_another_program_is_not_mixed_in(is_package, tmp_path):
    for name in IN_THE_WAY:
        if is_package and name in IN_EACH_PACKAGE:
            continue
        folder = tmp_path / name / "mine"
        folder.parent.mkdir()
        if is_package:
            make_package(folder)
        write_tree({"README.md": b"mine", name: b'{"of": "another program"}'}, folder)
        before = read_tree(folder)
        with pytest.raises(errors.AlreadyExists, match=name):
            write_package(_contents(Unread()), folder)
        assert read_tree(folder) == before
        assert leftovers(folder) == []


def test_a_folder_that_is_empty_or_has_other_files_becomes_a_package(tmp_path):
    for others in ({}, {"README.md": b"mine", "notes.json": b"{}"}):
        folder = tmp_path / str(len(others))
        folder.mkdir()
        write_tree(others, folder)
        make_package(folder)
        make_package(folder, max_shard_size=2000)
        assert sorted(verify_package(folder).uncovered) == sorted(others)
        assert read_tree(folder).items() >= others.items()
        assert not (folder / "model.safetensors").exists()


def test_all_that_the_manifest_names_goes_with_the_old_package(tmp_path):
    folder = tmp_path / "gpt"
    tensor = source_of(np.ones((2, 2), np.float32))
    files = {"tokenizer.json": b"{}", "generation_config.json": b"{}", "dataset.txt": b"data"}
    write_package(Contents({"weight": tensor}, {"model_type": "other"}, files), folder)
    assert {*files, *IN_EACH_PACKAGE} == set(own_files(folder))
    write_package(_contents(tensor), folder)
    assert set(os.listdir(folder)) == {"extra.txt", *IN_EACH_PACKAGE}
    assert leftovers(folder) == []


def test_without_a_sound_manifest_nothing_is_ours(tmp_path):
    folder = make_package(tmp_path / "gpt")
    assert own_files(folder)[-1] == "manifest.json"
    text = (folder / "manifest.json").read_bytes()
    for changed in (text.replace(b"gpt2", b"gpt3"), b"{}", b"[", b"", b'{"format": "another"}'):
        (folder / "manifest.json").write_bytes(changed)
        assert own_files(folder) == []
        with pytest.raises(errors.AlreadyExists, match=r"config\.json"):
            make_package(folder)
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").symlink_to("/dev/zero")
    assert own_files(folder) == own_files(tmp_path / "nowhere") == []
