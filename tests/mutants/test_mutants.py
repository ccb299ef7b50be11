"""The list of mutants is right: `make mutants` takes minutes, and finds that out too late."""

import re
from collections import Counter

import pytest

from tests import ROOT
from tests.mutants.mutant import MUTANTS, module_of, read_sources

SOURCES = read_sources(ROOT / "src" / "standfast")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_can_be_applied_and_names_tests_that_exist(mutant):
    assert mutant.new != mutant.old
    module = module_of(mutant, SOURCES)
    compile(SOURCES[module].replace(mutant.old, mutant.new), module, "exec")
    assert mutant.tests
    for test in mutant.tests:
        path, _, name = test.partition("::")
        function = name.partition("[")[0]
        assert re.search(rf"^def {function}\(", (ROOT / path).read_text(), re.MULTILINE), test


def test_names_are_unique_and_sentences_complete():
    names = Counter(mutant.name for mutant in MUTANTS)
    assert set(names.values()) == {1}
    assert all(re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", name) for name in names)
    assert all(mutant.breaks.endswith(".") and "|" not in mutant.breaks for mutant in MUTANTS)
    promises = set(re.findall(r"^### (G\d+)", (ROOT / "docs/guarantees.md").read_text(), re.M))
    assert {mutant.guarantee for mutant in MUTANTS} - {""} <= promises


def test_mutants_are_spread_over_the_product_and_revert_what_was_fixed():
    assert len(MUTANTS) >= 60
    assert sum(bool(mutant.reverts) for mutant in MUTANTS) >= 20
    assert sum(mutant.long for mutant in MUTANTS) <= len(MUTANTS) // 20
    assert max(Counter(module_of(mutant, SOURCES) for mutant in MUTANTS).values()) <= 3


def test_the_page_has_every_mutant():
    page = (ROOT / "docs" / "mutants.md").read_text()
    listed = re.findall(r"^\| ([a-z0-9-]+) \| ", page, re.MULTILINE)
    assert listed[1:] == sorted(mutant.name for mutant in MUTANTS)
