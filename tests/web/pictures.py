"""Takes the pictures in `docs/pictures` again: `python -m tests.web.pictures FOLDER`.

The store that they show is made in the folder, whose name is on them.
"""

import sys
from pathlib import Path

from playwright.sync_api import Page, expect

from tests import ROOT
from tests.web import stores
from tests.web.browser.browser import DESK, PHONE, Browsing, Watch, serve, settle, visit

PICTURES = ROOT / "docs" / "pictures"
TAKEN = {
    "light": "runs run lineage checkpoint compare storage package",
    "dark": "runs mesh",
    "phone": "run",
}


def main(folder: Path) -> None:
    store = stores.small(folder)
    pages = stores.pages(store)
    server = serve(folder)
    browsing, watch = Browsing(), Watch({server.url})
    try:
        with browsing.context() as context:
            watch.attach(context)
            page = context.new_page()
            page.watch = watch  # type: ignore[attr-defined]
            for rendering, names in TAKEN.items():
                page.set_viewport_size(PHONE if rendering == "phone" else DESK)
                page.emulate_media(color_scheme="dark" if rendering == "dark" else "light")
                for name in names.split():
                    visit(page, f"{server.url}{pages[name]}")
                    choose(page, name)
                    page.screenshot(path=PICTURES / f"{name}-{rendering}.png")
    finally:
        browsing.close()
        server.stop()
    assert watch.problems == []


def choose(page: Page, name: str) -> None:
    """Open a tensor on the pages that have some."""
    if name == "checkpoint":
        page.locator(".row[aria-selected]", has_text="attention.weight").first.click()
        page.locator(".hm image").first.wait_for()
    elif name == "compare":
        page.locator("tr[data-name]").first.click()
        expect(page.locator(".aside .bars path").nth(2)).to_be_attached()
        page.locator("h2", has_text="Tensors").scroll_into_view_if_needed()
        page.mouse.wheel(0, 520)
    else:
        return
    page.mouse.move(0, 0)
    settle(page)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
