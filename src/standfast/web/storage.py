"""Where the bytes of a store are, and what would become of them."""

from __future__ import annotations

from collections import Counter
from typing import Any

from standfast.cli.commands.du import usage_json
from standfast.cli.commands.gc import plan_json
from standfast.store import Store
from standfast.store.retention.verdicts import Verdict, judged, stored
from standfast.store.save.planning import SHARED


def storage_json(store: Store) -> dict[str, Any]:
    """What runs and parts take, what `gc` would free, and why checkpoints stay."""
    usage = usage_json(store)
    return {
        "usage": usage,
        "parts": _parts(store),
        "gc": plan_json(store),
        "kept": _reasons(store),
        "trash": usage["trash"],
    }


def verdicts_of(store: Store, run: str) -> dict[int, Verdict]:
    """What becomes of each checkpoint of a run, by step, with the index as it is."""
    return {each.step: each for each in judged(store, run, stored(store, run))}


def kept_json(verdict: Verdict | None) -> dict[str, Any] | None:
    """What becomes of a checkpoint; None if nobody knows."""
    if verdict is None:
        return None
    return {"keep": verdict.keep, "why": verdict.why, "protected": verdict.protected}


def _parts(store: Store) -> list[dict[str, Any]]:
    """What the data files of each run take, by the part that is in their names, most first."""
    sizes: Counter[tuple[str, str]] = Counter()
    files: Counter[tuple[str, str]] = Counter()
    for listed in store.index.runs():
        for file in store.index.files(listed.run).values():
            key = (listed.run, _part(file.name))
            sizes[key] += file.size
            files[key] += 1
    return [
        {"run": run, "part": part, "bytes": nbytes, "files": files[run, part]}
        for (run, part), nbytes in sizes.most_common()
    ]


def _part(name: str) -> str:
    """The part in the name of a data file: `{run}_step_000100.{token}.{part}.safetensors`."""
    part = name.split(".")[-2].partition("-rank")[0]
    return "several parts" if part == SHARED else part


def _reasons(store: Store) -> dict[str, int]:
    """How many checkpoints stay for each reason, most first."""
    counts: Counter[str] = Counter()
    for listed in store.index.runs():
        for verdict in judged(store, listed.run, stored(store, listed.run)):
            if verdict.keep:
                counts.update(verdict.why)
    return dict(counts.most_common())
