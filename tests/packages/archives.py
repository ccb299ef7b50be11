"""Packages and archives made by hand, sound ones and others."""

import gzip
import io
import tarfile
from pathlib import Path

import numpy as np

import standfast
from standfast.packages.documents.manifest import Manifest, ModelSummary, digest_of


def make_package(folder: Path, with_manifest: bool = True, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "tokenizer.json").write_text("{}")
    weights = np.random.default_rng(seed).standard_normal((50, 30)).astype(np.float32)
    standfast.save(folder / "model.safetensors", {"wte.weight": weights, "ln_f.bias": weights[0]})
    if with_manifest:
        digests = {path.name: digest_of(path) for path in sorted(folder.iterdir())}
        model = ModelSummary("gpt2", 1530, 6120, "float32")
        Manifest("2026-11-16T12:00:00+00:00", digests, model, {}).write(folder)
    return folder


def entry(name: str, content: bytes = b"", kind: bytes = tarfile.REGTYPE) -> bytes:
    """A member of an archive."""
    info = tarfile.TarInfo(name)
    info.type = kind
    info.size = len(content)
    if kind in (tarfile.SYMTYPE, tarfile.LNKTYPE):
        info.linkname = "/etc/passwd"
    data = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
    return data + content + bytes(-len(content) % 512)


def attributes(text: bytes) -> bytes:
    """A pax header, which says more of the next member."""
    return entry("./PaxHeaders/x", text, b"x")


def members_of(folder: Path) -> bytes:
    """The package as `tar` would write it, without an end."""
    paths = sorted(folder.iterdir())
    return b"".join(entry(f"{folder.name}/{path.name}", path.read_bytes()) for path in paths)


def packed(path: Path, members: bytes, end: bytes = bytes(1024)) -> Path:
    path.write_bytes(gzip.compress(members + end, 1))
    return path


def unpacked_by_python(path: Path, data: bytes) -> dict[str, tarfile.TarInfo]:
    with tarfile.open(path, fileobj=io.BytesIO(data)) as archive:
        return {info.name: info for info in archive}
