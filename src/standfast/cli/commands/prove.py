"""`standfast prove`: whether a killed program ends with the same bytes as one that was not."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from standfast.display.output import print_json, say
from standfast.errors import ProofFailed, printable
from standfast.training.proof.comparison import Difference
from standfast.training.proof.proof import Proof, prove

_SHOWN: Final = 5
"""Of the checkpoints that one run has alone, so many are named."""


def prove_command(
    command: Sequence[str],
    *,
    kills: int,
    seed: int | None,
    keep: Path | None,
    as_json: bool,
) -> int:
    """Prove it, and say what came of it; returns the exit code."""
    try:
        proof = prove(
            command, kills=kills, seed=seed, folder=keep, say=_say_aside if as_json else _say_now
        )
    except ProofFailed as error:
        for line in error.output.splitlines():
            print(f"    {printable(line)}", file=sys.stderr)
        raise
    if as_json:
        print_json(_as_json(proof))
    else:
        _print(proof, keep)
    return 0 if proof.exact else 1


def _say_now(text: str) -> None:
    say((printable(text), "dim"))
    sys.stdout.flush()  # a pipe shall not have to wait for the end


def _say_aside(text: str) -> None:
    print(printable(text), file=sys.stderr)


def _print(proof: Proof, keep: Path | None) -> None:
    found = proof.compared
    for where, refs in (("without", found.only_whole), ("with", found.only_killed)):
        if refs:
            more = f" and {len(refs) - _SHOWN:,} more" if len(refs) > _SHOWN else ""
            say(f"saved {where} kills alone, and not compared: {', '.join(refs[:_SHOWN])}{more}")
    if not proof.exact and keep is None:
        say("--keep FOLDER keeps both stores, for `standfast diff`")
    first, *rest = str(proof).splitlines()
    say((printable(first), "bold green" if proof.exact else "bold red"))
    for line in rest:
        say(printable(line))


def _as_json(proof: Proof) -> dict[str, Any]:
    found = asdict(proof.compared)
    return {
        "exact": proof.exact,
        "command": proof.command,
        "seed": proof.seed,
        "seconds": proof.seconds,
        "wanted": proof.wanted,
        "kills": [asdict(kill) for kill in proof.kills],
        "in_saves": proof.in_saves,
        "unsteady": proof.is_unsteady,
        "first": _difference(proof.first),
        "first_tensor": _difference(proof.first_tensor),
        **found,
    }


def _difference(difference: Difference | None) -> dict[str, Any] | None:
    return asdict(difference) if difference else None
