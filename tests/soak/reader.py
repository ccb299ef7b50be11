"""The files of a store as docs/format.md describes them, read without the library.

Every byte that a record refers to is hashed and compared with the state that its number gives.
"""

import base64
import json
import math
import os
import re
import struct
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from blake3 import blake3

from tests.soak.states import CHUNK, difference, state, without

RUN = "[0-9a-z]{24}"
STEP = r"_step_(\d{6}|[1-9]\d{6,15})"
RECORD = re.compile(f"({RUN}){STEP}\\.json")
MARKS = re.compile(f"({RUN}){STEP}\\.marks\\.json")
NAME = re.compile(f"({RUN}){STEP}\\.pt")
DATA = re.compile(f"({RUN}){STEP}" + r"\.[0-9a-f]{8}\.[a-z0-9_-]{1,40}\.(safetensors|pth)")
ENTRY = re.compile(f"({RUN})" + r"\.[0-9a-f]{8}")
ASIDE = re.compile(r"\.([0-9a-f]{16}\.)?[0-9a-f]{8}\.standfast")
_SEAL = re.compile(rb'"(?:seal|standfast\.digest)":"([0-9a-f]{64})"')


class Wrong(Exception):
    """A promise that a store does not keep: its name, and what is wrong."""

    def __init__(self, promise: str, what: str) -> None:
        super().__init__(promise, what)
        self.promise, self.what = promise, what

    def __str__(self) -> str:
        return f"{self.promise}: {self.what}"


@dataclass
class Found:
    """A checkpoint that is on the disk."""

    number: int
    sequence: int
    token: str
    dropped: set[str]
    files: dict[str, int]
    tags: list[str] = field(default_factory=list)
    notes: set[str] = field(default_factory=set)


@dataclass
class OnDisk:
    """All that a store holds."""

    runs: dict[str, dict[str, Any]] = field(default_factory=dict)
    """The run files, by hash."""
    checkpoints: dict[tuple[str, int], Found] = field(default_factory=dict)
    trash: dict[tuple[str, int], set[int]] = field(default_factory=dict)
    """The numbers of the states in the trash, by run and step."""
    leftovers: list[str] = field(default_factory=list)
    """Files of ours that nothing refers to."""
    wrong: list[Wrong] = field(default_factory=list)
    nbytes: int = 0


def read_store(place: Path) -> OnDisk:
    """Read everything in a store, and note what is not as it must be."""
    return _Reading(place).found


class _Reading:
    def __init__(self, place: Path) -> None:
        self.found = OnDisk()
        self._checked: dict[tuple[int, int], str] = {}
        models = place / "checkpoints" / "models"
        for folder in sorted(models.iterdir()) if models.is_dir() else ():
            if re.fullmatch(RUN, folder.name) and not folder.is_symlink():
                self._read_run(folder)
        trash = place / "checkpoints" / ".standfast" / "trash"
        for folder in sorted(trash.iterdir()) if trash.is_dir() else ():
            if (match := ENTRY.fullmatch(folder.name)) and not folder.is_symlink():
                self._read_entry(folder, match[1])
        damaged = place / "checkpoints" / "damaged"
        for path in damaged.iterdir() if damaged.is_dir() else ():
            self.found.wrong.append(Wrong("G9", f"{path.name} says that a sound file is damaged"))
        for above, _, names in os.walk(place):
            self.found.leftovers += [f"{above}/{name}" for name in names if ASIDE.fullmatch(name)]

    def _read_run(self, folder: Path) -> None:
        run, names = folder.name, {entry.name for entry in os.scandir(folder)}
        file = folder / f"{run}_run.json"
        steps: dict[int, Found] = {}
        if file.exists():
            self._try(lambda: self.found.runs.update({run: sealed(file, "standfast run 1")}))
        for name in sorted(names):
            if (match := RECORD.fullmatch(name)) and match[1] == run:
                self._try(lambda s=int(match[2]): steps.update({s: self._checkpoint(folder, s)}))
                if file.name not in names:
                    self.found.wrong.append(Wrong("G1", f"{folder} has a record and no run file"))
        used = Counter(name for each in steps.values() for name in each.files)
        for name in sorted(names):
            if match := MARKS.fullmatch(name):
                self._try(lambda n=name: self._marks(folder / n, steps))
            if DATA.fullmatch(name) and not used[name] and not (folder / name).is_symlink():
                self.found.leftovers.append(f"{folder}/{name}")
            if match := NAME.fullmatch(name):
                self._try(lambda n=name, s=int(match[2]): self._whole(folder / n, steps.get(s)))
        for step, each in steps.items():
            stem = f"{run}_step_{step:06d}"
            whole = any(name.startswith(f"{stem}.") and ".pth" in name for name in each.files)
            if whole and f"{stem}.pt" not in names:
                self.found.leftovers.append(f"{folder}: {stem} has no V3 name")
            self.found.checkpoints[run, step] = each

    def _read_entry(self, folder: Path, run: str) -> None:
        if not (folder / "entry.json").exists():
            self.found.leftovers.append(str(folder))
            return

        def read() -> None:
            entry = sealed(folder / "entry.json", "standfast trash 1")
            for step, sequence in entry["checkpoints"]:
                found = self._checkpoint(folder, step, run, "G15")
                if found.sequence != sequence:
                    raise Wrong("G15", f"{folder}: step {step} has sequence {found.sequence}")
                self.found.trash.setdefault((run, step), set()).add(found.number)

        self._try(read)

    def _try(self, read: Any) -> None:
        try:
            read()
        except Wrong as wrong:
            self.found.wrong.append(wrong)

    def _checkpoint(self, folder: Path, step: int, run: str = "", promise: str = "G1") -> Found:
        """Read a record and all that it refers to."""
        run = run or folder.name
        path = folder / f"{run}_step_{step:06d}.json"
        try:
            record = _Record(path)
        except FileNotFoundError as error:
            raise Wrong(promise, f"{path} is missing") from error
        except (ValueError, KeyError, IndexError, AssertionError) as error:
            raise Wrong("G9", f"{path}: {type(error).__name__}: {error}") from error
        if (record.head["run"], record.head["step"]) != (run, step):
            raise Wrong("G1", f"{path} is that of {record.head['run']}@{record.head['step']}")
        data = {}
        for file in record.head["files"]:
            data[file["name"]] = self._data(folder / file["name"], file, promise)
        try:
            loaded, nbytes = record.state(list(data.values()))
        except (ValueError, KeyError, IndexError) as error:
            raise Wrong("G9", f"{path}: {type(error).__name__}: {error}") from error
        self.found.nbytes += nbytes
        number = record.head["metrics"]["number"]
        dropped = set(record.head.get("dropped", ()))
        loaded.pop("random", None)
        if wrong := difference(without(state(number), dropped), loaded):
            raise Wrong("G4", f"{path}, number {number}: {wrong}")
        files = {file["name"]: file["size"] for file in record.head["files"]}
        head = record.head
        return Found(number, head["sequence"], head["token"], dropped, files)

    def _data(self, path: Path, file: dict[str, Any], promise: str) -> np.ndarray[Any, Any]:
        try:
            status = path.lstat()
        except FileNotFoundError as error:
            raise Wrong("G14" if promise == "G1" else promise, f"{path} is missing") from error
        if status.st_size != file["size"] or path.is_symlink():
            raise Wrong("G1", f"{path} has {status.st_size} bytes, not {file['size']}")
        data = np.fromfile(path, np.uint8)
        identity = (status.st_ino, status.st_mtime_ns)
        if path.suffix == ".safetensors" and identity not in self._checked:
            self._checked[identity] = safetensors_damage(data, file["digest"])
        if wrong := self._checked.get(identity):
            raise Wrong("G9", f"{path}: {wrong}")
        return data

    def _marks(self, path: Path, steps: dict[int, Found]) -> None:
        marks = sealed(path, "standfast marks 1")
        found = steps.get(marks["step"])
        if found is None or (marks["sequence"], marks["token"]) != (found.sequence, found.token):
            self.found.leftovers.append(f"{path}: marks without their record")
            return
        found.tags = marks.get("tags", [])
        found.notes = {note["text"] for note in marks.get("notes", ())}
        found.notes |= set(marks.get("metrics", ()))

    def _whole(self, path: Path, found: Found | None) -> None:
        stem = path.stem + "."
        own = [n for n in found.files if n.startswith(stem) and n.endswith(".pth")] if found else []
        if not own:
            self.found.leftovers.append(f"{path}: a V3 name without a whole file")
        elif path.read_bytes() != (path.parent / own[0]).read_bytes():
            raise Wrong("G19", f"{path} is another file than {own[0]}")


class _Record:
    """A record's lines, with its digest and its seal checked."""

    def __init__(self, path: Path) -> None:
        text = path.read_bytes()
        *lines, last, after = text.split(b"\n")
        assert not after, "no line break at its end"
        digest = blake3(text[: len(text) - len(last) - 1]).hexdigest()
        assert json.loads(last) == {"digest": digest}, "it does not match its digest"
        self.head = unsealed(lines[0], "standfast record 1")
        self._tree = json.loads(lines[1])
        self._columns: dict[str, Any] = {}
        for line in lines[2:]:
            self._columns |= json.loads(line)

    def state(self, files: list[np.ndarray[Any, Any]]) -> tuple[Any, int]:
        """The state, every chunk of it checked, and how many bytes were."""
        columns = self._columns
        specs, extents = columns["specs"], columns["extents"]
        dtypes = [specs["dtypes"]["values"][row] for row in specs["dtypes"]["rows"]]
        digests = base64.b64decode(columns["digests"].split(":", 2)[2])
        views = {view[0]: view[1:] for view in columns["views"]}
        tensors: list[Any] = [None] * len(dtypes)
        extent = digest = nbytes = 0
        for number, (dtype, shape) in enumerate(zip(dtypes, specs["shapes"], strict=True)):
            if number in views:
                continue
            pieces = []
            for _ in range(extents["counts"][number]):
                start, size = extents["starts"][extent], extents["sizes"][extent]
                pieces.append(files[extents["files"][extent]][start : start + size])
                extent += 1
            whole = np.concatenate(pieces) if pieces else np.zeros(0, np.uint8)
            if whole.nbytes != math.prod(shape) * np.dtype(dtype).itemsize:
                raise ValueError(f"tensor {number} has {whole.nbytes} bytes")
            for start in range(0, max(1, whole.nbytes), CHUNK):
                if blake3(whole[start : start + CHUNK]).digest() != digests[digest : digest + 32]:
                    raise ValueError(f"tensor {number} does not match its digest at {start}")
                digest += 32
            tensors[number] = whole.view(dtype).reshape(shape)
            nbytes += whole.nbytes
        if digest != len(digests):
            raise ValueError("there are more digests than chunks")
        for number, (base, offset, strides) in views.items():
            tensors[number] = np.ndarray(
                specs["shapes"][number], dtypes[number], tensors[base].data, offset, strides
            )
        return _decoded(self._tree, tensors), nbytes


def _decoded(node: Any, tensors: list[Any]) -> Any:
    """A value of the tree; those tags that states of the soak have."""
    if isinstance(node, list):
        return [_decoded(each, tensors) for each in node]
    if not isinstance(node, dict):
        return node
    match next(iter(node.items()), ("", None)):
        case ("$tensor", number):
            return tensors[number]
        case ("$tuple", items):
            return tuple(_decoded(each, tensors) for each in items)
        case ("$dict", items):
            return {_decoded(key, tensors): _decoded(value, tensors) for key, value in items}
        case ("$int", digits):
            return int(digits, 0)
        case ("$float", bits):
            return struct.unpack(">d", bytes.fromhex(bits))[0]
        case ("$bytes", text):
            return base64.b64decode(text)
    return {key: _decoded(value, tensors) for key, value in node.items()}


def sealed(path: Path, format: str) -> dict[str, Any]:
    """A file of sealed JSON."""
    try:
        return unsealed(path.read_bytes().removesuffix(b"\n"), format)
    except (ValueError, AssertionError) as error:
        raise Wrong("G9", f"{path}: {error}") from error


def unsealed(text: bytes, format: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(text)
    assert fields["format"] == format, "it has another format"
    assert blake3(_unmarked(text)).hexdigest() == fields["seal"], "it does not match its seal"
    return fields


def _unmarked(text: bytes) -> bytes:
    match = _SEAL.search(text)
    assert match, "it has no seal"
    return text[: match.start(1)] + b"0" * 64 + text[match.end(1) :]


def safetensors_damage(data: np.ndarray[Any, Any], digest: str) -> str:
    """What is wrong with a safetensors file whose digest a record has; empty if nothing is."""
    begin = 8 + int.from_bytes(data[:8].tobytes(), "little")
    header = data[:begin].tobytes()
    if blake3(_unmarked(header)).hexdigest() != digest:
        return "its header does not match the digest in the record"
    entries = json.loads(header[8:])
    digests = base64.b64decode(entries.pop("__metadata__")["standfast.chunks"].split(":", 2)[2])
    at = 0
    for name, entry in entries.items():
        start, end = (begin + offset for offset in entry["data_offsets"])
        for first in range(start, max(start + 1, end), CHUNK):
            if blake3(data[first : min(end, first + CHUNK)]).digest() != digests[at : at + 32]:
                return f"tensor {name!r} does not match its digest"
            at += 32
    return "" if at == len(digests) else "it has more digests than chunks"
