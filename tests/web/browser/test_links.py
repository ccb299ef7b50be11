"""All links of all pages lead somewhere."""

from __future__ import annotations

import re
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx
from playwright.sync_api import Page

import standfast
from tests.web import stores
from tests.web.browser.browser import visit
from tests.web.conftest import Serve

MOST = 400
"""Pages; a crawl that finds more has gone astray."""


def test_every_link_of_every_page_answers(
    small: standfast.Store, served: Serve, page: Page
) -> None:
    """One page of each kind is opened in the browser; what others link to is asked for."""
    url = served(small)
    waiting = [f"{url}{path}" for path in stores.pages(small).values()]
    opened: set[str] = set()
    answered: set[str] = set()
    with httpx.Client(timeout=20) as client:
        while waiting:
            link = waiting.pop()
            if link in answered:
                continue
            answer = client.get(link, follow_redirects=True)
            assert answer.status_code == 200, link
            answered.add(link)
            assert len(answered) < MOST
            if _kind(link) in opened or "text/html" not in answer.headers["content-type"]:
                continue
            opened.add(_kind(link))
            visit(page, link)
            waiting += [found for found in _links(page) if found not in answered]
    assert len(opened) >= 7, opened
    assert len(answered) > 20


def test_every_page_can_be_reached_from_the_first_one(
    small: standfast.Store, served: Serve, page: Page
) -> None:
    url = served(small)
    visit(page, url)
    kinds = {_kind(link) for link in _links(page)}
    assert {"/", "/lineage", "/storage", "/files", "/runs/RUN"} <= kinds
    visit(page, f"{url}{stores.pages(small)['run']}")
    assert "/checkpoints/RUN/N" in {_kind(link) for link in _links(page)}


def test_the_way_back_works(small: standfast.Store, served: Serve, page: Page) -> None:
    url = served(small)
    visit(page, url)
    page.locator(f"a[href*='{small.find_run('gpt').hash}']").first.click()
    page.wait_for_url("**/runs/*")
    page.go_back()
    page.get_by_text("low rate").first.wait_for()
    assert urlsplit(page.url).path == "/"


def _links(page: Page) -> list[str]:
    """The addresses that a page links to, of its own server."""
    links = page.eval_on_selector_all("a[href]", "all => all.map(a => a.getAttribute('href'))")
    whole = [urldefrag(urljoin(page.url, link)).url for link in links]
    return [link for link in dict.fromkeys(whole) if page.watch.is_own(link)]


def _kind(link: str) -> str:
    """What is the same of links to pages of one kind."""
    parts = urlsplit(link)
    path = re.sub("[0-9a-z]{24}", "RUN", parts.path)
    path = re.sub("/[0-9]+", "/N", path)
    return path + ("?path" if "path=" in parts.query and "." in parts.query else "")
