"""References to checkpoints of a store, where Lightning wants a path: `standfast://store#run@step`."""

from __future__ import annotations

import os
from typing import Any, Final

from standfast.errors import RefNotFound, StateMismatch
from standfast.lightning.library import CheckpointIO
from standfast.lightning.values import again
from standfast.store import Checkpoint, Store

SCHEME: Final = "standfast://"


def reference(checkpoint: Checkpoint, store: Store) -> str:
    """What stands for a checkpoint wherever Lightning takes a path."""
    return f"{SCHEME}{folder_of(store)}#{checkpoint.ref}"


def folder_of(store: Store) -> str:
    """What `Store` takes for this one."""
    return store.place or store.url


def is_reference(path: Any) -> bool:
    """Whether this is a reference, and no path of a file."""
    return isinstance(path, str | os.PathLike) and os.fspath(path).startswith(SCHEME)


def load_checkpoint(path: str | os.PathLike[str], device: Any = None) -> dict[str, Any]:
    """The checkpoint of Lightning that a reference leads to, every byte of it verified.

    >>> state = load_checkpoint("standfast://experiments#gpt@best")
    >>> model.load_state_dict(state["state_dict"])
    """
    place, _, ref = os.fspath(path).removeprefix(SCHEME).rpartition("#")
    if not place or not ref:
        raise RefNotFound(f"{path} is no reference such as {SCHEME}experiments#gpt@best")
    store = Store(place)
    try:
        return loaded(store.resolve(ref), device)
    finally:
        store.close()


def loaded(checkpoint: Checkpoint, device: Any = None) -> dict[str, Any]:
    """The checkpoint of Lightning that is saved here. Not mapped: it is changed and kept."""
    state = again(checkpoint.state(mapped=False, device=device))
    if not isinstance(state, dict) or "state_dict" not in state:
        raise StateMismatch(f"{checkpoint.ref} holds no checkpoint of Lightning")
    return state


class ReferenceIO(CheckpointIO):
    """Loads references, and leaves all else to the plugin that there was."""

    def __init__(self, inner: CheckpointIO) -> None:
        self._inner = inner

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """As the plugin does."""
        self._inner.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, *args: Any, **options: Any) -> dict[str, Any]:
        """What a reference leads to; a path is the plugin's."""
        if is_reference(path):
            return load_checkpoint(path)
        return self._inner.load_checkpoint(path, *args, **options)

    def remove_checkpoint(self, path: Any) -> None:
        """As the plugin does."""
        self._inner.remove_checkpoint(path)

    def teardown(self) -> None:
        """As the plugin does."""
        self._inner.teardown()
