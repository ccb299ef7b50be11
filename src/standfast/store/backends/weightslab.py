"""Roots that weightslab wrote, read as stores: nothing in them is ours to change.

An experiment is a run and each of its `.pt` files a checkpoint. Run files and records are made when
they are read. The tensors are read where they are; those that are not contiguous are copied.
"""

from __future__ import annotations

import errno
import os
import zlib
from pathlib import Path
from typing import Any, Final, NoReturn

import numpy as np

from standfast.errors import MissingFile, WriteFailed
from standfast.files.digests import CHUNK, digest
from standfast.files.input.file import SourceFile
from standfast.files.input.memory import SourceMemory
from standfast.identity import recorded
from standfast.store.backends.backend import UNTRUSTED, Entry, Version, checked
from standfast.store.backends.memory import MemoryBackend
from standfast.store.save.planning import part_keys, shape_of
from standfast.store.schema import names
from standfast.store.schema.hyperparameters import exact_form
from standfast.store.schema.record import MAX_HEAD, DataFile, Head, Record, encode, encode_head
from standfast.store.schema.run_file import RunFile, local_time
from standfast.store.schema.run_file import encode as encode_run
from standfast.store.tree import tree
from standfast.store.tree.aliases import Aliases
from standfast.store.v3.companions import encode_config, encode_data_state
from standfast.store.v3.foreign import read_only
from standfast.store.v3.torch_names import SUFFIX
from standfast.tensorfile.importers.values import read_outline, torch_adapter
from standfast.tensorfile.importers.weightslab import Experiment, Root, read_root
from standfast.tensorfile.open import TensorFile
from standfast.tensors import source_of

_REST: Final = "rest"
"""The label of a data file, only in memory, with the tensors that are not contiguous."""


class ForeignBackend(MemoryBackend):
    """A root of weightslab as the backend of a store that can only be read."""

    links = False

    def __init__(self, checkpoints: Path) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._root_now: Root | None = None
        self._records: dict[str, tuple[int, bytes]] = {}
        """The record that was made last, by its name, for the file of this stamp."""
        self._rest: dict[str, bytes] = {}
        self.url = str(checkpoints)

    @property
    def root(self) -> Root:
        """What is in it, as of the last look."""
        if self._root_now is None:
            self._root_now = read_root(self._checkpoints.parent)
        return self._root_now

    def path(self, name: str) -> Path:  # type: ignore[override]
        """Where a file is, or would be in a store."""
        file = self._weights(name)
        if file is not None:
            return file[0].checkpoints[file[1]]
        run = names.run_in(name)
        if run in self.root.experiments and name == names.architecture_file(run, ".pkl"):
            files = self.root.experiments[run].checkpoints.values()
            folder = next((file.parent for file in files), self._checkpoints / name).name
            return self._checkpoints / names.MODELS / folder / f"{folder}_architecture.pkl"
        return self._checkpoints / checked(name)

    def exists(self, name: str) -> bool:
        """Whether there is a file, or a folder with something in it, of this name."""
        is_folder = name == names.MODELS or name in map(names.run_folder, self.root.experiments)
        return is_folder or self.size(name) is not None

    def size(self, name: str) -> int | None:
        """A file's size."""
        try:
            file = self.open(name)
        except MissingFile:
            return None
        file.close()
        return file.size

    def read(self, name: str, limit: int | None = None) -> bytes:
        """A file, or the first `limit` bytes of it; of a record then no more than its head."""
        found = self._parsed(name)
        if found is not None and found[0] == "record" and limit is not None and limit <= MAX_HEAD:
            return _Checkpoint(self, *found[1:]).head_line()
        file = self.open(name)
        try:
            return file.read(0, file.size if limit is None else min(limit, file.size))
        finally:
            file.close()

    def open(self, name: str) -> SourceFile | SourceMemory:  # type: ignore[override]
        """A file to be read in parts: one of weightslab's, or one that is made now."""
        if self._weights(name) is not None and name not in self._rest:
            return SourceFile(self.path(name))
        content = self._rest.get(name) or self._made(name)
        if content is None:
            raise MissingFile(errno.ENOENT, f"{self.url} has no {name}")
        return SourceMemory(name, content)

    def list(self, folder: str, suffix: str = "") -> list[Entry]:
        """The files of a run, which is all there is."""
        experiment = self.root.experiments.get(folder.rpartition("/")[2])
        if experiment is None or folder != names.run_folder(experiment.hash):
            return []
        run = experiment.hash
        found = {names.run_file(run): 1}
        for step in experiment.checkpoints:
            found[names.record_file(run, step)] = _Checkpoint(self, experiment, step).stamp
        listed = [Entry(name.rpartition("/")[2], stamp) for name, stamp in found.items()]
        return [entry for entry in listed if entry.name.endswith(suffix)]

    def folders(self, folder: str) -> dict[str, Version]:
        """The runs, after another look at what there is."""
        self._root_now = None
        found = self.root.experiments if folder == names.MODELS else ()
        return dict.fromkeys(found, (UNTRUSTED,))

    def version(self, folder: str) -> Version | None:
        """Nothing that could be relied on: another program may write into the root."""
        return (UNTRUSTED,) if self.exists(folder) else None

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise WriteFailed(errno.EROFS, read_only(self._checkpoints.parent))

    new = create = replace = delete = link = lock = _refuse

    def _parsed(self, name: str) -> tuple[str, Experiment, int] | None:
        """What a name in the folder of a run is for, and the experiment and step."""
        run = names.run_in(checked(name))
        named = names.parse(name.rpartition("/")[2], run) if run else None
        experiment = self.root.experiments.get(named.run) if named else None
        if named is None or experiment is None:
            return None
        is_known = named.kind == "run" or named.step in experiment.checkpoints
        return (named.kind, experiment, named.step) if is_known else None

    def _weights(self, name: str) -> tuple[Experiment, int] | None:
        found = self._parsed(name)
        return found[1:] if found is not None and found[0] in ("data", "name") else None

    def _made(self, name: str) -> bytes | None:
        """A file of ours that is not there."""
        found = self._parsed(name)
        if found is not None and found[0] == "run":
            return encode_run(run_file(found[1]))
        if found is not None and found[0] == "record":
            return self._record(name, *found[1:])
        for experiment in self.root.experiments.values():
            if name == names.config_file(experiment.hash):
                return encode_config(run_file(experiment))
            if name == names.data_state_file(experiment.hash):
                data = experiment.data_state()
                return None if data is None else encode_data_state(data)
        return None

    def _record(self, name: str, experiment: Experiment, step: int) -> bytes:
        checkpoint = _Checkpoint(self, experiment, step)
        if self._records.get(name, (None,))[0] != checkpoint.stamp:
            record, self._rest = checkpoint.record()
            self._records = {name: (checkpoint.stamp, encode(record))}
        return self._records[name][1]

    def sequence(self, experiment: Experiment, step: int) -> int:
        """The number of a checkpoint in the history of the root."""
        every = list(self.root.experiments.values())[::-1]
        if self.root.latest is not None:
            latest = self.root.experiments[self.root.latest]
            every = [*(each for each in every if each is not latest), latest]
        before = sum(len(each.checkpoints) for each in every[: every.index(experiment)])
        return before + [*experiment.checkpoints].index(step) + 1


def run_file(experiment: Experiment) -> RunFile:
    """What an experiment is, as a run; raises DamagedFile if its configuration cannot be read."""
    run, config = experiment.hash, experiment.config()
    return RunFile(
        run=run,
        identity=_identity(run),
        name=experiment.name,
        trial=None,
        created=local_time(experiment.created) or "",
        parent=None,
        hyperparameters=recorded(config),
        environment={},
        exact=exact_form(config),
        last_used=local_time(experiment.last_used or experiment.created),
    )


class _Checkpoint:
    """One file of weights as a checkpoint."""

    def __init__(self, backend: ForeignBackend, experiment: Experiment, step: int) -> None:
        self._experiment, self._step = experiment, step
        self._path = experiment.checkpoints[step]
        self.status = os.stat(self._path)
        self._sequence = backend.sequence(experiment, step)
        self._token = f"{zlib.crc32(repr(self.stamp).encode()):08x}"

    @property
    def stamp(self) -> int:
        """Another one for another file."""
        return self.status.st_mtime_ns ^ self.status.st_ino

    def data_file(self, label: str = "state") -> str:
        """The name of a data file."""
        return names.data_file(self._experiment.hash, self._step, self._token, label, SUFFIX)

    def head_line(self) -> bytes:
        """The first line of the record; no tensor is read."""
        return encode_head(self._record(None).head) + b"\n"

    def record(self) -> tuple[Record, dict[str, bytes]]:
        """The record, for which all tensors are read, and what is in its second data file."""
        rest = bytearray()
        record = self._record(rest)
        name = f"{names.run_folder(self._experiment.hash)}/{self.data_file(_REST)}"
        return record, {name: bytes(rest)} if rest else {}

    def _record(self, rest: bytearray | None) -> Record:
        """The record, without digests if there is nowhere to put the rest."""
        with TensorFile(self._path, tensors_only=True) as file:
            state = read_outline(file)
            node, leaves = tree.flatten(state)
            sources = [source_of(leaf.value) for leaf in leaves]
            shape = shape_of(
                leaves, sources, Aliases([*range(len(leaves))], {}, []), part_keys(state, leaves)
            )
            files, starts, digests = [], [], bytearray()
            plain_bytes = rest_bytes = 0
            for item in shape.order:
                name = ".".join(map(str, leaves[item].path))
                start, nbytes = file.place(name), sources[item].spec.nbytes
                files.append(start is None)
                starts.append(rest_bytes if start is None else start)
                plain_bytes += nbytes if start is not None else 0
                rest_bytes += nbytes if start is None else 0
                if rest is not None:
                    data = np.ascontiguousarray(file[name]).reshape(-1).view(np.uint8)
                    chunks = range(0, max(nbytes, 1), CHUNK)
                    digests += b"".join(digest(data[at : at + CHUNK]) for at in chunks)
                    if start is None:
                        rest += data.tobytes()
        tensors = shape.tensors
        kind = "numpy" if torch_adapter() is None else "torch"
        size = self.status.st_size
        held = min(plain_bytes, size)
        data_files = [DataFile(self.data_file(), size, "", held, held)]
        if rest_bytes:
            data_files.append(
                DataFile(self.data_file(_REST), rest_bytes, "", rest_bytes, rest_bytes)
            )
        sizes = [each.nbytes for each in tensors]
        stored = [n for n, each in enumerate(sizes) if each]
        time = state.get("timestamp") if isinstance(state, dict) else None
        head = Head(
            run=self._experiment.hash,
            identity=_identity(self._experiment.hash),
            step=self._step,
            epoch=None,
            sequence=self._sequence,
            token=self._token,
            time=local_time(time) or local_time(self._experiment.file_of(self._step)[1]) or "",
            best=False,
            metrics={},
            parent=None,
            software={"weightslab": "unknown"},
            tensors=len(tensors),
            nbytes=sum(sizes),
            parts=shape.parts,
            files=data_files,
        )
        return Record(
            head,
            tree.encode(node, shape.numbers),
            [each.name for each in tensors],
            [kind] * len(tensors),
            [each.spec for each in tensors],
            np.array([bool(each) for each in sizes], np.int64),
            np.array([files[n] for n in stored], np.int64),
            np.array([starts[n] for n in stored], np.int64),
            np.array([sizes[n] for n in stored], np.int64),
            bytes(digests),
            {},
        )


def _identity(run: str) -> dict[str, str | None]:
    parts = (run[:8], run[8:16], run[16:])
    return {
        part: None if text == "0" * 8 else text
        for part, text in zip(("hp", "model", "data"), parts, strict=True)
    }
