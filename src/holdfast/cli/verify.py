"""`holdfast verify`: whether files are what was saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.text import Text

from holdfast.cli.output import (
    console,
    exit_code,
    message_of,
    print_json,
    progress_bar,
    size_text,
)
from holdfast.errors import DigestMismatch, HoldfastError, printable
from holdfast.verbs.verify import verify


def verify_files(paths: Sequence[Path], *, as_json: bool) -> int:
    """Verify all files, whatever is wrong with some; returns the exit code.

    Damage outweighs all else: with several files the code is 1 if any is damaged.
    """
    results = []
    codes = set()
    for path in paths:
        result, code = _verify_one(path)
        results.append(result)
        codes.add(code)
        if not as_json:
            _print(result)
    if as_json:
        print_json(results)
    return 1 if 1 in codes else max(codes)


def _verify_one(path: Path) -> tuple[dict[str, Any], int]:
    try:
        total = path.stat().st_size
    except (OSError, ValueError):
        total = 0  # what is wrong with it, verify will say
    try:
        with progress_bar(f"verifying {path.name}", total) as report:
            verified = verify(path, report)
    except HoldfastError as error:
        code = exit_code(error)
        return {
            "path": str(path),
            "status": "damaged" if code == 1 else "unverified",
            "error": type(error).__name__,
            "message": message_of(error),
            "tensors": list(error.tensors) if isinstance(error, DigestMismatch) else [],
        }, code
    return {
        "path": str(path),
        "status": "intact",
        "format": verified.format,
        "verified_tensors": verified.tensors,
        "verified_bytes": verified.nbytes,
    }, 0


def _print(result: dict[str, Any]) -> None:
    if result["status"] == "intact":
        line = Text("intact      ", style="green")
        line.append(
            f"{result['path']}: {result['verified_tensors']:,} tensors, "
            f"{size_text(result['verified_bytes'])}, every byte",
            style="default",
        )
    else:
        style = "bold red" if result["status"] == "damaged" else "yellow"
        line = Text(f"{result['status']:<12}", style=style)
        line.append(printable(result["message"]), style="default")
    console.print(line)
    if len(damaged := result.get("tensors", [])) > 1:
        for name in damaged:
            console.print(Text(f"            {printable(name)}"))
