"""Pictures of every page, for people to look at; none is too wide, and none jumps."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page

import standfast
from tests.web import stores
from tests.web.browser.browser import shot
from tests.web.conftest import Serve

NAMES = (
    "runs run runs-together lineage checkpoint snapshot compare storage files file mesh package"
).split()


@pytest.mark.parametrize("name", NAMES)
def test_every_page_fits_its_window_does_not_jump_and_says_where_it_is(
    name: str, small: standfast.Store, served: Serve, page: Page
) -> None:
    shot(page, f"{served(small)}{stores.pages(small)[name]}", name)
    assert page.locator("h1").count() == 1
    assert page.locator("nav [aria-current]").count() == 1
    assert page.locator("html").get_attribute("lang") == "en"
    assert re.fullmatch(r"\S.* · Standfast", page.title())


def test_the_list_of_pages_is_whole(small: standfast.Store) -> None:
    assert sorted(stores.pages(small)) == sorted(NAMES)
