"""YAML for people that every reader takes for the same values, and most of it for JSON.

YAML's own scalars mean many things (`yes` is true, `1e-4` is text, `2026-01-01` is a day), so text
stands in double quotes, always, and floats have a point. What PyYAML would fold, refuse or take
for two characters is escaped; what JSON would write as two escapes is not.
"""

from __future__ import annotations

import json
import math
import re
from base64 import b64encode
from collections.abc import Iterator
from typing import Any, Final

_ESCAPED: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
"""Line breaks of YAML's own, and what it calls unprintable, besides what JSON escapes."""
_LONGEST_KEY: Final = 1000
"""Longer ones must be announced by a question mark; the bound is 1,024 characters."""
_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_WORDS: Final = frozenset("y n yes no on off true false null".split())
"""Names that are no text without quotes."""


def escaped(text: str) -> str:
    """JSON in which the characters are escaped that YAML does not take as they are."""
    if text.isascii() and "\x7f" not in text:
        return text
    return _ESCAPED.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def flow(value: Any) -> str:
    """A value on one line, which is JSON as well if JSON has the value and no key is very long.

    >>> flow({"lr": 1e-4, "on": ["yes", None]})
    '{"lr": 0.0001, "on": ["yes", null]}'
    """
    if isinstance(value, dict):
        return f"{{{', '.join(f'{_flow_key(k)}: {flow(v)}' for k, v in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    if isinstance(value, set):
        return f"!!set {{{', '.join(sorted(map(flow, value)))}}}"
    if isinstance(value, bytes):
        return f'!!binary "{b64encode(value).decode()}"'
    if isinstance(value, float):
        digits = repr(value)
        if not math.isfinite(value):
            return digits.replace("inf", ".inf").replace("nan", ".nan")
        # A float without a point is text to PyYAML.
        return digits if "." in digits else digits.replace("e", ".0e")
    return escaped(json.dumps(value, ensure_ascii=False))


def _flow_key(key: Any) -> str:
    text = flow(key)
    return text if len(text) < _LONGEST_KEY else f"? {text} "


def block(key: Any, value: Any, indent: str = "") -> Iterator[str]:
    """The lines of an entry of a mapping; mappings in it are indented, all else is on one line."""
    is_name = isinstance(key, str) and _NAME.fullmatch(key) and key.lower() not in _WORDS
    text = key if is_name else flow(key)
    head = f"{indent}{text}:" if len(text) < _LONGEST_KEY else f"{indent}? {text}\n{indent}:"
    if isinstance(value, dict) and value:
        yield f"{head}\n"
        for name, member in value.items():
            yield from block(name, member, indent + "  ")
    else:
        yield f"{head} {flow(value)}\n"
