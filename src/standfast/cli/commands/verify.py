"""`standfast verify`: whether files and checkpoints are what was saved."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from standfast.cli.stores import is_file, is_package, resolve
from standfast.display.output import (
    count_text,
    exit_code,
    message_of,
    print_json,
    progress_bar,
    say,
    size_text,
)
from standfast.display.trees import live_blocks
from standfast.errors import (
    DigestMismatch,
    FellBack,
    NothingToVerify,
    StandfastError,
    printable,
    shortened,
)
from standfast.schedule import duration
from standfast.store import Checkpoint, Store
from standfast.store.maintenance.logical import Logical, differences, logical
from standfast.store.maintenance.verify import Verification, verify_oldest, verify_store
from standfast.tensorfile.open import TensorFile
from standfast.tensorfile.verify import verify

_SHOWN: Final = 10
"""So many differences of two states are printed."""


def verify_each(arguments: Sequence[str], *, store: str | None, as_json: bool) -> int:
    """Verify all files and checkpoints, whatever is wrong with some; returns the exit code.

    Damage outweighs all else: with several the code is 1 if any is damaged.
    """
    return tell_each((_verify_one(each, store) for each in arguments), _print, as_json=as_json)


def tell_each(
    found: Iterable[tuple[dict[str, Any], int]],
    show: Callable[[dict[str, Any]], None],
    *,
    as_json: bool,
) -> int:
    """Print each result as it comes, or all as JSON; returns the exit code of them together."""
    results, codes = [], set()
    for result, code in found:
        results.append(result)
        codes.add(code)
        if not as_json:
            show(result)
    if as_json:
        print_json(results)
    return 1 if 1 in codes else max(codes)


def _verify_one(argument: str, store: str | None) -> tuple[dict[str, Any], int]:
    in_folder = store is None and is_package(argument)
    kind = "path" if in_folder or is_file(argument) else "ref"
    try:
        if in_folder:
            verified = _verify_package(argument)
        else:
            verified = _verify_file(argument) if kind == "path" else _verify_ref(argument, store)
    except StandfastError as error:
        code = exit_code(error)
        return {
            kind: argument,
            "status": "damaged" if code == 1 else "unverified",
            "error": type(error).__name__,
            "message": message_of(error),
            "tensors": list(error.tensors) if isinstance(error, DigestMismatch) else [],
        }, code
    except FellBack as warning:
        # Another one is intact; the one that was asked for is not.
        message = str(warning)
        found = {kind: argument, "status": "damaged", "error": "FellBack", "message": message}
        return {**found, "tensors": []}, 1
    return {kind: argument, "status": "intact", **verified}, 0


def _verify_file(path: str) -> dict[str, Any]:
    try:
        total = Path(path).stat().st_size
    except (OSError, ValueError):
        total = 0  # what is wrong with it, verify will say
    try:
        with progress_bar(f"verifying {Path(path).name}", total) as report:
            verified = verify(path, report)
    except NothingToVerify as error:
        with TensorFile(path) as file:
            if live_blocks(file) is not None:
                raise NothingToVerify(f"{error}; its tree is sound") from error
        raise
    with TensorFile(path) as file:
        tree = _tree_json(file)
    return {
        "format": verified.format,
        "verified_tensors": verified.tensors,
        "verified_bytes": verified.nbytes,
        **tree,
    }


def _verify_package(path: str) -> dict[str, Any]:
    from standfast.packages.remote.places import entries_of, folder_at
    from standfast.packages.verify import verify_package

    entries = entries_of(folder_at(path)).values()
    total = sum(entry.stat().st_size for entry in entries if entry.is_file())
    with progress_bar(f"verifying {Path(path).name}", total) as report:
        verified = verify_package(path, report)
    return {
        "format": "package",
        "verified_files": verified.files,
        "verified_tensors": verified.tensors,
        "verified_bytes": verified.nbytes,
        "not_covered": list(verified.uncovered),
    }


def _tree_json(what: TensorFile | Checkpoint) -> dict[str, Any]:
    """Of a sound tree, how many of its blocks live; raises a DamagedFile if it is not sound."""
    blocks = live_blocks(what)
    return {} if blocks is None else {"live_blocks": blocks}


def _verify_ref(ref: str, store: str | None) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FellBack)
        checkpoint = resolve(ref, store)
    with progress_bar(f"verifying {ref}", checkpoint.nbytes) as report:
        verified = checkpoint.verify(report)
    return {
        "checkpoint": checkpoint.ref,
        "verified_tensors": verified.tensors,
        "verified_bytes": verified.nbytes,
        **_tree_json(checkpoint),
    }


class States:
    """The states of checkpoints for `verify --logical`, each compared with the first of them."""

    def __init__(self) -> None:
        self._first: tuple[str, Logical] | None = None

    def verified(self, ref: str, checkpoint: Checkpoint) -> dict[str, Any]:
        """The digests of a state, and whether it is the first one again; all is read for it."""
        for file in checkpoint.record.head.files:
            checkpoint.check_header(file)
        with progress_bar(f"verifying {ref}", checkpoint.nbytes) as report:
            state = logical(checkpoint, report)
        found: dict[str, Any] = {
            "status": "intact",
            "checkpoint": checkpoint.ref,
            "logical": state.digest,
            "own": state.own,
            "own_ranks": state.ranks,
            "verified_tensors": len(checkpoint.tensors),
            "verified_bytes": checkpoint.nbytes,
            "tensors": {name: each.digest for name, each in state.tensors.items()},
        }
        if self._first is None:
            self._first = ref, state
            return found
        return {**found, "compared": _compared(*self._first, state)}


def _compared(ref: str, first: Logical, state: Logical) -> dict[str, Any]:
    return {
        "with": ref,
        "same": first.digest == state.digest,
        "differences": [each._asdict() for each in differences(first, state)],
        "same_own": first.own == state.own,
        "own_ranks": [first.ranks, state.ranks],
    }


def print_state(result: dict[str, Any]) -> None:
    """What `States` has found."""
    tensors, size = count_text(result["verified_tensors"], "tensor"), result["verified_bytes"]
    what = printable(f"{result['ref']} ({result['checkpoint']})")
    say(("intact      ", "green"), f"{what}: {tensors}, {size_text(size)}, every byte")
    say(("logical     ", "bold"), result["logical"])
    if result["own"]:
        ranks = count_text(result["own_ranks"], "rank")
        say(("own         ", "bold"), f"{result['own']}, of {ranks}")
    if "compared" in result:
        _print_compared(result["ref"], result["compared"])


def _print_compared(ref: str, found: dict[str, Any]) -> None:
    both = printable(f"{found['with']} and {ref}")
    if found["same"]:
        say(("same        ", "green"), f"{both} hold the same state")
    else:
        say(("different   ", "yellow"), f"{both} hold different states:")
    for each in found["differences"][:_SHOWN]:
        what = shortened(each["what"])
        say(printable(f"            {shortened(each['name'])}: {what}"))
    if len(found["differences"]) > _SHOWN:
        say(f"            and {len(found['differences']) - _SHOWN:,} more; --json lists them all")
    if not found["same_own"]:
        one, other = (count_text(ranks, "rank") for ranks in found["own_ranks"])
        say(f"            what is the ranks' own differs: {one} / {other}")


def _print(result: dict[str, Any]) -> None:
    if result["status"] == "intact":
        what = result.get("path") or f"{result['ref']} ({result['checkpoint']})"
        blocks = result.get("live_blocks")
        sound = "" if blocks is None else f"; a sound tree of {count_text(blocks, 'live block')}"
        files = result.get("verified_files")
        in_files = "" if files is None else f"{count_text(files, 'file')}, "
        say(
            ("intact      ", "green"),
            f"{what}: {in_files}{count_text(result['verified_tensors'], 'tensor')}, "
            f"{size_text(result['verified_bytes'])}, every byte{sound}",
        )
        if result.get("not_covered"):
            say(f"            not covered: {printable(', '.join(result['not_covered']))}")
        return
    style = "bold red" if result["status"] == "damaged" else "yellow"
    say((f"{result['status']:<12}", style), printable(result["message"]))
    if len(result["tensors"]) > 1:
        for name in result["tensors"]:
            say(f"            {printable(name)}")


def verify_all(store: Store, *, oldest: bool, limit: str | None, as_json: bool) -> int:
    """Verify a store, or the checkpoints verified longest ago; returns the exit code."""
    seconds = None if limit is None else duration(limit).total_seconds()
    store.index.refresh()
    total = sum(
        file.used for run in store.index.runs() for file in store.index.files(run.run).values()
    )
    with progress_bar("verifying", total) as report:
        found = verify_oldest(store, seconds, report) if oldest else verify_store(store, report)
    if not found.intact and not found.code:
        raise NothingToVerify(f"{store.url} has no checkpoint yet: there is nothing to verify")
    if as_json:
        print_json(_as_json(found))
    else:
        _print_all(found)
    return found.code


def _as_json(found: Verification) -> dict[str, Any]:
    return {
        "intact": found.intact,
        "damaged": [{"what": what, **damage._asdict()} for what, damage in found.damaged.items()],
        "unverified": found.unverified,
        "verified_bytes": found.nbytes,
    }


def _print_all(found: Verification) -> None:
    for what, damage in found.damaged.items():
        say(("damaged     ", "bold red"), printable(named(what, damage.message)))
        if len(damage.tensors) > 1:
            for name in damage.tensors:
                say(f"            {printable(name)}")
    for what, why in found.unverified.items():
        say(("unverified  ", "yellow"), printable(named(what, why)))
    if found.intact:
        say(
            ("intact      ", "green"),
            f"{count_text(len(found.intact), 'checkpoint')}, every byte: {size_text(found.nbytes)} "
            "were read",
        )


def named(what: str, message: str) -> str:
    """What is wrong with something, with its name once."""
    return message if what in message else f"{what}: {message}"
