"""torch's `.pt`, `.pth` and `.ckpt` as pure functions, without torch and without running code.

`docs/formats/torch.md` is the page of the bytes, and of what is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from standfast.errors import (
    BadArchive,
    BadField,
    BadRange,
    IndexMismatch,
    UnsupportedFile,
    shortened,
)
from standfast.files.layout import Form, Index, Layout, Row
from standfast.formats.limits import MAX_RANK as MAX_RANK
from standfast.formats.limits import refuse
from standfast.formats.reader import Options, Read
from standfast.formats.torch.pickle import read_pickle
from standfast.formats.torch.pickle_writer import write_pickle
from standfast.formats.torch.tensors import is_plain, reach
from standfast.formats.torch.values import TORCH_DTYPES, StoredTensor, Stub
from standfast.formats.trees import ROOT, leaves, walk, with_leaves
from standfast.formats.zip.archive import Archive, Entry, read_archive
from standfast.formats.zip.tensors import (
    ArchiveBuilder,
    check_digests,
    columns,
    read_entry,
    read_own,
    refuse_bare_metadata,
    seal_of,
)
from standfast.tensors import TensorSpec

NAME: Final = "torch"
SUFFIXES: Final = (".pt", ".pth", ".ckpt")
DTYPES: Final = frozenset(TORCH_DTYPES.values())
STRINGS_ONLY: Final = False
BARE_KEYS: Final[frozenset[str] | None] = frozenset()
SEEKS: Final = True

FOLDER: Final = "archive"
OWN_ENTRY: Final = "standfast.json"
_LEGACY: Final = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How torch began a file before 1.6: the pickle of a number."""


def recognises(head: bytes, size: int) -> bool:
    """Whether a file with these first bytes is meant to be one of this format.

    NumPy's files are zip archives too: their entries are arrays, torch's lie in a folder.
    """
    if head.startswith(_LEGACY[: len(head)]) and len(head) >= 10:
        return True
    length = int.from_bytes(head[26:28], "little")
    first = head[30 : 30 + length]
    # No folder has so long a name that it does not fit; an array may.
    in_folder = b"/" in first and len(first) == length and not first.endswith(b".npy")
    return head.startswith(b"PK\3\4") and (in_folder or first == b"data.pkl")


# Writing


def layout(
    tensors: Sequence[tuple[str, TensorSpec]], metadata: Mapping[str, Any], extras: bool
) -> Layout:
    """Where these tensors go: a pickle that names them, then an entry each."""
    refuse(tensors, NAME, DTYPES)
    builder = ArchiveBuilder()
    builder.add(f"{FOLDER}/data.pkl", write_pickle(tensors))
    builder.add(f"{FOLDER}/byteorder", b"little")
    for i, (_, spec) in enumerate(tensors):
        builder.add_tensor(f"{FOLDER}/data/{i}", b"", spec.nbytes)
    builder.add(f"{FOLDER}/version", b"3\n")
    if extras:
        builder.add_own(f"{FOLDER}/{OWN_ENTRY}", metadata, listed=True)
    else:
        refuse_bare_metadata(metadata)
    return builder.layout(extras)


# Reading


def read_index(read: Read, size: int | None, options: Options) -> Index:
    """The index of a file of `size` bytes: its tensors and plain values by their paths."""
    assert size is not None
    archive, root, entries = _read_entries(read, size)
    pickle = read_entry(read, entries["data.pkl"])
    tree = read_pickle(pickle, tensors_only=options.tensors_only)
    found = leaves(tree, len(pickle))
    tensors = {path: leaf for path, leaf in found.items() if isinstance(leaf, StoredTensor)}
    rows = {path: row for row, path in enumerate(tensors)}
    numbers = iter(range(len(rows)))

    def as_row(leaf: Any) -> Any:
        return Row(next(numbers)) if isinstance(leaf, StoredTensor) else leaf

    big_endian = _is_big_endian(read, entries)
    places = [_place(tensor, entries, root, path) for path, tensor in tensors.items()]
    starts, sizes = columns([a for a, _ in places]), columns([b for _, b in places])
    own = read_own(read, entries[OWN_ENTRY]) if OWN_ENTRY in entries else None
    plain = {
        path: leaf for path, leaf in found.items() if not isinstance(leaf, StoredTensor | Stub)
    }
    return Index(
        format=NAME,
        metadata=plain if own is None else plain | own["metadata"],
        rows=rows,
        dtypes=[tensor.dtype for tensor in tensors.values()],
        shapes=[tensor.shape for tensor in tensors.values()],
        starts=starts,
        sizes=sizes,
        end=size,
        digests=check_digests(read, size, archive, own, starts, sizes) if options.verify else None,
        forms={
            row: form
            for row, tensor in enumerate(tensors.values())
            if (form := _form(tensor, big_endian))
        },
        left_out={path: leaf.what for path, leaf in found.items() if isinstance(leaf, Stub)},
        tree=(with_leaves(tree, as_row),),
    )


def check(read: Read, size: int) -> str:
    """The seal of a file that we wrote, once all in it but its tensors is known to be as it was.

    Unlike an index it does not ask that every leaf have a path of its own.
    """
    archive, root, entries = _read_entries(read, size)
    tree = read_pickle(read_entry(read, entries["data.pkl"]))
    places = [
        _place(node, entries, root, path)
        for path, node in walk(tree, ROOT, 0)
        if isinstance(node, StoredTensor)
    ]
    own = read_own(read, entries[OWN_ENTRY]) if OWN_ENTRY in entries else None
    starts, sizes = columns([a for a, _ in places]), columns([b for _, b in places])
    if check_digests(read, size, archive, own, starts, sizes) is None:
        raise IndexMismatch("it has no digests of Standfast's: another program wrote it")
    return seal_of(archive)


def _read_entries(read: Read, size: int) -> tuple[Archive, str, dict[str, Entry]]:
    if read(0, min(size, len(_LEGACY))) == _LEGACY:
        raise UnsupportedFile(
            "a file of torch before 1.6, which is not a zip archive: load it with torch and save "
            "it again"
        )
    archive = read_archive(read, size)
    return archive, *_entries(archive)


def _entries(archive: Archive) -> tuple[str, dict[str, Entry]]:
    """The name of the folder that all entries lie in, and the entries by their names in it."""
    first = archive.entries[0].name if archive.entries else ""
    root, slash, _ = first.partition("/")
    if not slash:
        raise BadArchive(f"the first entry is {shortened(first)!r}, which is in no folder")
    entries = {}
    for entry in archive.entries:
        folder, _, name = entry.name.partition("/")
        if folder != root:
            raise BadArchive(
                f"entry {shortened(entry.name)!r} (offset {entry.header_at:,}): all entries "
                f"should be in the folder {shortened(root)!r}"
            )
        entries[name] = entry
    if archive.unlisted:
        raise BadArchive(f"entry {archive.unlisted[0].name!r:.200} is not in the directory")
    if "constants.pkl" in entries:
        raise UnsupportedFile("a TorchScript archive: save its state_dict() instead")
    if "data.pkl" not in entries:
        raise BadArchive("there is no entry data.pkl: this is no file of torch")
    return root, entries


def _is_big_endian(read: Read, entries: Mapping[str, Entry]) -> bool:
    if "byteorder" not in entries:  # torch before 2.1
        return False
    order = read_entry(read, entries["byteorder"])
    if order not in (b"little", b"big"):
        raise BadField(f"entry 'byteorder': expected little or big, found {order!r:.80}")
    return order == b"big"


def _place(
    tensor: StoredTensor, entries: Mapping[str, Entry], root: str, path: str
) -> tuple[int, int]:
    """Where a tensor lies in the file, and how many bytes it takes there."""
    where = f"tensor {shortened(path)!r}"
    entry = entries.get(f"data/{tensor.storage}")
    if entry is None:
        raise BadArchive(f"{where}: there is no entry {root}/data/{tensor.storage}")
    if entry.deflated:
        raise UnsupportedFile(f"{where}: entry {shortened(entry.name)!r} is compressed")
    if entry.size != tensor.storage_bytes:
        raise BadRange(
            f"{where}: its storage has {tensor.storage_bytes:,} bytes, but entry "
            f"{shortened(entry.name)!r} (offset {entry.header_at:,}) has {entry.size:,}"
        )
    return entry.data_at + tensor.offset, reach(tensor)


def _form(tensor: StoredTensor, big_endian: bool) -> Form | None:
    spec = TensorSpec(tensor.dtype, tensor.shape)
    strides = None if not spec.nbytes or is_plain(tensor, spec) else tensor.strides
    swapped = big_endian and spec.kind.numpy.itemsize > 1
    return Form(strides, swapped) if strides is not None or swapped else None
