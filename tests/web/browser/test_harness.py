"""The browser that tests look through sees what must not be: each of these pages is bad."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page

from tests.kit.sites import Site
from tests.web.browser.browser import Watch, check_fit, check_shift, settle, visit

ICON = '<link rel="icon" href="data:,">'
BAD = {
    "console": ("<script>console.error('wrong')</script>", "console error: wrong"),
    "warning": ("<script>console.warn('odd')</script>", "console warning: odd"),
    "exception": ("<script>throw new Error('thrown')</script>", "exception: thrown"),
    "promise": ("<script>Promise.reject(new Error('late'))</script>", "exception: late"),
    "missing": ("<script type=module>fetch('/none')</script>", "404 GET"),
    "image": ("<img src=http://192.0.2.1/a.png>", "request elsewhere: http://192.0.2.1/"),
    "beacon": ("<script>navigator.sendBeacon('http://192.0.2.1/b')</script>", "request elsewhere"),
    "frame": ("<iframe src=http://192.0.2.1/></iframe>", "request elsewhere"),
    "socket": ("<script>new WebSocket('ws://192.0.2.1/')</script>", "websocket ws://192.0.2.1/"),
    "dialog": ("<script>alert('hello')</script>", "dialog: hello"),
}
OTHERS = {
    "wide": "<div class=wide style='width: 3000px'>x</div>",
    "jump": "<div id=top></div><p class=text style='height: 400px; background: red'>Text</p>"
    "<script>setTimeout(() => { document.getElementById('top').style.height = '300px' }, 100)"
    "</script>",
    "later": "<script>setTimeout(() => fetch('/data').then(a => a.text())"
    ".then(text => { document.title = text }), 150)</script>",
    "data": "answered",
}


@pytest.fixture
def site(watch: Watch) -> Iterator[Site]:
    pages = {name: html for name, (html, _) in BAD.items()} | OTHERS
    with Site({f"/{name}": f"{ICON}<p>{html}" for name, html in pages.items()}) as site:
        watch.origins.add(site.url)
        yield site


def test_what_must_not_happen_on_a_page_is_seen(site, browsing, watch):
    with browsing.context() as context:
        watch.attach(context)
        page: Page = context.new_page()
        page.watch = watch  # type: ignore[attr-defined]
        for name, (_, problem) in BAD.items():
            visit(page, f"{site.url}/{name}")
            assert any(each.startswith(problem) for each in watch.problems), (name, watch.problems)
            watch.problems.clear()
        visit(page, f"{site.url}/wide")
        with pytest.raises(AssertionError, match=r"DIV\.wide"):
            check_fit(page, "it")
        visit(page, f"{site.url}/jump")
        page.wait_for_function("window.__shift > 0")
        with pytest.raises(AssertionError, match=r"P\.text"):
            check_shift(page, "it")
        page.goto(f"{site.url}/later")
        settle(page)
        assert page.title().endswith("answered")
