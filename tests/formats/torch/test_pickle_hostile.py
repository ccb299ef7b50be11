"""The reader of torch's pickle against pickles that attack it: nothing runs, all is refused."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from standfast.errors import TruncatedFile
from standfast.formats.torch.pickle import StoredTensor, Stub, read_pickle
from tests import ROOT
from tests.formats.torch.hostile_pickles import (
    SYSTEM,
    call,
    dict_of,
    list_of,
    name,
    pickle_of,
    tensor,
    text,
)
from tests.formats.torch.test_pickle import pickle_in

AUDITED = """
import sys
from standfast.errors import StandfastError
from standfast.formats.torch.pickle import read_pickle
from tests.formats.torch.hostile_pickles import RUNNING_CODE
import encodings.unicode_escape

seen, cases = [], [row.content for row in RUNNING_CODE]
modules = set(sys.modules)
sys.addaudithook(lambda event, arguments: seen.append(event))
for data in cases:
    for tensors_only in (False, True):
        try:
            read_pickle(data, tensors_only=tensors_only)
        except StandfastError:
            pass
events = set(seen) - {"builtins.id"}
sys.exit(f"{events} {set(sys.modules) - modules}" if events or set(sys.modules) - modules else 0)
"""


@pytest.mark.guarantee("G11")
def test_python_itself_sees_no_import_and_no_call() -> None:
    """Imports, eval, open, os.system and all of subprocess raise an event of Python's audit."""
    root = ROOT
    result = subprocess.run(
        [sys.executable, "-c", AUDITED], cwd=root, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_a_stub_is_all_that_is_left_of_an_attack() -> None:
    data = pickle_of(
        dict_of(text("weight"), tensor(), text("x"), SYSTEM, text("y"), list_of(SYSTEM))
    )
    assert read_pickle(data, tensors_only=True) == {
        "weight": StoredTensor("0", 24, "float32", 0, (2, 3), (12, 4)),
        "x": Stub("os.system"),
        "y": [Stub("os.system")],
    }


def test_what_is_put_into_a_stub_goes_with_it() -> None:
    thing = name("some", "Thing") + b")\x81"
    into = (
        b"K\x01a",
        b"(K\x01K\x02e",
        text("k") + b"Ns",
        b"(" + text("k") + b"Nu",
        b"}b",
        b"(N\x90",
    )
    for opcodes in into:
        assert read_pickle(pickle_of(thing, opcodes), tensors_only=True) == Stub("some.Thing")


def test_a_call_with_a_stub_among_its_arguments_is_left_out() -> None:
    thing = name("some", "thing")
    for function, arguments in (
        (("torch", "Size"), thing),
        (("builtins", "complex"), thing + thing),
        (("torch._utils", "_rebuild_parameter"), thing + b"\x89N"),
        (("_codecs", "encode"), thing + text("latin1")),
    ):
        tree = read_pickle(pickle_of(call(name(*function), arguments)), tensors_only=True)
        assert tree == Stub(".".join(function))


def sample(protocol: int) -> bytes:
    """A little of everything that the reader knows."""
    layer = torch.nn.Linear(2, 2)
    return pickle_in(
        {
            "model": layer.state_dict(),
            "parameter": layer.weight,
            "new": torch.ones(2, dtype=torch.uint16),
            "values": [1, -1, 300, 70_000, 2**70, 1.5, None, True, b"ab", "ä", (1, 2, 3), {1: 2}],
            "sets": [{1, 2}, frozenset([3]), bytearray(b"ab"), 1 + 2j, torch.Size([1])],
            "numpy": [np.arange(3), np.float64(1.5), np.str_("ab")],
            "device": torch.device("cuda:1"),
        },
        protocol,
    )


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_cut_anywhere_is_truncated(protocol: int) -> None:
    data = sample(protocol)
    for end in range(len(data)):
        with pytest.raises(TruncatedFile):
            read_pickle(data[:end])
