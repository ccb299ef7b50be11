"""YAML as plain values: bounded, and without anything that refers, repeats or constructs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import yaml

from standfast.errors import BadField, DuplicateKey, LimitExceeded, printable, shortened

MAX_BYTES: Final = 64 << 20
"""Of text; the tags of a million samples take about half."""
MAX_NODES: Final = 8_000_000
MAX_DEPTH: Final = 100
MAX_NUMBER: Final = 4300
"""Characters; of more digits Python makes no integer."""

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBERS: Final = yaml.constructor.SafeConstructor()
_RESOLVERS: Final = yaml.SafeLoader.yaml_implicit_resolvers
_PREFIX: Final = "tag:yaml.org,2002:"
_NO_KEY: Final = object()
_PLAIN: Final = "expected plain values, as a safe writer of YAML writes them"


def read_yaml(text: bytes, what: str) -> Any:
    """The one document in a YAML text; `what` names the file in messages.

    It gives dicts, lists, texts, numbers, booleans and None; a date is its text. Aliases and
    tags, with which a few bytes become gigabytes or objects, are refused, as is a key that stands
    twice. Raises BadField, DuplicateKey or LimitExceeded.

    >>> read_yaml(b"{lr: 0.1, layers: [1, 2]}", "config.yaml")
    {'lr': 0.1, 'layers': [1, 2]}
    """
    if len(text) > MAX_BYTES:
        raise LimitExceeded(f"{what}: {len(text):,} bytes of YAML, over {MAX_BYTES:,}")
    builder = _Builder(what)
    try:
        # The events come one by one: what is refused is refused before more is parsed.
        for event in yaml.parse(text.decode(), Loader=_Loader):
            builder.take(event)
    except UnicodeDecodeError as error:
        raise BadField(f"{what}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except yaml.YAMLError as error:
        reason = shortened(printable(" ".join(str(error).split())))
        raise BadField(f"{what}: not the YAML it should be ({reason})") from error
    return builder.value


class _Builder:
    """Puts a value together out of a parser's events."""

    def __init__(self, what: str) -> None:
        self.value: Any = None
        self._what = what
        self._documents = 0
        self._nodes = 0
        self._open: list[Any] = []
        """The containers that are not complete, the innermost last."""
        self._keys: list[Any] = []
        """The key of each, that the next value in it is for."""

    def take(self, event: yaml.Event) -> None:
        """Take the next event."""
        if isinstance(event, yaml.ScalarEvent):
            self._add(self._scalar(event))
        elif isinstance(event, yaml.CollectionStartEvent):
            self._refuse_tag(event)
            self._begin({} if isinstance(event, yaml.MappingStartEvent) else [])
        elif isinstance(event, yaml.CollectionEndEvent):
            self._open.pop()
            self._keys.pop()
        elif isinstance(event, yaml.AliasEvent):
            raise BadField(f"{self._what}: it has an alias (*{_shown(event.anchor)}): {_PLAIN}")
        elif isinstance(event, yaml.DocumentStartEvent):
            self._documents += 1
            if self._documents > 1:
                raise BadField(f"{self._what}: expected one YAML document, found several")

    def _begin(self, container: Any) -> None:
        if len(self._open) == MAX_DEPTH:
            raise LimitExceeded(f"{self._what}: it nests deeper than {MAX_DEPTH} levels")
        if self._open and type(self._open[-1]) is dict and self._keys[-1] is _NO_KEY:
            raise BadField(f"{self._what}: a key that is a list or a mapping: {_PLAIN}")
        self._add(container)
        self._open.append(container)
        self._keys.append(_NO_KEY)

    def _add(self, value: Any) -> None:
        self._nodes += 1
        if self._nodes > MAX_NODES:
            raise LimitExceeded(f"{self._what}: it has more than {MAX_NODES:,} values")
        if not self._open:
            self.value = value
            return
        container = self._open[-1]
        if type(container) is list:
            container.append(value)
        elif self._keys[-1] is _NO_KEY:
            if type(value) is int and value.bit_length() > 64:  # many may share one hash
                raise LimitExceeded(f"{self._what}: a key is an integer of more than 64 bits")
            if value in container:
                raise DuplicateKey(f"{self._what}: the key {_shown(value)} stands twice")
            self._keys[-1] = value
        else:
            container[self._keys[-1]] = value
            self._keys[-1] = _NO_KEY

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        self._refuse_tag(event)
        if not event.implicit[0]:
            return event.value  # in quotes
        try:
            return _plain_scalar(event.value) if len(event.value) < 64 else _resolved(event.value)
        except (ValueError, OverflowError) as error:
            raise BadField(f"{self._what}: {_shown(event.value)}: {error}") from error

    def _refuse_tag(self, event: yaml.NodeEvent) -> None:
        tag = getattr(event, "tag", None)
        if tag is not None:
            raise BadField(f"{self._what}: it has the tag {_shown(tag)}: {_PLAIN}")


def _shown(value: Any) -> str:
    return repr(shortened(printable(str(value))))


@lru_cache(maxsize=4096)
def _plain_scalar(text: str) -> Any:
    """A scalar without quotes; the same few stand in a file again and again."""
    return _resolved(text)


def _resolved(text: str) -> Any:
    """What a scalar without quotes stands for, by the rules of YAML 1.1 that PyYAML has."""
    kind = next(_kinds(text), None)
    if kind == "null":
        return None
    if kind == "merge":
        raise ValueError("merging is refused: " + _PLAIN)
    if kind not in ("bool", "int", "float"):
        return text
    if len(text) > MAX_NUMBER:
        raise ValueError(f"a number of {len(text):,} characters")
    node = yaml.ScalarNode(_PREFIX + kind, text)
    return getattr(_NUMBERS, f"construct_yaml_{kind}")(node)


def _kinds(text: str) -> Iterator[str]:
    for tag, pattern in _RESOLVERS.get(text[:1], ()):
        if pattern.match(text):
            yield tag.removeprefix(_PREFIX)
