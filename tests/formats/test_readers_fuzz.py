"""The fuzzer in its short forms: `make fuzz SECONDS=600` runs it guided by coverage."""

import pytest

from tests.fuzz.run import Format, fuzz, memory_folder
from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("inputs", [500, pytest.param(10_000, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", TARGETS)
def test_no_input_breaks_the_reader(name, inputs):
    with memory_folder() as folder:
        report = fuzz(Format(TARGETS[name], folder), seed=1, inputs=inputs)
    assert not report.failures, str(report)
    # Fewer would say that the changes no longer reach behind the first check.
    assert report.accepted >= 40, str(report)
    assert len(report.refused) >= 8, str(report)
