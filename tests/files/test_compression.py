"""Compressed files come back whole, in pieces that take little memory."""

import gzip
import os
from pathlib import Path

import pytest
import zstandard

from standfast import errors
from standfast.files.compression import compressing, decompressed
from standfast.files.disk import LOCAL

CONTENT = os.urandom(300_000) + bytes(3_000_000) + b"end"


def _write(path: Path) -> bytes:
    with compressing(path, LOCAL) as stream:
        for start in range(0, len(CONTENT), 99_999):
            stream.write(CONTENT[start : start + 99_999])
    return path.read_bytes()


@pytest.mark.parametrize("name", ["x.gz", "x.tgz", "x.zst"])
def test_what_was_compressed_comes_back(name, tmp_path):
    data = _write(tmp_path / name)
    fed: list[int] = []
    assert b"".join(decompressed(tmp_path / name, fed.append)) == CONTENT
    assert sum(fed) == len(data)
    by_others = zstandard.ZstdDecompressor().decompressobj().decompress if "zst" in name else None
    assert (by_others or gzip.decompress)(data) == CONTENT


@pytest.mark.parametrize("name", ["x.gz", "x.zst"])
def test_every_end_but_the_right_one_is_told(name, tmp_path):
    path = tmp_path / name
    data = _write(path)
    for cut in (1, 2, 4, 8, 9, 100):
        path.write_bytes(data[:-cut])
        with pytest.raises(errors.TruncatedFile):
            list(decompressed(path))
    for more in (1, 7, 8, 15, 16, 17, 100, 5000):
        path.write_bytes(data + bytes(more))
        with pytest.raises(errors.TrailingBytes):
            list(decompressed(path))
    path.write_bytes(data[:-5] + b"?" + data[-4:] if "gz" in name else data[:-1] + b"?")
    with pytest.raises(errors.BadArchive):
        list(decompressed(path))


@pytest.mark.parametrize("name", ["x.gz", "x.zst"])
def test_a_bomb_comes_in_pieces(name, tmp_path):
    zeros = bytes(64 << 20)
    with compressing(tmp_path / name, LOCAL) as stream:
        for _ in range(2):
            stream.write(zeros)
    assert (tmp_path / name).stat().st_size < 2 << 20
    sizes = [len(piece) for piece in decompressed(tmp_path / name)]
    assert sum(sizes) == 2 * len(zeros)
    assert max(sizes) <= 64 << 20


def test_a_window_larger_than_memory_is_refused(tmp_path):
    parameters = zstandard.ZstdCompressionParameters(window_log=31, enable_ldm=False)
    compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    (tmp_path / "x.zst").write_bytes(compressor.compress(b"x" * 1000) + compressor.flush())
    with pytest.raises(errors.BadArchive):
        list(decompressed(tmp_path / "x.zst"))
