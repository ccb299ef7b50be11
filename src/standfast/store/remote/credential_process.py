"""A program of the user's that prints keys.

https://docs.aws.amazon.com/sdkref/latest/guide/feature-process-credentials.html
"""

from __future__ import annotations

import json
import shlex
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from typing import Final

from standfast.errors import BadOption
from standfast.store.remote.keys import Keys

_PATIENCE: Final = 60.0
"""How many seconds the program may take: some ask another server, or a person."""
_SOON: Final = timedelta(minutes=10)
"""Keys that expire within this time are asked for anew."""


class CredentialProcess:
    """Runs the `credential_process` of a profile, again whenever its keys are about to expire.

    Neither the command nor what it prints is ever shown: there may be secrets in both.
    """

    def __init__(self, command: str, profile: str) -> None:
        self._command = command
        self._profile = profile
        self._guard = threading.Lock()
        self._keys: Keys | None = None

    def __call__(self) -> Keys:
        """Keys that are valid now; raises BadOption if there are none to be had."""
        with self._guard:
            if self._keys is None or _is_old(self._keys):
                self._keys = self._parsed(self._run())
            return self._keys

    def _run(self) -> bytes:
        """What the program prints. It gets no shell."""
        problem = ""
        try:
            done = subprocess.run(
                shlex.split(self._command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                timeout=_PATIENCE,
                check=False,
            )
            if done.returncode == 0:
                return done.stdout
            problem = f"ended with status {done.returncode}"
        except subprocess.TimeoutExpired:
            problem = f"took longer than {_PATIENCE:.0f} s"
        except OSError as error:
            problem = f"cannot be run ({error.strerror or 'no reason given'})"
        except (ValueError, IndexError):
            problem = "is no command line"
        raise self._failed(problem)

    def _parsed(self, output: bytes) -> Keys:
        problem = "did not print the JSON that the AWS specification asks for"
        try:
            said = json.loads(output)
            if said["Version"] == 1:
                until = said.get("Expiration")
                return Keys(
                    _text(said["AccessKeyId"]),
                    _text(said["SecretAccessKey"]),
                    _text(said["SessionToken"]) if said.get("SessionToken") else None,
                    None if until is None else _time(until),
                )
        except (ValueError, KeyError, TypeError, AttributeError):
            pass  # with the output in it
        raise self._failed(problem)

    def _failed(self, problem: str) -> BadOption:
        return BadOption(
            f"the credential_process of profile {self._profile} {problem}; "
            "run the command yourself to see why"
        )


def _is_old(keys: Keys) -> bool:
    return keys.until is not None and keys.until - datetime.now(UTC) < _SOON


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise TypeError
    return value


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)
