"""The browser that tests look through sees what must not be: each of these pages is bad."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.kit.sites import Site
from tests.web.browser.browser import (
    ELSEWHERE,
    Browsing,
    Watch,
    check_fit,
    check_shift,
    settle,
    visit,
)

ICON = '<link rel="icon" href="data:,">'
BAD = {
    "console": ("<script>console.error('wrong')</script>", "console error: wrong"),
    "warning": ("<script>console.warn('odd')</script>", "console warning: odd"),
    "exception": ("<script>throw new Error('thrown')</script>", "exception: thrown"),
    "promise": ("<script>Promise.reject(new Error('late'))</script>", "exception: late"),
    "missing": ("<script type=module>fetch('/none')</script>", "404 GET"),
    "image": ("<img src=http://192.0.2.1/a.png>", "request elsewhere: http://192.0.2.1/"),
    "name": ("<script src=//cdn.example/a.js></script>", "request elsewhere: http://cdn.ex"),
    "beacon": (
        "<script>navigator.sendBeacon('http://192.0.2.1/b')</script>",
        "request elsewhere: http://192.0.2.1/b",
    ),
    "frame": ("<iframe src=http://192.0.2.1/></iframe>", "request elsewhere"),
    "socket": ("<script>new WebSocket('ws://192.0.2.1/')</script>", "websocket ws://192.0.2.1/"),
    "dialog": ("<script>alert('hello')</script>", "dialog: hello"),
}


@pytest.fixture
def site(watch: Watch) -> Iterator[Site]:
    with Site({f"/{name}": f"{ICON}<p>{html}" for name, (html, _) in BAD.items()}) as site:
        watch.origins.add(site.url)
        yield site


@pytest.fixture
def bare(browsing: Browsing, watch: Watch) -> Iterator[Page]:
    """A page whose problems are for the test to look at."""
    with browsing.context() as context:
        watch.attach(context)
        page = context.new_page()
        page.watch = watch
        yield page


def test_what_must_not_happen_on_a_page_is_seen(site: Site, bare: Page, watch: Watch) -> None:
    for name, (_, problem) in BAD.items():
        visit(bare, f"{site.url}/{name}")
        assert any(each.startswith(problem) for each in watch.problems), (name, watch.problems)
        watch.problems.clear()
    watch.expect("404 GET .*/none")
    watch.expect("console error: .*404.*/none")
    visit(bare, f"{site.url}/missing")
    assert watch.problems == [], "what a test expects is let pass"


def test_a_page_that_is_too_wide_jumps_or_is_busy_is_seen(site: Site, bare: Page) -> None:
    wide = "<div class=wide style='width: 3000px'>x</div>"
    for path, html in {
        "/wide": wide,
        "/scrolled": f"<div style='overflow: auto'>{wide}</div>",
        "/jump": "<div id=top></div><p class=text style='height: 400px; background: red'>Text</p>"
        "<script>setTimeout(() => { document.getElementById('top').style.height = '300px' }, 100)"
        "</script>",
        "/busy": "<script>setTimeout(() => { const end = performance.now() + 300;"
        "while (performance.now() < end); }, 10)</script>",
        "/later": "<script>setTimeout(() => fetch('/data').then(a => a.text())"
        ".then(text => { document.title = text }), 150)</script>",
    }.items():
        site.pages[path] = ICON + html
    site.pages["/data"] = "answered"
    visit(bare, f"{site.url}/scrolled")
    check_fit(bare, "it")
    visit(bare, f"{site.url}/wide")
    with pytest.raises(AssertionError, match=r"it is wider than its window: .*DIV\.wide"):
        check_fit(bare, "it")
    visit(bare, f"{site.url}/jump")
    bare.wait_for_function("window.__shift > 0")
    with pytest.raises(AssertionError, match=r"it jumped by 0\.[0-9]+: \['P\.text"):
        check_shift(bare, "it")
    visit(bare, f"{site.url}/busy")
    bare.wait_for_function("window.__longest >= 300")
    bare.goto(f"{site.url}/later")
    settle(bare)
    assert bare.title() == "answered"


def test_a_name_can_be_made_to_lead_to_this_machine(site: Site, bare: Page, watch: Watch) -> None:
    watch.origins.add(f"http://{ELSEWHERE}:{site.port}")
    site.pages["/"] = ICON
    bare.goto(f"http://{ELSEWHERE}:{site.port}/")
    assert "/" in site.asked


def test_other_event_loops_can_run_between_tests(browsing: Browsing) -> None:
    with browsing.context() as context:
        context.new_page()
    assert asyncio.run(asyncio.sleep(0, "done")) == "done"
    with browsing.context() as context:
        assert context.new_page().evaluate("1 + 1") == 2
