"""`standfast verify --logical`: one digest for a state, however it is divided."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

from standfast.amr.inspect.logical import digest_of
from standfast.amr.inspect.trees import SavedState, Source, opened
from standfast.cli.commands.verify import States, print_state, tell_each
from standfast.cli.stores import is_file, resolve
from standfast.display.output import (
    count_text,
    exit_code,
    message_of,
    progress_bar,
    say,
)
from standfast.display.trees import is_tree
from standfast.errors import FellBack, StandfastError, printable
from standfast.store import Checkpoint


def verify_logical(arguments: Sequence[str], *, store: str | None, as_json: bool) -> int:
    """Verify states and print the digest of each; returns the exit code.

    All files together are one state, those of its ranks; each checkpoint is one by itself, and
    if it is no snapshot of a simulation, it is compared with the first such.
    """
    files = [argument for argument in arguments if is_file(argument)]
    given = ([files] if files else []) + [[ref] for ref in arguments if ref not in files]
    states = States()
    found = (_verify_state(names, store, states) for names in given)
    return tell_each(found, _print, as_json=as_json)


def _verify_state(
    names: list[str], store: str | None, states: States
) -> tuple[dict[str, Any], int]:
    kind = "paths" if is_file(names[0]) else "ref"
    what: dict[str, Any] = {kind: names if kind == "paths" else names[0]}
    try:
        sources: list[Source] = [*names]
        if kind == "ref":
            checkpoint = _resolved(names[0], store)
            if not is_tree(checkpoint):
                return {**what, **states.verified(names[0], checkpoint)}, 0
            sources = [checkpoint]
        with opened(*sources) as state:
            return {**what, **_verified(state)}, 0
    except StandfastError as error:
        code = exit_code(error)
        found = {"error": type(error).__name__, "message": message_of(error)}
        return {**what, "status": "damaged" if code == 1 else "unverified", **found}, code
    except FellBack as warning:
        # Another one is intact; the one that was asked for is not.
        found = {"error": "FellBack", "message": str(warning)}
        return {**what, "status": "damaged", **found}, 1


def _resolved(ref: str, store: str | None) -> Checkpoint:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FellBack)
        return resolve(ref, store)


def _verified(state: SavedState) -> dict[str, Any]:
    total = sum(
        each.count * each.nbytes
        for tree in state.trees
        for each in (tree.fields, tree.links)
        if each
    )
    with progress_bar("verifying", total) as report:
        digest = digest_of(state, report)
        state.check_rest()
    return {
        "status": "intact" if state.has_digests else "sound",
        "state": state.label,
        "logical": digest,
        "ranks": len(state.trees),
        "live_blocks": sum(int(tree.is_live.sum()) for tree in state.trees),
    }


def _print(result: dict[str, Any]) -> None:
    if "logical" not in result:
        style = "bold red" if result["status"] == "damaged" else "yellow"
        say((f"{result['status']:<12}", style), printable(result["message"]))
        return
    if "live_blocks" not in result:
        print_state(result)
        return
    blocks = count_text(result["live_blocks"], "live block")
    ranks = f" of {count_text(result['ranks'], 'rank')}" if result["ranks"] > 1 else ""
    what = printable(f"{result.get('ref') or result['state']}: {blocks}{ranks}")
    if result["status"] == "intact":
        say(("intact      ", "green"), f"{what}, every byte")
    else:
        say(("sound       ", "yellow"), f"{what}; without digests to verify its bytes against")
    say(("logical     ", "bold"), result["logical"])
