"""A small store with two runs, and the command line run in this process or on a terminal."""

import fcntl
import io
import json
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

import standfast
from standfast.cli.app import run
from standfast.store.load.reading import read_record


class Done(NamedTuple):
    code: int | str | None
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def fails(self, code: int, *told: str) -> None:
        """Check that it printed nothing but an error, which tells all of this."""
        assert (self.code, self.out) == (code, ""), self
        for each in told:
            assert each in self.err, self


def call(*arguments: str | Path) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            run([str(argument) for argument in arguments])
        except SystemExit as left:
            return Done(left.code, out.getvalue(), err.getvalue())


ON_TERMINAL: Final = """
import json, sys
from standfast.cli.app import run
for line in sys.stdin:
    try:
        run(json.loads(line))
    except SystemExit:
        print(end=chr(0), flush=True)
"""


Terminal = Callable[..., str]
"""What a command shows on a terminal of so many columns."""


@contextmanager
def open_terminal(program: str = ON_TERMINAL) -> Iterator[Terminal]:
    """The command line on a terminal; Python starts once for all that is typed there."""
    ours, theirs = pty.openpty()
    inherited = {name: text for name, text in os.environ.items() if name != "COLUMNS"}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=theirs,
        stderr=theirs,
        env={**inherited, "TERM": "xterm-256color"},
        text=True,
    ) as process:
        os.close(theirs)
        assert process.stdin is not None
        typed = process.stdin

        def show(*arguments: str | Path, columns: int = 100) -> str:
            fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
            print(json.dumps([str(each) for each in arguments]), file=typed, flush=True)
            shown = b""
            while not shown.endswith(b"\0"):
                shown += os.read(ours, 65536)
            return shown[:-1].decode()

        yield show
    os.close(ours)


def weights(seed: int = 0) -> np.ndarray[Any, np.dtype[np.float32]]:
    """More than what is too small to be looked for in the store."""
    return np.random.default_rng(seed).random((128, 256), np.float32)


def state(step: int, seed: int = 0) -> dict[str, Any]:
    return {
        "model": {"weight": weights(seed), "bias": np.full(4, step, np.float32)},
        "optimizer": {"moment": weights(seed + 100), "lr": 0.5},
        "step": step,
        "key": b"\x00\x01",
        "order": (3, 1, 2),
    }


def make_store(path: Path) -> standfast.Store:
    """Run `gpt` with steps 100 to 300, of which 200 is the best; `bert` has its weights too."""
    store = standfast.Store(path)
    with store.run("gpt", hp={"lr": 0.1, "layers": 2}) as gpt:
        for step, seed in ((100, 0), (200, 1), (300, 1)):
            metrics = {"loss": 100 / step, "accuracy": 0.25}
            gpt.save(step, state(step, seed), metrics, epoch=step // 100, best=step == 200)
    with store.run("bert", hp={"lr": 0.2, "layers": 2}) as bert:
        bert.save(7, {"model": {"weight": weights(1)}, "note": "small"})
    return store


def at(store: standfast.Store) -> tuple[str, str]:
    """The option that names a store."""
    return "--store", str(Path(store.url).parent)


def copy_of(store: standfast.Store, path: Path) -> standfast.Store:
    """Another store with the same files, which a test may change."""
    shutil.copytree(Path(store.url).parent, path)
    return standfast.Store(path)


def data_files(store: standfast.Store, run: str) -> list[Path]:
    folder = Path(store.url, "models", store.find_run(run).hash)
    return sorted(folder.glob("*.safetensors"))


def record_of(store: standfast.Store, ref: str) -> Path:
    checkpoint = store.resolve(ref)
    run, step = checkpoint.head.run, checkpoint.step
    return Path(store.url, "models", run, f"{run}_step_{step:06d}.json")


def flip(path: Path, at: int) -> None:
    """Change one bit where the file lies, as a disk does."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def flip_in(store: standfast.Store, ref: str, tensor: str) -> Path:
    """Change one bit of a tensor where it is stored; returns the data file."""
    head = store.resolve(ref).head
    record = read_record(store.backend, head.run, head.step)
    extent = record.first_extents[list(record.names).index(tensor)]
    path = Path(store.url, "models", head.run, head.files[record.files[extent]].name)
    flip(path, int(record.starts[extent]))
    return path


def put(path: Path, data: bytes) -> None:
    """Put another file in the place of one, as people do."""
    new = path.with_name("new")
    new.write_bytes(data)
    new.rename(path)
