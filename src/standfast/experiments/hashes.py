"""The hash of an experiment: its three parts, and which of them changed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sized
from typing import Any, Final

from standfast.errors import BadOption, shortened
from standfast.identity import Identity, identify, is_data_state

COMPONENTS: Final = ("hp", "model", "data")
MISSING: Final = "00000000"
"""The part of a hash for what was not given."""
_LENGTH: Final = len(MISSING)
_SAMPLES: Final = ("uids", "discarded", "tags")
_HASH: Final = re.compile("[0-9a-z]{24}")
_PART: Final = re.compile("[0-9a-z]{8}")


def split_hash(exp_hash: str) -> dict[str, str]:
    """The three parts of a hash, of 24 characters or as HP_MODEL_DATA; raises BadOption."""
    plain = exp_hash.replace("_", "") if isinstance(exp_hash, str) else ""
    if not _HASH.fullmatch(plain):
        raise BadOption(
            "a hash has 24 characters, 8 each of hyperparameters, model and data, of 0-9 and a-z: "
            f"{shortened(str(exp_hash))!r} is none"
        )
    return {part: plain[i * _LENGTH : (i + 1) * _LENGTH] for i, part in enumerate(COMPONENTS)}


def data_of(data: Any) -> Any:
    """What a data state stands for; None if it is empty.

    The file of a run holds data of any other form under `data`, in an empty data state.
    """
    if not is_data_state(data) or not data.keys() <= {*_SAMPLES, "data"}:
        return data
    given = [data[key] for key in _SAMPLES if data.get(key) is not None]
    is_empty = all(isinstance(samples, Sized) and not len(samples) for samples in given)
    return data.get("data") if is_empty else data


def digests_of(identity: Identity | None) -> dict[str, str | None]:
    """The full digests of the three parts; None for what was not given."""
    return {part: getattr(identity, part, None) for part in COMPONENTS}


class ExperimentHashGenerator:
    """Makes the hashes of experiments, and remembers the last one.

    >>> generator = ExperimentHashGenerator()
    >>> generator.generate_hash(config={"lr": 0.1})
    '9f3059d50000000000000000'
    """

    def __init__(self) -> None:
        self._known: dict[str, str | None] | None = None
        """Of each part the full digest, or what a restored hash has of it; `MISSING` if none."""

    def generate_hash(self, model: Any = None, config: Any = None, data_state: Any = None) -> str:
        """The 24 characters of an experiment; what is not given counts as missing."""
        digests = _digests(model, config, data_state)
        self._known = {part: digest or MISSING for part, digest in digests.items()}
        return self._combined(self._known)

    def has_changed(
        self, model: Any = None, config: Any = None, data_state: Any = None, force: bool = False
    ) -> tuple[bool, set[str]]:
        """Whether any of these is another than in the last hash, and which of them.

        What is not given is not looked at; `force` counts all that is given as changed.
        """
        given = {
            part: digest
            for part, digest in _digests(model, config, data_state).items()
            if digest is not None
        }
        known = self._known or {}
        changed = {part for part in given if force or not _is_same(given[part], known.get(part))}
        return bool(changed), changed

    def compare_hashes(self, hash1: str, hash2: str) -> set[str]:
        """Which of 'hp', 'model' and 'data' differ between two hashes; raises BadOption."""
        first, second = split_hash(hash1), split_hash(hash2)
        return {part for part in COMPONENTS if first[part] != second[part]}

    def get_component_hashes(self) -> dict[str, str | None]:
        """The parts of the last hash, and all of it as 'combined'; None before the first."""
        known = self._known or dict.fromkeys(COMPONENTS)
        parts = {part: digest and digest[:_LENGTH] for part, digest in known.items()}
        return {**parts, "combined": self.get_last_hash()}

    def get_last_hash(self) -> str | None:
        """The hash that was made or restored last; None if one of its parts is not known."""
        return self._combined(self._known) if self._known and all(self._known.values()) else None

    def restore_hashes(
        self,
        component_hashes: Mapping[str, str | None] | None = None,
        combined_hash: str | None = None,
    ) -> None:
        """Take these for the last hash, as `get_component_hashes` gave them; raises BadOption.

        A part that is not given is taken out of the combined one.
        """
        given = dict(component_hashes or {})
        combined = given.pop("combined", None) or combined_hash
        known: dict[str, str | None] = dict.fromkeys(COMPONENTS)
        known |= split_hash(combined) if combined else {}
        for part, value in given.items():
            if part not in known or not _PART.fullmatch(value or MISSING):
                raise BadOption(
                    "component_hashes has 8 characters each for 'hp', 'model' and 'data': "
                    f"{shortened(repr(part))} with {shortened(repr(value))} is none of them"
                )
            known[part] = value or known[part]
        self._known = known

    @staticmethod
    def _combined(known: Mapping[str, str | None]) -> str:
        return "".join(str(known[part])[:_LENGTH] for part in COMPONENTS)


def _digests(model: Any, config: Any, data_state: Any) -> dict[str, str | None]:
    data_state = data_of(data_state)
    if model is None and config is None and data_state is None:
        return digests_of(None)
    return digests_of(identify(hp=config, model=model, data=data_state))


def _is_same(digest: str, known: str | None) -> bool:
    """Whether a part is the known one, of which a restored hash has the beginning only."""
    return known is not None and digest.startswith(known)
