"""The words of messages are pinned in one file, so that tests assert what messages are about."""

import runpy

from tests import ROOT


def test_every_message_is_in_the_list():
    listing = runpy.run_path(str(ROOT / "tools" / "messages.py"))["listing"]()
    kept = (ROOT / "docs" / "messages.txt").read_text()
    new = sorted(set(listing.splitlines()) ^ set(kept.splitlines()))
    assert listing == kept, f"read these, then `make messages`: {new}"
