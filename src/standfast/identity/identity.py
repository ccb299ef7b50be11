"""The identity of a run: one digest each for hyperparameters, model and data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from blake3 import blake3

from standfast.errors import BadLabel
from standfast.identity import encodings
from standfast.identity.canonical import Canonical
from standfast.identity.models import canonical_model
from standfast.identity.samples import canonical_data

IGNORED: Final = frozenset({"root_log_dir", "is_training", "pause_at_step", "experiment_name"})
"""Hyperparameters that never count: they say where and whether a run goes on, not what it is."""

_MISSING: Final = "00000000"
_SHORT: Final = len(_MISSING)


@dataclass(frozen=True, slots=True)
class Identity:
    """The full digests of a run's parts, 64 hexadecimal digits each; None for one not given."""

    hp: str | None
    model: str | None
    data: str | None

    @property
    def hash(self) -> str:
        """The short name, 24 characters: 8 each of HP, MODEL and DATA; zeros for a missing one."""
        return "".join(part[:_SHORT] if part else _MISSING for part in self._parts())

    def _parts(self) -> tuple[str | None, str | None, str | None]:
        return self.hp, self.model, self.data


def identify(
    *,
    name: str | None = None,
    hp: Any = None,
    model: Any = None,
    data: Any = None,
    trial: Any = None,
    volatile: Collection[str] = (),
) -> Identity:
    """The identity of a run with these parts; raises UnstableValue, or BadLabel if none is given.

    `trial` tells equal settings apart; where none is given, the name does. A name alone stands for
    the settings. Hyperparameters named in `volatile` (`max_steps`, `trainer.max_steps`) do not
    count.

    >>> identify(hp={"lr": 0.1, "root_log_dir": "/a"}) == identify(hp={"lr": 0.1})
    True
    >>> identify(name="seed1", hp={"lr": 0.1}) == identify(hp={"lr": 0.1}, trial="seed1")
    True
    """
    named = hp is None and model is None and data is None
    if named and name is None:
        raise BadLabel("a run needs a name, or hp, model or data, and none of them was given")
    return Identity(
        hp=_settings_digest(hp, trial, volatile, name)
        if named
        else _settings_digest(hp, name if trial is None else trial, volatile),
        model=None if model is None else _digest({"model": canonical_model(model)}),
        data=None if data is None else _digest({"data": canonical_data(data)}),
    )


def is_trial(
    digests: Mapping[str, str | None],
    trial: Any,
    like: Identity,
    hp: Any,
    volatile: Collection[str] = (),
) -> bool:
    """Whether a run of this trial, with these full digests, has the settings of an identity."""
    return (
        digests.get("model") == like.model
        and digests.get("data") == like.data
        and digests.get("hp") == _settings_digest(hp, trial, volatile)
    )


def _settings_digest(
    hp: Any, trial: Any, volatile: Collection[str], name: str | None = None
) -> str | None:
    settings: dict[str, bytes] = {}
    if hp is not None:
        names = [volatile] if isinstance(volatile, str) else volatile
        settings["hp"] = Canonical("hp", skipped=IGNORED.union(names)).encode(hp)
    if name is not None:
        settings["name"] = Canonical("name").encode(name)
    if trial is not None:
        settings["trial"] = Canonical("trial").encode(trial)
    return _digest(settings) if settings else None


def _digest(entries: dict[str, bytes]) -> str:
    """The digest of a mapping whose values are encoded already."""
    pairs = [(encodings.text(key), value) for key, value in entries.items()]
    return blake3(encodings.mapping(pairs)).hexdigest()
