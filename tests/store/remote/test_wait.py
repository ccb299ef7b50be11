"""Who waits for a server is told, once."""

from __future__ import annotations

import time

import pytest

from standfast.cli import app
from standfast.store.remote import wait


def test_a_silent_server_is_told_of_once_and_a_fast_one_never(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(wait, "tell_of_silence", app._tell_of_silence)
    monkeypatch.setenv("STANDFAST_TIMEOUT", "90")
    assert wait.heard(lambda: "at once", "s3://fast") == "at once"
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(wait, "_SILENCE", 0.1)
    for _ in range(2):
        assert wait.heard(lambda: time.sleep(0.3), "s3://slow") is None
    assert capsys.readouterr().err == (
        "standfast: s3://slow does not answer; it is asked again for up to 90 seconds "
        "($STANDFAST_TIMEOUT)\n"
    )
