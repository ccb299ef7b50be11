"""Nothing leaves the machine: the browser's own log of the network says so."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect, sync_playwright

from standfast import Store
from tests.web import stores
from tests.web.browser.browser import ARGUMENTS, OBSERVED, Watch, chromium, visit
from tests.web.conftest import See, Serve

EVERY = ("run", "checkpoint", "compare", "mesh")


@pytest.mark.parametrize("names", [EVERY[:1], pytest.param(EVERY, marks=pytest.mark.long)])
def test_no_page_opens_a_connection_to_anywhere_else(
    names: Sequence[str], small: Store, served: Serve, tmp_path: Path, watch: Watch
) -> None:
    """Below the pages too: connections, by whatever part of the browser."""
    url, log = served(small), tmp_path / "network.json"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=[*ARGUMENTS, f"--log-net-log={log}"]
        )
        context = browser.new_context()
        context.add_init_script(OBSERVED)
        watch.attach(context)
        page = context.new_page()
        page.watch = watch
        for name in names:
            visit(page, f"{url}{stores.pages(small)[name]}")
        browser.close()
    connected, asked = _network(log)
    assert connected == {url.removeprefix("http://")}
    assert asked == {url}
    assert watch.problems == []


def test_plots_are_loaded_where_they_are_shown_and_once(see: See) -> None:
    """They are megabytes: they come out of the installed package, and the browser keeps them."""
    loaded = (
        "performance.getEntriesByType('resource').filter(each => each.name.endsWith('/plotly.js'))"
        ".map(each => each.transferSize)"
    )
    assert see("runs").evaluate(loaded) == []
    see("run")
    page = see("runs-together")
    page.locator(".plot").first.locator("path.js-line").nth(1).wait_for()
    assert page.locator("path.js-line").count() >= 4
    expect(page.locator(".legend a")).to_have_text(["gpt", "low rate"])
    assert page.evaluate(loaded) == [0]


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
