"""A package as one file and back, and archives that are not what they should be."""

import errno
import gzip
import itertools
import os
import random
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from safetensors.numpy import save_file

import standfast
from standfast import errors
from standfast.files.atomic import aside_prefix
from standfast.files.folder_swap.leftovers import NEW
from standfast.packages import archive, pack, unpack
from standfast.packages.archive import Member, TarReader, header
from tests.kit.disk_faults import FaultyDisk, raising
from tests.kit.fault_states import UnsyncedDisk
from tests.kit.power import LoggingDisk, read_tree, write_tree
from tests.kit.seams import Seams
from tests.kit.stores import flip
from tests.packages.archives import (
    attributes,
    entry,
    make_package,
    members_of,
    packed,
    unpacked_by_python,
)


@pytest.fixture
def package(tmp_path: Path) -> Path:
    return make_package(tmp_path / "models" / "gpt")


@pytest.fixture
def into(tmp_path: Path) -> Path:
    (tmp_path / "into").mkdir()
    return tmp_path / "into"


@pytest.mark.parametrize("suffix", archive.SUFFIXES)
def test_a_package_is_packed_and_unpacked_exactly(suffix, package, into):
    (package / "notes of mine ü.txt").write_text("not in the manifest")
    (package / ("long" * 50)).write_bytes(b"")
    path = pack(package, into / f"gpt{suffix}")
    assert path == into / f"gpt{suffix}"
    assert unpack(path, into) == into / "gpt"
    assert read_tree(into / "gpt") == read_tree(package)
    assert sorted(os.listdir(into)) == ["gpt", f"gpt{suffix}"]
    assert standfast.verify(into / "gpt" / "model.safetensors").tensors == 2
    again: Any = (os.fsencode(path), os.fsencode(into / "bytes"))  # as any other path
    assert unpack(*again) == into / "bytes" / "gpt"


def test_an_archive_has_neither_times_nor_owners(package, monkeypatch):
    monkeypatch.chdir(package.parent)
    assert pack("gpt") == Path("gpt.tar.gz")
    monkeypatch.chdir(package)
    assert pack(".") == Path("../gpt.tar.gz")
    path = package.parent / "gpt.tar.gz"
    infos = unpacked_by_python(path, path.read_bytes())
    assert list(infos) == ["gpt", *(f"gpt/{name}" for name in sorted(os.listdir(package)))]
    assert all(not info.mtime and not info.uid and not info.uname for info in infos.values())


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.zst"])
def test_the_same_package_gives_the_same_bytes(suffix, tmp_path):
    made = []
    for place in ("a", "b"):
        package = make_package(tmp_path / place / "gpt")
        os.utime(package / "config.json", (len(made), len(made)))
        made.append(pack(package, tmp_path / f"{place}{suffix}").read_bytes())
    assert made[0] == made[1]


def test_an_archive_that_other_programs_made_is_unpacked(package, into):
    by_tar = into / "by-tar.tar.gz"
    subprocess.run(["tar", "czf", by_tar, "-C", package.parent, "./gpt"], check=True)
    by_python = into / "by-python.tar.gz"
    with tarfile.open(by_python, "w:gz") as writer:
        writer.add(package, "gpt")  # with times in pax headers
    for path in (by_tar, by_python):
        assert read_tree(unpack(path, path.with_suffix(".unpacked"))) == read_tree(package)


def test_a_folder_without_a_manifest_is_packed_too(tmp_path, into):
    package = make_package(tmp_path / "bare", with_manifest=False)
    assert read_tree(unpack(pack(package), into)) == read_tree(package)
    other = make_package(tmp_path / "transformers", with_manifest=False)
    save_file(dict(standfast.load(other / "model.safetensors")), other / "model.safetensors")
    with pytest.warns(errors.NotVerified):
        archive = pack(other)
    with pytest.warns(errors.NotVerified):
        assert read_tree(unpack(archive, into)) == read_tree(other)


def test_what_a_killed_save_left_in_the_folder_is_not_packed(package, into):
    before = read_tree(package)
    (package / ".0123456789abcdef.01234567.standfast").write_bytes(b"half")
    assert read_tree(unpack(pack(package), into)) == before


@pytest.mark.parametrize("when", ["listed", "created", "progress"])
def test_a_package_that_is_replaced_is_packed_again(when, package, into, seams):
    before = read_tree(package)
    replace = Replacing(package, 1)

    def listed(listdir: Any, folder: Path) -> Any:
        found = listdir(folder)
        if folder == package:
            replace()
        return found

    def created(create: Any, path: Path, *more: Any) -> Any:
        if path.parent == package.parent:
            replace()
        return create(path, *more)

    if when == "listed":
        seams.system(os, listdir=listed)
    elif when == "created":
        seams.disk(create=created)
    path = pack(package, progress=replace if when == "progress" else None)
    assert replace.count == 1
    assert before != read_tree(package) == read_tree(unpack(path, into))


def test_a_package_that_is_replaced_all_the_time_is_not_packed(package):
    path = pack(package)
    before = path.read_bytes()
    with pytest.raises(errors.ChangedFile):
        pack(package, progress=Replacing(package, 100))
    assert path.read_bytes() == before


def test_too_many_files_are_not_even_looked_at(package, seams):
    seams.bound("members of an archive", 5)
    pack(package)  # four files and the folder
    (package / "notes.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(errors.UnsupportedFile, match="5"):
        pack(package)


UNSOUND: dict[str, tuple[Callable[[Path], object], type[errors.StandfastError]]] = {
    "model.safetensors": (flip, errors.DigestMismatch),
    "tokenizer.json": (Path.unlink, errors.MissingData),
    "runs": (Path.mkdir, errors.UnsupportedFile),
    "training_args.bin": (lambda path: path.write_bytes(b"\x80\x04."), errors.RefusedPickle),
    "vocabulary": (lambda path: path.symlink_to("/etc/passwd"), errors.UnsupportedFile),
    "odd\nname": (Path.touch, errors.UnsupportedFile),
}
"""By the file that is wrong."""


@pytest.mark.parametrize("name", UNSOUND)
def test_an_unsound_package_is_refused(name, package, into):
    change, error = UNSOUND[name]
    change(package / name)
    with pytest.raises(error, match=name.partition("\n")[0]):
        pack(package)
    assert os.listdir(package.parent) == ["gpt"]
    if name in ("model.safetensors", "tokenizer.json", "training_args.bin"):
        with pytest.raises(error):
            unpack(packed(into.parent / "other.tar.gz", members_of(package)), into)
        assert os.listdir(into) == []


def test_a_wrong_source_or_target_is_refused(package, tmp_path):
    hidden = make_package(tmp_path / ".gpt")
    for source, target, error in (
        (tmp_path / "nowhere", None, errors.MissingFile),
        (package, tmp_path / "gpt.zip", errors.BadOption),
        (package, package / "gpt.tar.gz", errors.BadOption),
        (package, tmp_path / "nowhere" / "gpt.tar.gz", errors.MissingFile),
        (hidden, None, errors.UnsupportedFile),
    ):
        with pytest.raises(error):
            pack(source, target)


def test_without_its_library_an_archive_is_refused(package, monkeypatch):
    path = pack(package, package.with_name("gpt.tar.zst"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    for action in (lambda: pack(package, path), lambda: unpack(path, package)):
        with pytest.raises(errors.BadOption, match="zst"):
            action()


def test_an_existing_folder_is_never_touched(package, into):
    path = pack(package)
    (into / "gpt").mkdir()
    with pytest.raises(errors.AlreadyExists):
        unpack(path, into)
    (into / "gpt").rmdir()
    (into / "gpt").symlink_to("nowhere")
    unpack(path, into)  # where the link leads to
    assert (into / "gpt").is_symlink()
    assert read_tree(into / "nowhere") == read_tree(package)
    assert read_tree(unpack(path, into / "new" / "folders")) == read_tree(package)


PAX_X = entry("gpt/x")
HEADERS = {
    "a sparse file of pax": b"22 GNU.sparse.major=1\n",
    "other names of pax": b"21 hdrcharset=BINARY\n",
}
HOSTILE: dict[str, tuple[bytes, type[errors.StandfastError]]] = {
    **{name: (attributes(text) + PAX_X, errors.UnsupportedFile) for name, text in HEADERS.items()},
    **{
        name: (entry("gpt/x", kind=kind), errors.UnsupportedFile)
        for name, kind in {
            "an empty folder below": b"5",
            "a symbolic link": b"2",
            "a hard link": b"1",
            "a device": b"3",
            "a pipe": b"6",
            "a sparse file": b"S",
        }.items()
    },
    "an absolute name": (entry("/gpt/x"), errors.BadArchive),
    "a way up": (entry("gpt/../../x"), errors.BadArchive),
    "a way up as a folder": (entry("../x"), errors.BadArchive),
    "a folder called ..": (entry("..", kind=b"5"), errors.BadArchive),
    "a way up in pax": (attributes(b"20 path=gpt/../../x\n") + PAX_X, errors.BadArchive),
    "no name": (entry(""), errors.BadArchive),
    "a name with an escape": (entry("gpt/\x1b[2J"), errors.BadArchive),
    "a name that is too long": (entry("gpt/" + "x" * 256), errors.BadArchive),
    "a name that is not UTF-8": (PAX_X.replace(b"gpt/x", b"gpt/\xff", 1), errors.BadArchive),
    "a hidden folder": (entry(".ssh/keys"), errors.BadArchive),
    "a file in no folder": (entry("config.json"), errors.BadArchive),
    "two folders": (entry("gpt/x") + entry("other/x"), errors.BadArchive),
    "a folder below": (entry("gpt/x/y"), errors.UnsupportedFile),
    "a global header": (entry("x", b"9 path=a\n", b"g"), errors.UnsupportedFile),
    "a header upon a header": (attributes(b"11 path=ab\n") * 2, errors.UnsupportedFile),
    "a name twice in pax": (attributes(b"14 path=gpt/x\n" * 2) + PAX_X, errors.DuplicateKey),
    "two sizes": (attributes(b"10 size=5\n") + entry("gpt/x", b"12345"), errors.BadArchive),
    "a size that is none": (attributes(b"11 size=-1\n") + PAX_X, errors.BadArchive),
    "a broken line of pax": (attributes(b"99 path=x\n") + PAX_X, errors.BadArchive),
    "a line of pax without length": (attributes(b"path=x\n"), errors.BadArchive),
    "a line of pax of no length": (attributes(b"0 path=x\n"), errors.BadArchive),
    "a header without end": (attributes(bytes(1 << 20)), errors.LimitExceeded),
    "the same file twice": (entry("gpt/x") * 2, errors.BadArchive),
    "a file larger than the disk": (header(Member("gpt/x", 1 << 60, False)), errors.NotEnoughSpace),
    "a folder with content": (entry("gpt", b"x", b"5"), errors.BadArchive),
    "no tar at all": (b"x" * 2048, errors.BadArchive),
    "nothing": (b"", errors.BadArchive),
    "too many files": (entry("gpt", kind=b"5") * (archive.MOST_MEMBERS + 1), errors.LimitExceeded),
    "no package": (entry("gpt/config.json", b"{}"), errors.MissingData),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_leaves_nothing(name, into):
    members, error = HOSTILE[name]
    path = packed(into.parent / "hostile.tar.gz", members)
    before = sorted(os.listdir(into.parent))
    with pytest.raises(error) as caught:
        unpack(path, into)
    assert type(caught.value) is error
    assert ".standfast" not in str(caught.value)
    assert str(caught.value).isprintable()
    assert os.listdir(into) == []
    assert sorted(os.listdir(into.parent)) == before


def test_the_end_of_an_archive_is_looked_at(package, into):
    members = members_of(package)
    path = into.parent / "end.tar.gz"
    for end, error in {
        b"": errors.TruncatedFile,
        bytes(512): errors.TruncatedFile,
        bytes(1024) + b"more": errors.TrailingBytes,
        bytes(2 << 20): errors.TrailingBytes,
    }.items():
        with pytest.raises(error):
            unpack(packed(path, members, end), into)
        assert os.listdir(into) == []
    unpack(packed(path, members, bytes(20 * 512)), into)
    assert read_tree(into / "gpt") == read_tree(package)


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.zst"])
def test_a_cut_or_changed_archive_is_refused_or_gives_the_same(suffix, package, into, seams):
    seams.disk(UnsyncedDisk())
    data = pack(package, into.parent / f"gpt{suffix}").read_bytes()
    broken = into.parent / f"broken{suffix}"
    chance = random.Random(0)
    for at in (*range(0, 20, 3), *chance.sample(range(len(data)), 10), len(data) - 1):
        broken.write_bytes(data[:at])
        with pytest.raises(errors.DamagedFile, match=broken.name):
            unpack(broken, into)
        assert os.listdir(into) == []
    refused = 0
    places = (*range(12), *chance.sample(range(len(data)), 20), *range(len(data) - 8, len(data)))
    for at in places:
        bit = bytes([data[at] ^ 1 << chance.randrange(8)])
        broken.write_bytes(data[:at] + bit + data[at + 1 :])
        try:
            folder = unpack(broken, into)
        except (errors.DamagedFile, errors.UnsupportedFile):
            refused += 1
            assert os.listdir(into) == []
        else:
            assert read_tree(folder) == read_tree(package)
            folder.rename(into.parent / f"same-{suffix}-{at}")
    assert refused >= len(places) - 8


def test_other_compressions_and_second_streams_are_refused(package, into):
    path = into.parent / "gpt.tar"
    members = members_of(package)
    whole = members + bytes(1024)
    for data, error, named in [
        (b"BZh91AY", errors.UnsupportedFile, "bzip2"),
        (b"\xfd7zXZ\0\0", errors.UnsupportedFile, "xz"),
        (b"PK\x03\x04....", errors.UnsupportedFile, "zip"),
        (members, errors.UnsupportedFile, "compressed"),
        (b"hello", errors.BadArchive, "gzip"),
        (b"", errors.TruncatedFile, "0"),
        (gzip.compress(whole) + gzip.compress(b"more"), errors.TrailingBytes, ""),
        (zstandard.compress(whole) + zstandard.compress(b"more"), errors.TrailingBytes, ""),
    ]:
        path.write_bytes(data)
        with pytest.raises(error, match=rf"gpt\.tar: .*{named}"):
            unpack(path, into)
        assert os.listdir(into) == []
    with pytest.raises(errors.MissingFile):
        unpack(into / "missing.tar.gz", into)


def test_files_of_more_than_8_gib_have_a_size_that_is_read_back():
    member = Member("gpt/" + "x" * 200, 9 << 30, is_folder=False)
    assert next(iter(TarReader(iter([header(member)])))) == member
    by_gnu = tarfile.TarInfo("gpt/x")
    by_gnu.size = 9 << 30
    found = next(iter(TarReader(iter([by_gnu.tobuf(tarfile.GNU_FORMAT)]))))
    assert found == Member("gpt/x", 9 << 30, is_folder=False)


def test_what_a_killed_unpack_left_is_removed_by_the_next_which_is_durable(package, into, seams):
    path = pack(package)
    leftover = into / f"{aside_prefix(into / 'gpt')}00000000{NEW}"
    write_tree({"config.json": b"half", "notes.txt": b"half"}, leftover)
    logging = seams.disk(LoggingDisk(into))
    unpack(path, into)
    assert os.listdir(into) == ["gpt"]
    kinds = [operation.kind for operation in logging.log]
    assert kinds.count("create") == kinds.count("sync") == len(os.listdir(into / "gpt"))
    assert kinds[-3:] == ["sync_folder", "rename", "sync_folder"]
    assert (kinds.count("rename"), kinds.count("sync_folder")) == (1, 2)


@pytest.mark.parametrize("what", ["pack", "unpack"])
def test_a_disk_that_fails_leaves_nothing_half(what, package, into):
    path = pack(package, into.parent / "gpt.tar.gz")
    for at in itertools.count(1):
        place = into / str(at)
        place.mkdir()
        with Seams.until_end() as seams:
            faulty = seams.disk(FaultyDisk(at, raising(OSError(errno.EIO, "Input/output error"))))
            try:
                pack(package, place / "gpt.tar.gz") if what == "pack" else unpack(path, place)
            except errors.WriteFailed:
                assert faulty.struck
            else:
                assert faulty.struck is None
                break
        if os.listdir(place):  # all that was left to do was to sync the folder above
            is_packed = what == "pack"
            found = unpack(place / "gpt.tar.gz", place) if is_packed else place / "gpt"
            assert read_tree(found) == read_tree(package)
            assert faulty.struck in ("close", "sync_folder")
    assert at > 7


class Replacing:
    """Lets another package take the place of one, so many times."""

    def __init__(self, package: Path, times: int) -> None:
        self.package, self.times, self.count = package, times, 0

    def __call__(self, *_: object) -> None:
        if self.count < self.times:
            self.count += 1
            other = make_package(self.package.parent / f"o{self.count}" / "gpt", seed=self.count)
            self.package.rename(other.with_name("old"))
            other.rename(self.package)
