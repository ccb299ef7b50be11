"""`holdfast convert`: a file in another format, proven to hold the same."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from rich.text import Text

from holdfast.cli.output import console, print_json, shape_text, size_text
from holdfast.errors import printable
from holdfast.verbs.convert import Converted, convert


def convert_file(
    source: Path,
    target: Path,
    *,
    format: str | None,
    cast: bool,
    extras: bool,
    tensors_only: bool,
    as_json: bool,
) -> None:
    """Convert and print what was done."""
    done = convert(
        source, target, format=format, cast=cast, extras=extras, tensors_only=tensors_only
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
    line = Text("converted   ", style="green")
    line.append(
        f"{target}: {done.source} to {done.target}, {len(done.digests):,} tensors, "
        f"{size_text(done.nbytes)}, each digest equal on both sides",
        style="default",
    )
    console.print(line)
    if not done.verified:
        console.print("            the old file held no digests of its own to check", style="dim")
    for cast in done.casts:
        before, after = cast.before, cast.after
        shapes = ""
        if before.shape != after.shape:
            shapes = f", {shape_text(before.shape)} to {shape_text(after.shape)}"
        loss = "" if cast.exact else ", not exact"
        text = f"{cast.name}: {before.dtype} to {after.dtype}{shapes}{loss}"
        console.print(Text(f"cast        {printable(text)}", style="yellow"))
    for change in done.metadata:
        console.print(Text(f"metadata    {printable(change)}", style="yellow"))
