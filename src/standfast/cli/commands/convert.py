"""`standfast convert`: a file in another format, proven to hold the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from standfast.display.output import print_json, say, shape_text, size_text
from standfast.errors import printable
from standfast.tensorfile.convert import Converted, convert


def convert_file(
    source: Path,
    target: Path,
    *,
    format: str | None,
    cast: bool,
    extras: bool,
    tensors_only: bool,
    names: Sequence[str] | None,
    replace: bool,
    as_json: bool,
) -> None:
    """Convert and print what was done."""
    done = convert(
        source,
        target,
        format=format,
        cast=cast,
        extras=extras,
        tensors_only=tensors_only,
        names=names,
        replace=replace,
    )
    if as_json:
        print_json({"source": str(source), "target": str(target), **_as_json(done)})
    else:
        _print(target, done)


def _as_json(done: Converted) -> dict[str, object]:
    return {
        "from": done.source,
        "to": done.target,
        "bytes": done.nbytes,
        "source_verified": done.verified,
        "digests": dict(done.digests),
        "casts": [asdict(cast) for cast in done.casts],
        "metadata": list(done.metadata),
    }


def _print(target: Path, done: Converted) -> None:
    say(
        ("converted   ", "green"),
        f"{target}: {done.source} to {done.target}, {len(done.digests):,} tensors, "
        f"{size_text(done.nbytes)}, each digest equal on both sides",
    )
    if not done.verified:
        say(("            the old file held no digests of its own to check", "dim"))
    for cast in done.casts:
        before, after = cast.before, cast.after
        shapes = ""
        if before.shape != after.shape:
            shapes = f", {shape_text(before.shape)} to {shape_text(after.shape)}"
        loss = "" if cast.exact else ", not exact"
        text = f"{cast.name}: {before.dtype} to {after.dtype}{shapes}{loss}"
        say((f"cast        {printable(text)}", "yellow"))
    for change in done.metadata:
        say((f"metadata    {printable(change)}", "yellow"))
