"""The names users call, pinned: a change here is a change for them."""

import inspect
import re
import subprocess
import sys

import pytest

import standfast
from standfast import errors
from tests import ROOT

NAMES = {
    standfast: """
        Checkpoint Checkpointer Converted DamagedFile Diff KeepAll KeepBest KeepEvery KeepLast
        KeepTagged Packed ResumableLoader Run Schedule StandfastError Store TensorFile TensorSpec
        TrainingState __version__ amr convert diff errors experiments load open oxck packages
        parallel per_rank save tenzor verify
    """,
    standfast.amr: """
        AMRTree FieldArena GaugeFrontend GaugeTree GridTopology INVALID LinkExchangeSpec
        OpenTopology Patch PeriodicTopology Restored ScalarFrontend Schedule ShardContext Snapshot
        TreeCheckpoint TreeState broadcast_checkpoint_step format_path format_ranked_path link_halo
        logical_digest move_blocks repartition
    """,
    standfast.packages: """
        Config DataStats DatasetInfo DatasetMetadata DatasetSample GPT GenerationInfo ModelInfo
        REQUIRED_FILES TrainingParams VarMap export list_saved_models load_model load_model_folder
        load_model_mmaped pack save_model save_model_folder save_to_store unpack verify_package
    """,
}
ARGUMENTS = {
    "open": "source mapped verify names tensors_only",
    "load": "source framework verify mapped names tensors_only device cast",
    "save": "target tensors metadata format cast extras",
    "convert": "source target format cast extras names tensors_only replace",
    "diff": "before after names tensors_only",
    "verify": "path progress",
}


def test_the_public_names_and_their_arguments_are_these():
    for module, names in NAMES.items():
        assert sorted(module.__all__) == names.split()
        assert all(hasattr(module, name) for name in module.__all__)
    for name, arguments in ARGUMENTS.items():
        assert [*inspect.signature(getattr(standfast, name)).parameters] == arguments.split()


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)


def test_importing_standfast_imports_no_framework_and_nothing_of_simulations():
    done = _run("import standfast, sys; print(*sys.modules)")
    imported = done.stdout.split()
    assert "standfast" in imported
    frameworks = {"torch", "jax", "rich", "typer", "mpi4py"}
    assert not frameworks & set(imported)
    assert not [name for name in imported if name.startswith("standfast.amr")]


@pytest.mark.long
def test_integrations_are_attributes_of_the_package():
    done = _run("import standfast as s; print(s.dcp.Writer, s.lightning.StandfastCheckpoint)")
    assert "standfast.lightning.callback.StandfastCheckpoint" in done.stdout


def test_windows_is_refused_with_one_clear_error():
    done = _run("import sys; sys.platform = 'win32'; import standfast")
    assert done.returncode == 1
    assert re.match("ImportError: .*Windows", done.stderr.splitlines()[-1])


def test_every_error_stands_in_the_drawn_tree_and_in_the_docs():
    page = (ROOT / "docs" / "errors.md").read_text()
    for kind in vars(errors).values():
        if isinstance(kind, type) and kind.__module__ == errors.__name__:
            assert kind.__name__ in (errors.__doc__ or ""), kind
            assert f"`{kind.__name__}`" in page, kind
            assert issubclass(kind, errors.StandfastError | UserWarning)
            assert kind.__doc__


def test_every_error_has_the_bases_that_are_drawn():
    for line in (errors.__doc__ or "").splitlines():
        if "─" in line:
            name, _, bases = line.split("─")[-1].strip().partition(" (")
            kind = getattr(errors, name.split()[0])
            if bases:
                base = bases.partition(")")[0]
                assert base in [parent.__name__ for parent in kind.__mro__], line


def test_errors_are_the_built_in_errors_that_programs_catch():
    assert issubclass(errors.MissingFile, FileNotFoundError)
    assert issubclass(errors.WriteFailed, OSError)
    assert issubclass(errors.TensorNotFound, KeyError)
    assert issubclass(errors.DamagedFile, ValueError)
