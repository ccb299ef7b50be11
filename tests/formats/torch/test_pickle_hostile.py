"""The reader of torch's pickle against pickles that attack it: nothing runs, all is refused."""

from __future__ import annotations

import copy
import random
import re
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from standfast.errors import StandfastError, TruncatedFile
from standfast.formats.torch.globals import Storage
from standfast.formats.torch.pickle import StoredTensor, Stub, read_pickle
from tests import ROOT
from tests.formats.torch.hostile_pickles import (
    CASES,
    SYSTEM,
    Case,
    call,
    dict_of,
    list_of,
    name,
    pickle_of,
    tensor,
    text,
)
from tests.formats.torch.test_pickle import pickle_in
from tests.fuzz.limits import memory_limit, processor_limit

LONGEST_MESSAGE = 4000


@pytest.fixture(autouse=True)
def nothing_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each attack would leave a file in the folder that it runs in."""
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_pickle_is_refused(case: Case) -> None:
    data = case.data
    with memory_limit(1 << 30), processor_limit(5), pytest.raises(StandfastError) as refused:
        read_pickle(data)
    message = str(refused.value)
    assert type(refused.value) is case.error, message
    assert re.search(case.message, message), message
    assert len(message) < LONGEST_MESSAGE
    assert message.isprintable()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_reader_of_the_tensors_alone_is_as_strict_with_what_is_malformed(case: Case) -> None:
    data = case.data
    with memory_limit(1 << 30), processor_limit(5):
        if case.opens:
            assert type(read_pickle(data, tensors_only=True)) in (Stub, Storage, dict, OrderedDict)
            return
        with pytest.raises(StandfastError) as refused:
            read_pickle(data, tensors_only=True)
    assert type(refused.value) is case.error


AUDITED = """
import sys
from standfast.errors import StandfastError
from standfast.formats.torch.pickle import read_pickle
from tests.formats.torch.hostile_pickles import RUNNING_CODE
import encodings.unicode_escape

seen, cases = [], [case.data for case in RUNNING_CODE]
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
        with pytest.raises(TruncatedFile, match=r"^offset \d+: "):
            read_pickle(data[:end])


def mutated(data: bytes, generator: random.Random) -> bytes:
    """The bytes with a few of them changed, left out, doubled or exchanged for those elsewhere."""
    changed = bytearray(data)
    for _ in range(generator.randint(1, 4)):
        at, to = generator.randrange(2, len(changed)), generator.randrange(2, len(changed))
        length = generator.choice([1, 1, 2, 4, 9, 40])
        kind = generator.randrange(5)
        if kind == 0:
            changed[at] = generator.randrange(256)
        elif kind == 1:
            changed[at] = generator.choice(b"(tRQqrhjKMJX)]}eaubsc.\x81\x85\x86\x93\x94\x8a\x8b")
        elif kind == 2:
            del changed[at : at + length]
        elif kind == 3:
            changed[at:at] = changed[to : to + length]
        else:
            changed[at : at + length] = changed[to : to + length]
        changed += b"." * (len(changed) < 3)
    return bytes(changed)


def fuzz(inputs: int, seed: int) -> Counter[str]:
    """What becomes of mutated pickles; every error that is not ours is raised."""
    generator = random.Random(seed)
    seeds = [sample(protocol) for protocol in (2, 3, 4, 5)]
    outcomes: Counter[str] = Counter()
    for _ in range(inputs):
        data = mutated(generator.choice(seeds), generator)
        for tensors_only in (False, True):
            try:
                copy.deepcopy(read_pickle(data, tensors_only=tensors_only))
                outcomes["opens"] += 1
            except StandfastError as error:
                outcomes[type(error).__name__] += 1
            except Exception as error:
                raise AssertionError(f"{data!r} raises {error!r}") from error
    return outcomes


def test_no_mutation_gets_past_our_errors() -> None:
    outcomes = fuzz(inputs=30_000, seed=1)
    # Fewer would say that the mutations no longer get behind the first check.
    assert outcomes["opens"] >= 20, outcomes
    assert len(outcomes) >= 7, outcomes
