"""Where a package came from: the libraries, the program's revision, the checkpoint."""

from __future__ import annotations

import os
import platform
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any, Final

LIBRARIES: Final = ("standfast", "numpy", "safetensors", "tokenizers", "torch", "transformers")

_GIT: Final = (
    "git",
    # Neither may run a program that the repository names.
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.hooksPath=/dev/null",
    "--no-optional-locks",
    "status",
    "--porcelain=v2",
    "--branch",
    "--untracked-files=no",
    "--ignore-submodules=dirty",
)
_PATIENCE: Final = 5.0
"""Seconds that git may take: a folder on a disk that does not answer must not hold up a save."""
_ELSEWHERE: Final = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_COMMON_DIR")
"""Variables that a git hook is given, and that name another repository than the folder's."""
_REVISION: Final = re.compile(r"^# branch\.oid ([0-9a-f]{40,64})$", re.MULTILINE)


def provenance(checkpoint: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the manifest says of this program, and of the checkpoint if there was one."""
    found: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "libraries": library_versions(),
    }
    if git := git_state(program_folder()):
        found["git"] = git
    if checkpoint is not None:
        found["checkpoint"] = dict(checkpoint)
    return found


def library_versions() -> dict[str, str]:
    """The versions of those of our libraries that are installed; none is imported for it."""
    versions = {}
    for name in LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    return versions


def program_folder() -> Path:
    """The folder of the running program; the current one if it has no file, or is our own."""
    script = Path(sys.argv[0] if sys.argv else "")
    if script.name == "standfast" or not script.is_file():
        return Path()
    return Path(os.path.realpath(script)).parent


def git_state(folder: Path) -> dict[str, Any] | None:
    """The git revision of a folder, and whether files of it were changed; None if there is none."""
    status = _git_status(folder)
    revision = _REVISION.search(status)
    if revision is None:
        return None
    is_dirty = any(not line.startswith("#") for line in status.splitlines())
    return {"revision": revision[1], "dirty": is_dirty}


def _git_status(folder: Path) -> str:
    """What git says; nothing if there is no git, or none that answers."""
    environment = {key: value for key, value in os.environ.items() if key not in _ELSEWHERE}
    try:
        process = subprocess.Popen(
            _GIT,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError:
        return ""
    try:
        output, _ = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        _end(process)
        return ""
    return output.decode(errors="replace") if process.returncode == 0 else ""


def _end(process: subprocess.Popen[bytes]) -> None:
    """End git with all that it has started, without waiting for what cannot be ended."""
    with suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        process.wait(1)
    if process.stdout is not None:
        process.stdout.close()
