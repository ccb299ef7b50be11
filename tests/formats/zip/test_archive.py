"""Zip archives: read as zipfile, NumPy, torch and zip write them; built so that these read them."""

import io
import os
import shutil
import subprocess
import zipfile
import zlib
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast import errors
from standfast.formats.zip import records
from standfast.formats.zip.archive import Archive, Entry, read_archive
from standfast.formats.zip.records import central_directory, local_header, unlisted_header
from tests.formats.builders import reader_of
from tests.formats.zip.builders import (
    UTF8,
    WITH_DESCRIPTOR,
    Piece,
    archive,
    archive_of,
    crc_of,
    descriptor,
    sparse_reader,
)
from tests.formats.zip.malformed import DESCRIBED, NARROW, PLAIN, WITH_WIDE_END
from tests.fuzz.limits import processor_limit

GIB = 1 << 30


def content(data: bytes, entry: Entry) -> bytes:
    stored = data[entry.data_at : entry.data_at + entry.stored_size]
    return zlib.decompress(stored, -15) if entry.deflated else stored


def agrees_with_zipfile(data: bytes) -> Archive:
    """Read an archive, and compare all of it with what Python's own module sees."""
    found = archive_of(data)
    with zipfile.ZipFile(io.BytesIO(data)) as theirs:
        infos = sorted(theirs.infolist(), key=lambda info: info.header_offset)
        for e, i in zip(found.entries, infos, strict=True):
            assert (e.name, e.header_at, e.size) == (i.filename, i.header_offset, i.file_size)
            assert (e.stored_size, e.crc) == (i.compress_size, i.CRC)
            assert e.deflated == (i.compress_type == 8)
            assert content(data, e) == theirs.read(e.name)
        assert found.comment == theirs.comment
    return found


class Unseekable(io.BytesIO):
    """A stream that only goes forward."""

    def seekable(self) -> bool:
        return False

    def tell(self) -> int:
        raise io.UnsupportedOperation

    seek = tell


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("force_zip64", [False, True])
@pytest.mark.parametrize("seekable", [False, True])
def test_what_zipfile_writes_is_read(method, force_zip64, seekable):
    target = io.BytesIO() if seekable else Unseekable()
    with zipfile.ZipFile(target, "w", method) as file:
        for name in ("a", "döner.npy", "../up", "empty"):
            with file.open(name, "w", force_zip64=force_zip64) as entry:
                entry.write(name.encode() * 100 if name != "empty" else b"")
        file.comment = b"a comment"
    assert len(agrees_with_zipfile(target.getvalue()).entries) == 4


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read(save):
    target, empty = io.BytesIO(), io.BytesIO()
    save(target, a=np.arange(3), b=np.zeros((2, 2)), c=np.zeros(0))
    found = agrees_with_zipfile(target.getvalue())
    assert [entry.name for entry in found.entries] == ["a.npy", "b.npy", "c.npy"]
    save(empty)
    assert archive_of(empty.getvalue()) == Archive([], [], b"", 0)


@pytest.mark.parametrize("with_checksums", [True, False])
def test_what_torch_writes_is_read(with_checksums):
    target = io.BytesIO()
    torch.serialization.set_crc32_options(with_checksums)
    try:
        torch.save({f"t{i}": torch.arange(i) for i in range(200)}, target)
    finally:
        torch.serialization.set_crc32_options(True)
    data = target.getvalue()
    found = agrees_with_zipfile(data) if with_checksums else archive_of(data)
    assert "archive/data/199" in {entry.name for entry in found.entries}
    assert all(entry.crc == 0 for entry in found.entries) == (not with_checksums)


def torch_file_of_5_gib(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """A sparse file of torch's, without the bytes of its tensors."""
    with open(folder / "zeros", "wb") as zeros:
        zeros.truncate(5 * GIB)
    big = torch.from_numpy(np.memmap(zeros.name, np.uint8, "r+"))
    tensors = {"first": torch.arange(3.0), "big": big, "last": torch.arange(5.0)}
    with torch.serialization.skip_data():
        torch.save(tensors, folder / "big.pt")
    return folder / "big.pt", tensors


def pread(file: Any) -> Callable[[int, int], bytes]:
    return lambda start, length: os.pread(file.fileno(), length, start)


def test_what_torch_writes_beyond_4_gib_is_read(tmp_path):
    path, _ = torch_file_of_5_gib(tmp_path)
    with open(path, "rb") as file:
        found = read_archive(pread(file), path.stat().st_size)
    with zipfile.ZipFile(path) as theirs:
        expected = {info.filename: info.header_offset for info in theirs.infolist()}
    assert {entry.name: entry.header_at for entry in found.entries} == expected
    sizes = {entry.name: entry.size for entry in found.entries}
    assert (sizes["big/data/1"], sizes["big/data/2"]) == (5 * GIB, 20)
    assert all(entry.data_at % 64 == 0 for entry in found.entries)


@pytest.mark.skipif(not shutil.which("zip"), reason="there is no zip command")
@pytest.mark.parametrize(
    ("options", "piped"),
    # -fz into a pipe gives an end record that even unzip refuses.
    [*product(["", "-0", "-X -0 -fd"], [False, True]), ("-fz", False)],
)
def test_what_zip_writes_is_read(options, piped, tmp_path):
    (tmp_path / "a.txt").write_text("hello")
    (tmp_path / "b.txt").write_text("numbers\n" * 10_000)
    target = "-" if piped else "out.zip"
    command = ["zip", "-q", "-D", *options.split(), target, "a.txt", "b.txt"]
    result = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, check=True)
    data = result.stdout if piped else (tmp_path / "out.zip").read_bytes()
    assert len(agrees_with_zipfile(data).entries) == 2


def test_entries_are_listed_in_the_order_of_the_file():
    data = archive(Piece(b"one"), Piece(b"two"))
    at = data.index(b"PK\1\2")
    length = len(data) - 22 - at
    turned = data[:at] + data[at + length // 2 : -22] + data[at : at + length // 2] + data[-22:]
    assert agrees_with_zipfile(turned) == agrees_with_zipfile(data)


@pytest.mark.parametrize("form", ["<3L", "<L2Q"])
@pytest.mark.parametrize("signature", [b"", b"PK\7\x08"])
@pytest.mark.parametrize("unlisted", [0, 1, 2])
def test_each_form_of_a_descriptor_is_read(form, signature, unlisted):
    pieces = [
        Piece(name, data, WITH_DESCRIPTOR, behind=descriptor(data, form, signature))
        for name, data in ((b"a", b""), (b"b", b"some"), (b"c", b"more"))
    ]
    hidden = [Piece(f"hidden {i}".encode(), bytes(i), listed=False) for i in range(unlisted)]
    data = archive(*pieces, *hidden)
    found = agrees_with_zipfile(data)
    assert [content(data, entry) for entry in found.entries] == [b"", b"some", b"more"]
    assert [entry.name for entry in found.unlisted] == [f"hidden {i}" for i in range(unlisted)]


def test_names_are_decoded_as_zipfile_does():
    data = archive(Piece("é".encode(), flags=UTF8), Piece("é".encode("cp437")), Piece(b"\x1f"))
    # Two spellings of one name are told apart by their bytes, and refused as one name.
    with pytest.raises(errors.DuplicateKey):
        archive_of(data)
    data = archive(Piece("é".encode(), flags=UTF8), Piece("ü".encode("cp437")), Piece(b"\x1f"))
    assert [entry.name for entry in agrees_with_zipfile(data).entries] == ["é", "ü", "\x1f"]


SMALL = {
    "plain": PLAIN,
    "zip64": WITH_WIDE_END,
    "comment": archive(DESCRIBED, Piece(b"u", listed=False), comment=b"a comment"),
}


@pytest.mark.parametrize("kind", SMALL)
def test_a_file_cut_anywhere_is_truncated(kind):
    archive_of(SMALL[kind])
    for size in range(len(SMALL[kind])):
        with pytest.raises(errors.TruncatedFile):
            archive_of(SMALL[kind][:size])


@pytest.mark.parametrize("kind", SMALL)
def test_no_changed_byte_makes_it_read_otherwise_than_zipfile_does(kind):
    data, accepted = SMALL[kind], 0
    for at in range(len(data)):
        for value in {0, 1, 0xFF, data[at] ^ 0x80, data[at] + 1 & 0xFF}:
            changed = data[:at] + bytes((value,)) + data[at + 1 :]
            try:
                found = archive_of(changed)
            except errors.StandfastError:
                continue
            accepted += 1
            with zipfile.ZipFile(io.BytesIO(changed)) as theirs:
                sizes = {info.filename: info.file_size for info in theirs.infolist()}
            assert {entry.name: entry.size for entry in found.entries} == sizes
    assert accepted > len(data)


def counted(read: Callable[[int, int], bytes]) -> tuple[Callable[[int, int], bytes], list[int]]:
    lengths: list[int] = []

    def count(start: int, length: int) -> bytes:
        lengths.append(length)
        return read(start, length)

    return count, lengths


def test_a_directory_beyond_the_limit_is_not_read():
    size, directory = 2 * GIB, 300 << 20
    end = archive(end={"directory_size": directory, "directory_at": size - 22 - directory})
    read, lengths = counted(sparse_reader([(size - 22, end)]))
    with pytest.raises(errors.LimitExceeded):
        read_archive(read, size)
    assert len(lengths) == 1
    assert lengths[0] < 70_000


def test_very_many_entries_take_few_reads_and_little_time():
    """More than 16 bits count."""
    data = built({f"archive/data/{i}": bytes(16) for i in range(70_000)}, align=64)
    read, lengths = counted(reader_of(data))
    with processor_limit(3):
        assert len(read_archive(read, len(data)).entries) == 70_000
    assert len(lengths) < 20
    with zipfile.ZipFile(io.BytesIO(data)) as theirs:
        assert len(theirs.namelist()) == 70_000


def test_entries_that_lie_apart_take_a_small_read_each():
    data = built({f"tensor {i}": bytes(100_000) for i in range(50)}, align=4096)
    read, lengths = counted(reader_of(data))
    assert len(read_archive(read, len(data)).entries) == 50
    assert len(lengths) < 56
    assert sum(sorted(lengths)[:-1]) < 50 * 5000


def built(
    contents: dict[str, bytes],
    align: int = 1,
    unlisted: dict[str, bytes] | None = None,
    comment: bytes = b"",
) -> bytes:
    out = bytearray()
    entries = []
    for name, data in contents.items():
        at = len(out)
        out += records.whole_entry(name, data, at, align)
        data_at = at + len(local_header(name, len(data), at, align))
        entries.append(Entry(name, at, data_at, len(data), len(data), crc_of(data), False))
    for name, data in (unlisted or {}).items():
        out += unlisted_header(name, crc_of(data), len(data)) + data
    return bytes(out) + central_directory(entries, len(out), comment)


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
names = names.filter(lambda name: name != "hidden\t" and not name.endswith("/"))


@given(
    st.dictionaries(names, st.binary(max_size=200), max_size=5),
    st.sampled_from([1, 2, 64, 4096, 1 << 15]),
    st.binary(max_size=20).filter(lambda comment: b"PK\5\6" not in comment),
)
@settings(max_examples=100, deadline=None)
def test_zipfile_and_we_read_what_we_build(contents, align, comment):
    data = built(contents, align, {"hidden\t": b"x"}, comment)
    found = agrees_with_zipfile(data)
    assert {entry.name: content(data, entry) for entry in found.entries} == contents
    assert all(entry.data_at % align == 0 for entry in found.entries)
    assert [content(data, entry) for entry in found.unlisted] == [b"x"]
    assert found.comment == comment
    assert built(contents, align, {"hidden\t": b"x"}, comment) == data


@pytest.mark.skipif(not shutil.which("unzip"), reason="there is no unzip command")
@pytest.mark.parametrize("unlisted", [{}, {"hidden": b"12345"}])
def test_unzip_finds_no_fault_in_what_we_build(unlisted, tmp_path):
    path = tmp_path / "built.zip"
    contents = {"a": b"some", "sub/b": bytes(1000), "empty": b""}
    path.write_bytes(built(contents, 64, unlisted, b"a comment"))
    result = subprocess.run(["unzip", "-t", path], capture_output=True, text=True, check=True)
    assert "No errors" in result.stdout


@pytest.mark.parametrize("size", [NARROW - 1, NARROW, NARROW + 1])
def test_sizes_and_offsets_around_4_gib_are_right(size):
    header = local_header("big", size, 0, 64)
    big = Entry("big", 0, len(header), size, size, 7, False)
    behind = records.descriptor(7, size)
    at = len(header) + size + len(behind)
    small = records.whole_entry("small", b"data", at, 64)
    small_at = at + len(local_header("small", 4, at, 64))
    entries = [big, Entry("small", at, small_at, 4, 4, crc_of(b"data"), False)]
    hidden_at = at + len(small)
    hidden = unlisted_header("hidden", 9, size)
    directory_at = hidden_at + len(hidden) + size
    end = central_directory(entries, directory_at)
    parts = [(0, header), (len(header) + size, behind + small)]
    parts += [(hidden_at, hidden), (directory_at, end)]
    found = read_archive(sparse_reader(parts), directory_at + len(end))
    assert found.entries == entries
    hidden_data = hidden_at + len(hidden)
    assert found.unlisted == [Entry("hidden", hidden_at, hidden_data, size, size, 9, False)]
    assert len(behind) == (16 if size < NARROW else 24)
    assert big.data_at % 64 == small_at % 64 == 0


def test_zipfile_and_torch_open_a_file_of_5_gib_that_we_build(tmp_path):
    pattern, tensors = torch_file_of_5_gib(tmp_path)
    path, entries = tmp_path / "built.pt", []
    with open(pattern, "rb") as source, open(path, "wb") as target:
        read = pread(source)
        for entry in read_archive(read, pattern.stat().st_size).entries:
            at, crc = target.tell(), 0  # of five billion zeros; nobody checks it here
            data_at = at + target.write(local_header(entry.name, entry.size, at, 64))
            if entry.size > GIB:
                target.seek(entry.size, os.SEEK_CUR)
            else:
                tensor = {"0": "first", "2": "last"}.get(entry.name.rpartition("/")[2])
                data = read(entry.data_at, entry.size)
                data = tensors[tensor].numpy().tobytes() if tensor else data
                crc = crc_of(data)
                target.write(data)
            target.write(records.descriptor(crc, entry.size))
            entries.append(Entry(entry.name, at, data_at, entry.size, entry.size, crc, False))
        target.write(central_directory(entries, target.tell()))
    loaded = torch.load(path, mmap=True, weights_only=True)
    assert loaded["big"].shape == (5 * GIB,)
    assert loaded["first"].tolist() == [0, 1, 2]
    assert loaded["last"].tolist() == [0, 1, 2, 3, 4]
    with zipfile.ZipFile(path) as file:
        assert file.getinfo(entries[5].name).file_size == 5 * GIB
        assert file.read(entries[6].name) == tensors["last"].numpy().tobytes()


def test_a_name_or_comment_that_would_not_come_back_is_refused():
    for name in ("", "a\0", "folder/", "é" * 40_000, "\ud800"):
        with pytest.raises(errors.BadName):
            local_header(name, 0, 0)
    for comment in (bytes(65_536), b"PK\5\6"):
        with pytest.raises(errors.RefusedMetadata):
            central_directory([], 0, comment)
