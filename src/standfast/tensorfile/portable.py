"""Metadata on its way to another format: what that can hold, and what becomes of the rest."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from standfast.errors import RefusedMetadata
from standfast.formats import Format
from standfast.formats.metadata import check_metadata


def portable(
    metadata: Mapping[str, Any], format: Format, *, cast: bool, extras: bool
) -> tuple[dict[str, Any], list[str]]:
    """The metadata as the format can hold it, and a sentence for each value that had to change.

    NumPy's scalars become numbers and what is not finite becomes null. What else JSON does not
    have is refused, as is what the format cannot hold without our extras; with `cast` it is
    written as text, or left out.
    """
    kept: dict[str, Any] = {}
    changes = []
    for key, value in metadata.items():
        plain = _plain(value)
        if _is_json(key, plain):
            if plain is not value:
                changes.append(f"{key}: {_shown(value)} is now {_shown(plain)}")
            kept[key] = plain
        elif cast:
            changes.append(f"{key}: a {type(value).__name__}, left out")
        else:
            raise RefusedMetadata(
                f"metadata[{key!r}] is a {type(value).__name__}, which {format.NAME} does not "
                "hold; cast=True leaves it out"
            )
    if cast and not extras:
        kept = _bare(kept, format, changes)
    return kept, changes


def _bare(metadata: dict[str, Any], format: Format, changes: list[str]) -> dict[str, Any]:
    kept = {}
    for key, value in metadata.items():
        if format.BARE_KEYS is not None and key not in format.BARE_KEYS:
            changes.append(f"{key}: left out")
        elif format.STRINGS_ONLY and not isinstance(value, str):
            kept[key] = json.dumps(value, ensure_ascii=False)
            changes.append(f"{key}: {_shown(value)} is now text")
        else:
            kept[key] = value
    return kept


def _plain(value: Any) -> Any:
    if isinstance(value, np.bool_ | np.integer | np.floating):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return [] if type(value) is tuple and not value else value


def _is_json(key: str, value: Any) -> bool:
    try:
        check_metadata({key: value})
    except RefusedMetadata:
        return False
    return True


def _shown(value: Any) -> str:
    return f"{value!r:.80}"
