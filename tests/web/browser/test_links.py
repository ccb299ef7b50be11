"""Every page can be reached, fits its window, does not jump and says where it is."""

import re
from urllib.parse import urldefrag, urljoin, urlsplit

import httpx
import pytest
from playwright.sync_api import Page

from tests.web import stores
from tests.web.browser.browser import DESK, PHONE, check_fit, check_sizes, settle

MOST = 400
"""Pages; a crawl that finds more has gone astray."""


def test_every_link_answers_and_every_page_can_be_reached_from_the_first_one(small, served, page):
    url = served(small)
    waiting, opened, answered = [f"{url}/"], set[str](), set[str]()
    with httpx.Client(timeout=60) as client:
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
            check_sizes(page, link, [DESK])
            check_place(page)
            waiting += [found for found in _links(page) if found not in answered]
            page.set_viewport_size(PHONE)
            settle(page)
            check_fit(page, link)
    assert opened >= {_kind(f"{url}{path}") for path in stores.pages(small).values()}
    assert len(answered) > 20


@pytest.mark.long
@pytest.mark.parametrize("name", stores.PAGES)
def test_every_page_fits_a_phone_and_a_desk_and_says_where_it_is(name, small, served, page):
    check_sizes(page, f"{served(small)}{stores.pages(small)[name]}", [PHONE, DESK])
    check_place(page)


def check_place(page: Page) -> None:
    assert page.locator("h1").count() == 1
    assert page.locator("nav [aria-current]").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    assert re.fullmatch(r"\S.* · Standfast", page.title())


def _links(page: Page) -> list[str]:
    """The addresses that a page links to, of its own server."""
    links = page.eval_on_selector_all("a[href]", "all => all.map(a => a.getAttribute('href'))")
    whole = [urldefrag(urljoin(page.url, link)).url for link in links]
    return [link for link in dict.fromkeys(whole) if page.watch.is_own(link)]


def _kind(link: str) -> str:
    """What is the same of links to pages of one kind."""
    parts = urlsplit(link)
    path = re.sub("/[0-9]+", "/N", re.sub("[0-9a-z]{24}", "RUN", parts.path))
    return path + ("?path" if "path=" in parts.query and "." in parts.query else "")
