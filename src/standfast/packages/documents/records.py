"""Records of a package: `dataset.json`, `generation_info.json`, and what they are made of.

A record is a JSON object with known fields; all other fields are kept as they are."""

from __future__ import annotations

import math
import os
import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from datetime import datetime
from typing import Any, ClassVar, Final, Self, get_args, get_origin, get_type_hints

import numpy as np

from standfast.errors import BadField, BadOption, shortened
from standfast.packages.documents import json_text
from standfast.packages.documents.manifest import library_versions

LEFT_OUT: Final = ...
"""What stands for a field that a file does not have."""
_WORDS: Final[dict[type, str]] = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "a whole number",
    list: "a list",
    str: "a text",
}


@dataclass(frozen=True)
class Record:
    """The base of what is read from a JSON object and written as one."""

    ABSENT: ClassVar[Mapping[str, Callable[[], Any]]] = {}
    """Makes fields that a file lacks or has as null, if they are not as in a new record."""

    others: Mapping[str, Any] = field(default_factory=dict, kw_only=True)
    """All that the file says besides; it is written again as it was."""
    as_written: Mapping[str, Any] = field(
        default_factory=dict, kw_only=True, repr=False, compare=False
    )
    """Null, LEFT_OUT or 3.0 where the file has it so: it is again, until the field is changed."""

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if isinstance(value, np.generic):  # a scalar of NumPy is the number that it holds
                value = value.item()
                object.__setattr__(self, name, value)
            if type(value) not in kind.classes or kind.goes_deeper:
                kind.check(name, value)

    @classmethod
    def of_dict(cls, given: Mapping[str, Any]) -> Self:
        """Made of a JSON object; raises BadField, which names the field."""
        kinds = _kinds(cls)
        own, as_written = {}, {}
        for name, kind in kinds.items():
            value = given.get(name, LEFT_OUT)
            own[name] = made = kind.read(name, value)
            if value is None or (made is not None and (value is LEFT_OUT or kind.is_whole(value))):
                as_written[name] = value
        others = {name: value for name, value in given.items() if name not in kinds}
        return cls(**own, others=others, as_written=as_written)

    def as_dict(self) -> dict[str, Any]:
        """The JSON object, plain values under string keys.

        Fields without a value are left out. What was read and not changed is as it was.
        """
        own = {}
        for name, kind in _kinds(type(self)).items():
            value = getattr(self, name)
            if name in self.as_written and value == kind.read(name, self.as_written[name]):
                own[name] = self.as_written[name]
            else:
                own[name] = LEFT_OUT if value is None else _plain(value)
        return {**self.others, **{k: each for k, each in own.items() if each is not LEFT_OUT}}

    def changed(self, **changes: Any) -> Self:
        """The same with other values."""
        return replace(self, **changes)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it as a JSON file, durably; until then the old file stands."""
        json_text.write(path, self.as_dict())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a JSON file; raises BadField or another DamagedFile, which names file and field."""
        return json_text.named(path, lambda: cls.of_dict(json_text.read_object(path)))


def now() -> str:
    """This moment as records have it: ISO 8601, to the second, with the time zone."""
    return datetime.now().astimezone().isoformat(timespec="seconds")


@dataclass(frozen=True)
class _Kind:
    """What the value of a field must be."""

    classes: tuple[type, ...]
    expected: str
    record: type[Record] | None
    """What an object in the file, or each member of a list, becomes."""
    goes_deeper: bool
    """Whether more than its class is to be checked."""
    absent: Callable[[], Any] | None
    """Makes the value where a file has none; None if it must have one."""

    def check(self, name: str, value: Any) -> None:
        """Raise BadField unless the value is one of this kind."""
        if type(value) not in self.classes:
            raise BadField(f"{name} is {shortened(repr(value))}: it must be {self.expected}")
        if type(value) is float and not math.isfinite(value):
            raise BadField(f"{name} is {value}, which JSON does not have: leave it out")
        if type(value) is list and self.record is not None:
            for at, member in enumerate(value):
                if type(member) is not self.record:
                    expected = f"a {self.record.__name__}"
                    raise BadField(f"{name}[{at}] is {shortened(repr(member))}: not {expected}")

    def is_whole(self, value: Any) -> bool:
        """Whether it is a whole number, but with a point, as some programs write all numbers."""
        if int not in self.classes or float in self.classes:
            return False
        return type(value) is float and value.is_integer()

    def read(self, name: str, value: Any) -> Any:
        """The value for what a file has, its objects made into records."""
        if (value is None or value is LEFT_OUT) and self.absent is not None:
            return self.absent()
        if value is LEFT_OUT:
            raise BadField(f"{name} is missing: it must be {self.expected}")
        if self.is_whole(value):
            return int(value)
        if self.record is None:
            return value
        if list not in self.classes:
            return _made(self.record, name, value)
        if type(value) is not list:
            raise BadField(f"{name} is {shortened(repr(value))}: it must be a list")
        return [_made(self.record, name, each, at) for at, each in enumerate(value)]


def _made(record: type[Record], name: str, value: Any, at: int | None = None) -> Record:
    try:
        if type(value) is dict:
            return record.of_dict(value)
        problem = f" is {shortened(repr(value))}: it must be an object"
    except BadField as error:
        problem = f".{error}"
    raise BadField(f"{name}{problem}" if at is None else f"{name}[{at}]{problem}")


_KINDS: Final[dict[type, dict[str, _Kind]]] = {}
"""Of each class of records, found once: there may be a million of one."""


def _kinds(record: type[Record]) -> dict[str, _Kind]:
    """What the known fields are, by their names."""
    if record not in _KINDS:
        hints = get_type_hints(record)
        _KINDS[record] = {
            each.name: _kind(hints[each.name], record.ABSENT.get(each.name) or _default(each))
            for each in fields(record)
            if each.name not in ("others", "as_written")
        }
    return _KINDS[record]


def _default(known: Field[Any]) -> Callable[[], Any] | None:
    """Makes what the field is in a new record; None if it must be given."""
    if known.default_factory is not MISSING:
        return known.default_factory
    return None if known.default is MISSING else lambda: known.default


def _kind(hint: Any, absent: Callable[[], Any] | None) -> _Kind:
    options = get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    plain = [get_origin(each) or each for each in options if each is not types.NoneType]
    classes = {*plain, *({int} if float in plain else ()), *({types.NoneType} & {*options})}
    inner = [each for option in options for each in (option, *get_args(option))]
    records = [each for each in inner if isinstance(each, type) and issubclass(each, Record)]
    expected = " or ".join(_WORDS.get(each, "an object") for each in plain)
    return _Kind(
        tuple(classes),
        expected,
        record=records[0] if records else None,
        goes_deeper=not classes.isdisjoint({float, list}),
        absent=absent,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.as_dict()
    return [_plain(each) for each in value] if type(value) is list else value


@dataclass(frozen=True)
class DatasetSample(Record):
    """One text that a model was trained on."""

    text: str
    prompt: str | None = None
    """What it was generated from."""
    tokens: int | None = None


@dataclass(frozen=True)
class DatasetMetadata(Record):
    """How large a data set is, and how it was made."""

    ABSENT: ClassVar = {"creation_date": str}

    total_samples: int = 0
    total_tokens: int | None = None
    creation_date: str = field(default_factory=now)
    generation_method: str = ""
    ollama_used: bool = False


@dataclass(frozen=True)
class DatasetInfo(Record):
    """What `dataset.json` says: the samples, and what is known of them all.

    >>> DatasetInfo.of_texts(texts, generation_method="collected").save("dataset.json")
    """

    metadata: DatasetMetadata
    samples: list[DatasetSample]

    @classmethod
    def of_texts(
        cls,
        texts: Iterable[str],
        count_tokens: Callable[[str], int] | None = None,
        **metadata: Any,
    ) -> Self:
        """A data set of these texts; other arguments are fields of its metadata.

        Without `count_tokens` the number of tokens is unknown.

        >>> DatasetInfo.of_texts(texts, lambda text: len(tokenizer.encode(text)))
        """
        if isinstance(texts, str):
            raise BadOption("texts is a single text: give a list of them, [text] for this one")
        counts = [(text, count_tokens(text) if count_tokens else None) for text in texts]
        samples = [DatasetSample(text, tokens=tokens) for text, tokens in counts]
        total = sum(int(tokens or 0) for _, tokens in counts) if count_tokens else None
        totals = {"total_samples": len(samples), "total_tokens": total}
        return cls(DatasetMetadata(**totals | metadata), samples)

    def text(self) -> str:
        """What `dataset.txt` holds: the texts, with an empty line between them."""
        return "\n\n".join(sample.text for sample in self.samples) + "\n"


@dataclass(frozen=True)
class TrainingParams(Record):
    """How a model was trained, and what came of it; what is not known is None."""

    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = None
    block_size: int | None = None
    """The tokens of one sequence."""
    learning_rate: float | None = None
    warmup_steps: int | None = None
    weight_decay: float | None = None
    dropout: float | None = None
    optimizer: str | None = None
    seed: int | None = None
    final_loss: float | None = None
    validation_loss: float | None = None
    seconds: float | None = None
    """The time that it took."""


@dataclass(frozen=True)
class DataStats(Record):
    """How much a model was trained on; what is not known is None."""

    total_samples: int | None = None
    total_tokens: int | None = None
    total_characters: int | None = None
    training_tokens: int | None = None
    validation_tokens: int | None = None
    vocab_size: int | None = None


def _versions() -> dict[str, str | None]:
    return {**library_versions()}


@dataclass(frozen=True)
class GenerationInfo(Record):
    """What `generation_info.json` says.

    >>> GenerationInfo("recipes", "small", TrainingParams(epochs=3)).save("generation_info.json")
    """

    ABSENT: ClassVar = {"creation_date": str, "libraries": dict}

    prompt: str = ""
    """What the model was asked to be."""
    model_size: str = ""
    """A label: small, medium, large, 12M."""
    training_params: TrainingParams = field(default_factory=TrainingParams)
    data_stats: DataStats = field(default_factory=DataStats)
    creation_date: str = field(default_factory=now)
    libraries: dict[str, str | None] = field(default_factory=_versions)
    """The version of each; None in a file that does not know it."""
    quantization: dict[str, Any] | None = None
    """How far quantized weights are from those that they were made of, and the sizes."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, version in self.libraries.items():
            if type(version) not in (str, types.NoneType):
                raise BadField(
                    f"libraries[{shortened(name)!r}] is {shortened(repr(version))}: "
                    "it must be a text"
                )
