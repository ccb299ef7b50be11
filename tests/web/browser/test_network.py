"""Nothing leaves the machine: the browser's own log of the network says so."""

import json
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

from tests.web import stores
from tests.web.browser.browser import ARGUMENTS, OBSERVED, chromium, visit


@pytest.mark.long  # all tests of pages watch requests; this one looks below the pages too
def test_no_page_opens_a_connection_to_anywhere_else(small, served, tmp_path, watch):
    url, log = served(small), tmp_path / "network.json"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=[*ARGUMENTS, f"--log-net-log={log}"]
        )
        context = browser.new_context()
        context.add_init_script(OBSERVED)
        watch.attach(context)
        page = context.new_page()
        page.watch = watch  # type: ignore[attr-defined]
        for name in ("run", "checkpoint", "compare", "mesh"):
            visit(page, f"{url}{stores.pages(small)[name]}")
        browser.close()
    connected, asked = _network(log)
    assert connected == {url.removeprefix("http://")}
    assert asked == {url}
    assert watch.problems == []


def _network(log: Path) -> tuple[set[str], set[str]]:
    """The addresses that were connected to, and the origins that pages asked.

    The browser has its own reasons to ask its makers; it was told to find no name but ours. To see
    whether there is IPv6, it makes a UDP socket and sends nothing: that is no connection.
    """
    found: dict[str, Any] = json.loads(log.read_text())
    kinds = {number: name for name, number in found["constants"]["logEventTypes"].items()}
    connected, asked, datagrams = set(), set(), {}
    for event in found["events"]:
        kind, said = kinds[event["type"]], event.get("params", {})
        if kind == "TCP_CONNECT_ATTEMPT" and "address" in said:
            connected.add(said["address"])
        elif kind == "UDP_CONNECT" and "address" in said:
            datagrams[event["source"]["id"]] = said["address"]
        elif kind == "UDP_BYTES_SENT":
            connected.add(datagrams.get(event["source"]["id"], str(said)))
        elif kind == "URL_REQUEST_START_JOB" and said.get("initiator", "").startswith("http"):
            asked.add("/".join(said["url"].split("/")[:3]))
    return connected, asked
