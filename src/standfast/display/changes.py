"""What differs between two runs, in words."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from standfast.display.output import count_text, cut, plain, shape_text
from standfast.store.query.changes import LayerChanges, Pair, RunChanges, SampleChanges
from standfast.tensorfile.diff import ABSENT, differences
from standfast.tensors import TensorSpec

_FEW: Final = 5
"""Of the samples of one kind, so many are named."""
UNCOUNTED: Final = " (not in the hash)"
"""What is said of a hyperparameter that is no part of a run's identity."""
_KINDS: Final = ("added", "removed", "discarded", "restored")
_SHORT: Final = 3
"""Of the hyperparameters, so many are named on one line."""


def value_text(value: Any, longest: int = 100) -> str:
    """A value on one line, however long it is."""
    if value is ABSENT:
        return "—"
    try:
        return cut(repr(value), longest)
    except (ValueError, RecursionError):  # thousands of digits, or of lists in each other
        return cut(repr(plain(value)), longest)


def changes_text(found: RunChanges) -> str:
    """What differs on one line: `lr 0.1 → 0.01; model: 3 layers; data: 12 samples`."""
    return "; ".join(_short_texts(found)) or "nothing changed"


def _short_texts(found: RunChanges) -> Iterator[str]:
    texts = list(_setting_texts(found))
    if texts:
        more = f" and {len(texts) - _SHORT:,} more" if len(texts) > _SHORT else ""
        yield ", ".join(texts[:_SHORT]) + more
    elif "hp" in found.identity and not found.is_by_name:
        yield "other hyperparameters"
    if "model" in found.identity:
        layers = found.layers
        yield f"model: {count_text(len(layers.layers), 'layer')}" if layers else "another model"
    if "data" in found.identity:
        samples = found.samples
        count = samples.count if samples else 0
        yield f"data: {count_text(count, 'sample')}" if count else "other data"


def _setting_texts(found: RunChanges) -> Iterator[str]:
    """Hyperparameters and the trial; those that do not count come last."""
    counted = {key: pair for key, pair in found.hyperparameters.items() if _counts(found, key)}
    if found.trial:
        counted["trial"] = found.trial
    yield from (f"{key} {_pair_text(pair, _short_text)}" for key, pair in counted.items())
    for key, pair in found.hyperparameters.items():
        if not _counts(found, key):
            yield f"{key} {_pair_text(pair, _short_text)}{UNCOUNTED}"


def _counts(found: RunChanges, key: str) -> bool:
    return key not in found.uncounted


def _short_text(value: Any) -> str:
    return value_text(value, 32)


def changes_json(found: RunChanges | None) -> dict[str, Any]:
    """What differs between two runs, for scripts."""
    if found is None:
        return {"identity": [], "hyperparameters": {}, "trial": None, "layers": {}, "samples": {}}
    return {
        "identity": found.identity,
        "hyperparameters": {
            key: {**_pair_json(pair), "counts": _counts(found, key)}
            for key, pair in found.hyperparameters.items()
        },
        "trial": _pair_json(found.trial) if found.trial else None,
        "layers": None if found.layers is None else _layers_json(found.layers),
        "samples": None if found.samples is None else _samples_json(found.samples),
    }


def _layers_json(found: LayerChanges) -> dict[str, Any]:
    return {
        "modules": {name: _pair_json(pair) for name, pair in found.modules.items()},
        "tensors": {name: _pair_json(pair) for name, pair in found.tensors.items()},
    }


def _samples_json(found: SampleChanges) -> dict[str, Any]:
    return {
        "counts": found.counts,
        **{kind: getattr(found, kind) for kind in _KINDS},
        "tags": {uid: _pair_json(pair) for uid, pair in found.tags.items()},
        "other": {key: _pair_json(pair) for key, pair in found.other.items()},
    }


def _pair_json(pair: Pair) -> dict[str, Any]:
    """Both values; one that is not there has no key."""
    return {
        side: asdict(value) if isinstance(value, TensorSpec) else value
        for side, value in zip(("before", "after"), pair, strict=True)
        if value is not ABSENT
    }


def hyperparameter_lines(found: RunChanges) -> Iterator[str]:
    """A line for each hyperparameter that differs."""
    for key, pair in found.hyperparameters.items():
        yield f"{key}: {_pair_text(pair)}{'' if _counts(found, key) else UNCOUNTED}"
    if found.trial:
        yield f"trial: {_pair_text(found.trial)}"
    is_described = found.hyperparameters or found.trial or found.is_by_name
    if "hp" in found.identity and not is_described:
        yield "not the same, and not described"


def metric_lines(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[str]:
    """A line for each metric that differs, to as many digits as it takes to see it."""
    for name, pair in differences(before, after).items():
        short = [f"{value:.6g}" if isinstance(value, float) else "" for value in pair]
        is_clear = all(short) and short[0] != short[1]
        yield f"{name}: {' → '.join(short) if is_clear else _pair_text(pair)}"


def layer_lines(found: LayerChanges | None) -> Iterator[str]:
    """A line for each module and tensor that differs."""
    if found is None:
        yield "not the same, and not described"
        return
    for name, pair in found.modules.items():
        yield f"{name or 'the model'}: {_pair_text(pair, _class_text)}"
    for name, pair in found.tensors.items():
        yield f"{name}: {_specs_text(pair)}"


def sample_lines(found: SampleChanges | None, every: bool) -> Iterator[str]:
    """A line for each kind of change, with the first samples, or all of them."""
    if found is None:
        yield "not the same, and not described"
        return
    for what in _KINDS:
        uids = getattr(found, what)
        if uids:
            yield f"{len(uids):,} {what}: {_few(uids, value_text, every)}"
    if found.tags:
        text = _few(list(found.tags.items()), _tags_text, every)
        yield f"{len(found.tags):,} with other tags: {text}"
    for key, pair in found.other.items():
        yield f"{key}: {_pair_text(pair)}"
    if found and not any((found.added, found.removed, found.tags)) and len(set(found.counts)) > 1:
        yield f"some stand there several times: {found.counts[0]:,} → {found.counts[1]:,}"


def _few(items: Sequence[Any], text: Callable[[Any], str], every: bool) -> str:
    shown = items if every else items[:_FEW]
    more = f", and {len(items) - len(shown):,} more" if len(shown) < len(items) else ""
    return ", ".join(map(text, shown)) + more


def _tags_text(entry: tuple[Any, tuple[Sequence[str], Sequence[str]]]) -> str:
    uid, (before, after) = entry
    gained = [f"+{tag}" for tag in after if tag not in before]
    lost = [f"-{tag}" for tag in before if tag not in after]
    return f"{value_text(uid)} ({' '.join(gained + lost)})"


def _pair_text(pair: Pair, text: Callable[[Any], str] = value_text) -> str:
    """What something was and is."""
    return f"{text(pair[0])} → {text(pair[1])}"


def _class_text(value: Any) -> str:
    """A class by its own name: `torch.nn.modules.linear:Linear` is Linear."""
    return value.rpartition(":")[2] if isinstance(value, str) and value else value_text(value)


def _specs_text(pair: Pair) -> str:
    """Two specs; the dtype stands once if it is one."""
    before, after = pair
    specs = isinstance(before, TensorSpec) and isinstance(after, TensorSpec)
    if specs and before.dtype == after.dtype:
        return f"{before.dtype} {shape_text(before.shape)} → {shape_text(after.shape)}"
    return _pair_text(pair, _spec_text)


def _spec_text(value: Any) -> str:
    """A tensor's dtype and shape, or the words for which other one it is."""
    if isinstance(value, TensorSpec):
        return f"{value.dtype} {shape_text(value.shape)}"
    return value if isinstance(value, str) else value_text(value)
