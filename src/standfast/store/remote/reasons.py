"""Why a request failed, for people, out of what obstore says: its own texts may have secrets."""

from __future__ import annotations

import errno
import re
from typing import Final

from standfast.errors import printable

_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
LATE: Final = re.compile(r"\bkind: Timeout\b|\btimed out\b")
_STATUS: Final = re.compile(r"status code: (\d{3}(?: [A-Z][A-Za-z]+)*)")
REASONS: Final = {
    "NoSuchBucket": "there is no such bucket",
    "InvalidBucketName": "there is no such bucket",
    "InvalidAccessKeyId": "the server does not know these credentials",
    "SignatureDoesNotMatch": "the server does not accept these credentials",
    "ExpiredToken": "the credentials have expired",
    "AccessDenied": "these credentials do not allow it",
    "RequestTimeTooSkewed": "the clock of this machine is wrong",
    "SlowDown": "the server is overloaded",
    "EntityTooLarge": "it is larger than the server takes",
}
_NOBODY: Final = "there are no credentials: set AWS_ACCESS_KEY_ID or AWS_PROFILE"
_METADATA: Final = ("169.254.", "/latest/api/token", "/metadata/instance", "/latest/meta-data")
"""Who has no credentials asks for them at the machine, which is no server of a cloud."""
BROKEN: Final = "the connection broke"
_SIGNS: Final = (
    ("body error", BROKEN),
    ("dns error", "its host cannot be found"),
    ("error trying to connect", "its server cannot be reached"),
    ("error sending request", "its server cannot be reached"),
    ("Connection refused", "its server cannot be reached"),
    ("credentials", _NOBODY),
    ("builder error", "it is no URL of a server"),
)


def reason(text: str) -> str:
    """Why something failed, out of a text of obstore's: a code, a status or a known phrase."""
    text, _, details = text.partition("Debug source:")
    if any(sign in text for sign in _METADATA):
        return _NOBODY
    if code := _CODE.search(text):
        return f"{REASONS[code[1]]} ({code[1]})" if code[1] in REASONS else code[1]
    if status := _STATUS.search(text):
        return f"the server says {status[1]}"
    if LATE.search(details) or LATE.search(text):
        return "no answer in time; if the connection is slow, set STANDFAST_TIMEOUT to more seconds"
    for sign, meaning in _SIGNS:
        if sign in text:
            return meaning
    return printable(re.sub(r"https?://\S+", "…", text).strip())[:200] or "obstore says no more"


def number_of(error: Exception) -> int:
    """The number that the operating system has for what failed."""
    name = type(error).__name__
    text = str(error)
    if name in ("PermissionDeniedError", "UnauthenticatedError") or " 403 " in text[:2000]:
        return errno.EACCES
    if "<Code>NotImplemented</Code>" in text or " 501 " in text[:2000]:
        return errno.EOPNOTSUPP
    # Not EIO: that would say that a disk has lost it, and an older checkpoint would be loaded.
    return errno.ETIMEDOUT if LATE.search(text) else errno.ECONNABORTED
