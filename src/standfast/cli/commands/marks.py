"""`standfast tag`, `note` and `rename`: what people call checkpoints and write about them."""

from __future__ import annotations

from standfast.display.output import print_json, say
from standfast.errors import printable
from standfast.store import Checkpoint, Store


def tag_checkpoint(checkpoint: Checkpoint, name: str, *, as_json: bool) -> None:
    """Give a checkpoint a tag."""
    checkpoint.tag(name)
    if as_json:
        print_json({"ref": checkpoint.ref, "tag": name})
    else:
        say(("tagged      ", "green"), printable(f"{checkpoint.ref}: {name}"))


def untag_checkpoint(store: Store, name: str, *, as_json: bool) -> None:
    """Take a tag away from whatever bears it."""
    store.untag(name)
    if as_json:
        print_json({"deleted": name})
    else:
        say(("untagged    ", "green"), printable(name))


def note_checkpoint(checkpoint: Checkpoint, text: str, *, as_json: bool) -> None:
    """Write something about a checkpoint."""
    checkpoint.note(text)
    if as_json:
        print_json({"ref": checkpoint.ref, "note": text})
    else:
        say(("noted       ", "green"), checkpoint.ref)


def rename_run(store: Store, ref: str, name: str, *, as_json: bool) -> None:
    """Give a run another name."""
    run = store.find_run(ref)
    before = run.name
    run.rename(name)
    if as_json:
        print_json({"run": run.hash, "before": before, "name": name})
    else:
        say(("renamed     ", "green"), printable(f"{run.hash}: {before or '—'} → {name}"))
