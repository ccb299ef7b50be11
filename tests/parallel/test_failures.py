"""Errors that are sent to other ranks, and become errors again."""

import errno
import subprocess
import sys
from collections.abc import Iterator

import pytest

from standfast import errors, oxck
from standfast.errors import DigestMismatch, RankFailed, StandfastError, WriteFailed
from standfast.parallel.failures import Failure, failure_of, raise_failures


def _raised(*failures: Failure | None) -> StandfastError:
    with pytest.raises(StandfastError) as raised:
        raise_failures(failures, None)
    return raised.value


def _classes() -> Iterator[type[StandfastError]]:
    for module in (errors, oxck):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, StandfastError):
                yield kind


def test_every_class_of_ours_arrives_as_itself():
    classes = set(_classes())
    assert len(classes) > 60
    for kind in classes:
        failure = Failure(kind.__module__, kind.__qualname__, "it broke", None, {})
        error = _raised(None, failure)
        assert type(error) is kind
        assert str(error) == "rank 1 of 2: it broke"


def test_an_error_number_arrives_and_is_told_once():
    error = _raised(failure_of(WriteFailed(errno.ENOSPC, "the disk is full")), None)
    assert isinstance(error, WriteFailed)
    assert error.errno == errno.ENOSPC
    assert str(error) == "rank 0 of 2: WriteFailed: the disk is full"


def test_an_attribute_that_cannot_be_sent_is_left_out():
    original = DigestMismatch("damage", ("w",))
    original.open_file = sys.stdout  # type: ignore[attr-defined]
    original.add_note("seen by the test")
    assert failure_of(original).attributes == {"tensors": ("w",)}


@pytest.mark.parametrize("module", ["standfast.nowhere", "antigravity", "", "__main__"])
def test_a_class_that_is_not_known_is_a_failed_rank(module):
    assert type(_raised(Failure(module, "Unheard", "it broke", None, {}))) is RankFailed
    assert "antigravity" not in sys.modules


def test_a_class_that_this_rank_has_not_imported_arrives_as_itself():
    program = """if True:
        import sys
        from standfast.parallel.failures import Failure, raise_failures
        assert "standfast.tenzor.errors" not in sys.modules
        try:
            raise_failures([Failure("standfast.tenzor.errors", "BadConfig", "no", None, {})], None)
        except Exception as error:
            print(type(error).__name__)
    """
    command = [sys.executable, "-c", program]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert output == "BadConfig\n"


def test_the_error_number_of_an_error_that_is_not_ours_is_in_the_text():
    error = _raised(failure_of(PermissionError(errno.EACCES, "denied", "a/b")), None)
    assert type(error) is RankFailed
    assert str(error) == f"rank 0 of 2: PermissionError: [Errno {errno.EACCES}] denied: 'a/b'"
