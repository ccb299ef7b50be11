"""Everything that can go wrong, one class for each way.

    StandfastError
    ├── FileError (OSError)                the file system said no
    │   ├── MissingFile (FileNotFoundError)
    │   ├── UnreadableFile
    │   └── WriteFailed
    │       ├── NotEnoughSpace             a save that cannot fit was not begun
    │       └── AlreadyExists (FileExistsError)
    ├── ClosedFile (ValueError)            a file used after it was closed
    ├── UnknownFormat (ValueError)         no format of ours claims these bytes or this name
    ├── UnsupportedFile (ValueError)       a sound file of a version or kind that we do not read
    │   └── TooNew                         written by a newer version of Standfast
    ├── RefusedPickle (ValueError)         a pickle that asks for code to be run
    ├── UnknownFramework (ValueError)      no adapter of that name, or its library is missing
    ├── NothingToVerify (ValueError)       the file holds no digests
    ├── TensorNotFound (KeyError)          the file holds no tensor of that name
    ├── BadIndex (IndexError)              a slice that the tensor does not have
    ├── RefusedTensor                      a tensor that cannot be written as it is
    │   ├── UnsupportedTensor (TypeError)
    │   ├── UnsupportedDType (TypeError)
    │   ├── UnsupportedShape (ValueError)
    │   ├── BadName (ValueError)
    │   └── DuplicateName (ValueError)
    ├── RefusedMetadata (ValueError)       metadata that cannot be written as it is
    ├── RefusedState (TypeError)           a leaf of a state that cannot be kept as it is
    ├── UnstableValue (TypeError)          an identity cannot be made of this value
    ├── StateMismatch (ValueError)         the saved state and the tree to fill differ
    ├── BadOption (ValueError)             an argument that is none of those there are
    ├── BadSchedule (ValueError)           `every` says no time to save at
    ├── NotOpen (RuntimeError)             a Checkpointer outside of its `with`, or nothing to save
    ├── SaveFailed (RuntimeError)          the process that wrote a checkpoint ended in the middle
    │   └── StateChanged                   the state changed while its copy was made
    ├── OutOfMemory (MemoryError)          no memory, or no thread, can be had
    ├── CopyFailed (RuntimeError)          a device could not copy, or has no memory
    ├── ProofFailed (RuntimeError)         a program of which nothing can be proved
    ├── RankError                          ranks that cannot go on together
    │   ├── RankFailed (RuntimeError)      something went wrong on one of them
    │   ├── RankLost (TimeoutError)        one of them did not come in time
    │   ├── RanksDisagree (ValueError)     they were given what should be equal, and is not
    │   └── WrongRankCount (ValueError)    saved by another number of them than there are
    ├── MeshError                          what a tree of blocks refuses to do
    │   ├── BlockAlreadyExists (ValueError)
    │   ├── BlockNotFound (LookupError)    no block of this index, or a dead one
    │   ├── BadBlock (ValueError)          an origin, level or group of blocks that cannot be
    │   ├── MaxRefinementExceeded (ValueError)
    │   ├── ArenaFull (MemoryError)        no slot is free
    │   └── GhostsInUse (RuntimeError)     a snapshot or a change inside `apply`
    ├── IncompatibleCheckpoint (ValueError)  a sound state of another kind of tree
    ├── StoreError                         what a store refuses to do
    │   ├── NotAStore (FileNotFoundError)
    │   ├── UnsupportedStore (ValueError)  a server without conditional writes
    │   ├── RefNotFound (LookupError)      no checkpoint goes by this name
    │   ├── AmbiguousRef (LookupError)     several do
    │   ├── BadLabel (ValueError)          no name for a run or a tag
    │   ├── StepExists (FileExistsError)   the step was saved already
    │   ├── RunBusy (RuntimeError)         another process writes into the run
    │   ├── RunExists (FileExistsError)    a run that was to be new is there already
    │   ├── RunCollision (ValueError)      two identities with one short hash
    │   └── Protected (ValueError)         a checkpoint that must not be deleted
    └── DamagedFile (ValueError)           the file is not what a writer wrote
        ├── TruncatedFile                  it ends too early
        ├── TrailingBytes                  it goes on after its end
        ├── ChangedFile                    it changed while it was open
        ├── LimitExceeded                  a count or length beyond what any real file has
        ├── BadHeader                      the header is not what it should be
        ├── BadArchive                     the archive around tensors or a package is broken
        ├── BadPickle                      the pickle is not one that a writer of tensors wrote
        ├── BadField                       a field is missing, unknown, or of the wrong kind
        ├── DuplicateKey                   a key stands twice
        ├── UnknownDType                   a dtype that the format does not have
        ├── SizeMismatch                   a byte range is not shape × dtype
        ├── BadRange                       ranges overlap, leave a hole, or run outside the file
        ├── IndexMismatch                  the header's own digest does not match
        ├── MissingData                    a file that a checkpoint consists of is not there
        └── DigestMismatch                 the bytes of a tensor are not those that were saved

Warnings stand beside the tree, each a UserWarning: NotVerified, FellBack, SlowSaves,
NotDeleted, NotMirrored.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager


class StandfastError(Exception):
    """The base of every error that Standfast raises on purpose."""

    def __str__(self) -> str:
        if isinstance(self, OSError) and self.strerror is not None and self.filename is None:
            return str(self.strerror)  # which says all; the number is in `errno`
        return super().__str__()


class FileError(StandfastError, OSError):
    """The operating system refused an operation on a file."""


class MissingFile(FileError, FileNotFoundError):
    """There is no file at this path."""


class UnreadableFile(FileError):
    """The file exists and cannot be read: permissions, a folder, an I/O error."""


class WriteFailed(FileError):
    """The file could not be written; what stood at its path before is untouched."""


class NotEnoughSpace(WriteFailed):
    """The disk has not the room that the save needs; nothing was written."""


class AlreadyExists(WriteFailed, FileExistsError):
    """There is something of this name already, and it is not to be replaced."""


class ClosedFile(StandfastError, ValueError):
    """The file was used after it had been closed."""


class UnknownFormat(StandfastError, ValueError):
    """Neither the content nor the suffix belongs to a known format."""


class UnsupportedFile(StandfastError, ValueError):
    """The file may be sound; its version or kind is one that Standfast does not read."""


class TooNew(UnsupportedFile):
    """A newer version of Standfast wrote the file, and this one could misread it.

    Such a file is not damaged: nothing falls back from it, and nothing of it is deleted.
    """


class RefusedPickle(StandfastError, ValueError):
    """The pickle asks for code to be run, which no reader here does; nothing was run."""


class UnknownFramework(StandfastError, ValueError):
    """There is no adapter for this framework, or its library is not installed."""


class NothingToVerify(StandfastError, ValueError):
    """The file holds no digests, so nothing can be said about its content."""


class TensorNotFound(StandfastError, KeyError):
    """The file holds no tensor of this name."""

    def __str__(self) -> str:
        # KeyError would show the message's repr.
        return str(self.args[0])


class BadIndex(StandfastError, IndexError):
    """The index does not fit the tensor, or is none that a file can answer."""


class RefusedTensor(StandfastError):
    """A tensor was refused before a byte was written."""


class UnsupportedTensor(RefusedTensor, TypeError):
    """The value is no tensor, or a kind of tensor that has no plain bytes."""


class UnsupportedDType(RefusedTensor, TypeError):
    """The format has no such dtype."""


class UnsupportedShape(RefusedTensor, ValueError):
    """The format cannot hold a tensor of this shape."""


class BadName(RefusedTensor, ValueError):
    """The name is no text, too long, or reserved by the format."""


class DuplicateName(RefusedTensor, ValueError):
    """The same name was given twice."""


class RefusedMetadata(StandfastError, ValueError):
    """The metadata was refused before a byte was written."""


class RefusedState(StandfastError, TypeError):
    """A leaf of the state is of a type that would not come back the same; its path is named."""


class UnstableValue(StandfastError, TypeError):
    """The value looks different in every process, so that no identity can be made of it."""


class StateMismatch(StandfastError, ValueError):
    """The saved state and the tree that it should fill differ; nothing was filled."""


class BadOption(StandfastError, ValueError):
    """An argument that is none of those there are."""


class BadSchedule(StandfastError, ValueError):
    """What was given as `every` says no time to save at."""


class NotOpen(StandfastError, RuntimeError):
    """A Checkpointer was used outside of its `with`, or there is no experiment or model to save."""


class SaveFailed(StandfastError, RuntimeError):
    """The helper process that wrote a checkpoint ended before it was done."""


class StateChanged(SaveFailed):
    """Something other than an optimizer changed the state before its copy was made."""


class OutOfMemory(StandfastError, MemoryError):
    """The process can have no more memory, or start no more threads; what was saved is whole."""


class CopyFailed(StandfastError, RuntimeError):
    """A device could not copy from or to its memory, or has none left."""


class ProofFailed(StandfastError, RuntimeError):
    """The program fails, or does not checkpoint in a way that lets anything be proved of it."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output
        """The last lines that the program printed."""
        if output:
            self.add_note(f"the end of what it printed:\n{output}")


class RankError(StandfastError):
    """The ranks of a program cannot go on together; all of them raise the same."""


class RankFailed(RankError, RuntimeError):
    """Something went wrong on one or more ranks; the message has the reason of each."""


class RankLost(RankError, TimeoutError):
    """A rank did not come within the time that the others wait for it."""


class RanksDisagree(RankError, ValueError):
    """The ranks were given different values where all must have the same."""


class WrongRankCount(RankError, ValueError):
    """The snapshot was saved by another number of ranks than there are now."""


class MeshError(StandfastError):
    """What a tree of blocks refuses to do; the tree and the arena are as they were."""


class BlockAlreadyExists(MeshError, ValueError):
    """A live block with this origin and level is in the tree."""


class BlockNotFound(MeshError, LookupError):
    """There is no block of this index, or it is dead."""


class BadBlock(MeshError, ValueError):
    """An origin, a level or a group of siblings that no tree of this kind can have."""


class MaxRefinementExceeded(MeshError, ValueError):
    """The children would be of a level beyond the tree's highest."""


class ArenaFull(MeshError, MemoryError):
    """No slot is free, and the arena may not grow."""


class GhostsInUse(MeshError, RuntimeError):
    """The tree was saved or changed inside `apply`, while its ghosts and fields do not match."""


class IncompatibleCheckpoint(StandfastError, ValueError):
    """The saved state is sound, and that of another kind of tree than was expected."""


class StoreError(StandfastError):
    """What a store refuses to do."""


class NotAStore(StoreError, FileNotFoundError):
    """There is no store at this path."""


class UnsupportedStore(StoreError, ValueError):
    """The object store ignores or refuses conditional writes, so it cannot keep two writers apart.

    Nothing was written. Such a store can still be read.
    """


class RefNotFound(StoreError, LookupError):
    """No run and no checkpoint of the store goes by this name."""


class AmbiguousRef(StoreError, LookupError):
    """Several runs or checkpoints of the store go by this name."""


class BadLabel(StoreError, ValueError):
    """The text cannot be the name of a run or of a tag."""


class StepExists(StoreError, FileExistsError):
    """The run has a checkpoint of this step already."""


class RunBusy(StoreError, RuntimeError):
    """Another process writes into the run."""


class RunExists(StoreError, FileExistsError):
    """A run that was to be a new one is there already."""


class RunCollision(StoreError, ValueError):
    """The store has a run with the same short hash and another identity."""


class Protected(StoreError, ValueError):
    """The checkpoint is tagged, pinned, or the last intact one of its run."""


class DamagedFile(StandfastError, ValueError):
    """The file is not what a writer of its format wrote."""


class TruncatedFile(DamagedFile):
    """The file ends before its content does."""


class TrailingBytes(DamagedFile):
    """The file goes on after its content ends."""


class ChangedFile(DamagedFile):
    """The file shrank or was written to while it was open."""


class LimitExceeded(DamagedFile):
    """A count or length is beyond what any real file has."""


class BadHeader(DamagedFile):
    """The header is not what the format prescribes."""


class BadArchive(DamagedFile):
    """The zip archive around tensors, or the tar archive of a package, is not sound."""


class BadPickle(DamagedFile):
    """The pickle is not one that a writer of tensors wrote."""


class BadField(DamagedFile):
    """A header field is missing, unknown, or of the wrong kind."""


class DuplicateKey(DamagedFile):
    """A key stands twice where it may stand once."""


class UnknownDType(DamagedFile):
    """The header names a dtype that the format does not have."""


class SizeMismatch(DamagedFile):
    """The byte range of a tensor is not its shape times its dtype."""


class BadRange(DamagedFile):
    """Byte ranges overlap, leave a hole, or run outside the file."""


class IndexMismatch(DamagedFile):
    """The header is not the one that was written: its own digest does not match."""


class MissingData(DamagedFile):
    """A file that the checkpoint consists of is not there."""


class DigestMismatch(DamagedFile):
    """The bytes of one or more tensors are not those that were saved."""

    def __init__(self, message: str, tensors: tuple[str, ...]) -> None:
        super().__init__(message)
        self.tensors = tensors
        """The names of all damaged tensors, in the order of the file."""

    def __reduce__(self) -> tuple[type, tuple[str, tuple[str, ...]]]:
        return type(self), (str(self), self.tensors)  # for the way back from a worker process


class NotVerified(UserWarning):
    """What was loaded could not be verified, or not all of it: digests or files are missing."""


class FellBack(UserWarning):
    """What was asked for is damaged: an older checkpoint, or what is left of a run, was taken.

    Also from `Store.runs`, of a run that it leaves out because it is damaged or too new.
    """


class NotDeleted(UserWarning):
    """Checkpoints that a run does not keep could not be deleted; the message says why."""


class NotMirrored(UserWarning):
    """Checkpoints do not reach their mirror; they are safe in the store."""


class SlowSaves(UserWarning):
    """Checkpoints slow the loop down more than they should; the message says why."""


@contextmanager
def within_memory() -> Iterator[None]:
    """Raise OutOfMemory in place of the errors by which Python reports that.

    They are MemoryError, an OSError of `mmap`, and a RuntimeError where a thread cannot start.
    """
    try:
        yield
    except StandfastError:
        raise
    except (MemoryError, OSError, RuntimeError) as error:
        if isinstance(error, OSError) and error.errno != errno.ENOMEM:
            raise
        if isinstance(error, RuntimeError) and "new thread" not in str(error):
            raise
        raise OutOfMemory(
            f"the process can have no more memory or threads ({error or type(error).__name__}): "
            "free some memory, or raise the limits (ulimit -v, ulimit -u)"
        ) from error


def printable(text: str) -> str:
    """Text out of a file, with its control characters escaped: they would steer a terminal."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def shortened(text: str) -> str:
    """A name of any length, for a message."""
    return text if len(text) <= 200 else text[:200] + "…"
