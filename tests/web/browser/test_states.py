"""Each page with nothing to show, with damage, with ten thousand checkpoints, and with a store
that goes away and comes back while it is shown.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.web import stores
from tests.web.browser.browser import PHONE, Watch, check_sizes, start, visit, work_of
from tests.web.conftest import Serve, Shown


def test_an_empty_store_says_what_to_do(shown: Shown, served: Serve, page: Page) -> None:
    for path in ("/", "/lineage", "/compare", "/storage", "/files"):
        check_sizes(page, f"{served(shown(stores.empty))}{path}", [PHONE])
        said = page.locator("main").inner_text()
        assert len(said) > 40, path
        for word in ("undefined", "NaN", "[object", "null"):
            assert word not in said, path


def test_a_damaged_store_is_listed_with_its_damage(shown: Shown, served: Serve, page: Page) -> None:
    store = shown(stores.damaged)
    store.index.refresh()
    lost = next(each.run for each in store.index.runs() if each.problem)
    for path, said in {
        "/": "damaged",
        f"/runs/{store.find_run('gpt').hash}": "damaged",
        f"/runs/{lost}": lost[:8],
        "/lineage": "gpt",
        "/storage": "gpt",
    }.items():
        visit(page, f"{served(store)}{path}")
        assert said in page.locator("main").inner_text().lower(), path


def test_a_damaged_checkpoint_says_what_is_wrong_with_it(
    shown: Shown, served: Serve, page: Page, watch: Watch
) -> None:
    watch.expect("^422 (GET|POST) ")
    watch.expect("console error: Failed to load resource.* 422")
    store = shown(stores.damaged)
    main, url = page.locator("main"), f"{served(store)}/checkpoints/{store.find_run('gpt').hash}"
    for step, said in ((40, "_step_000040.json: it"), (80, "not there"), (100, "it ends after")):
        check_sizes(page, f"{url}/{step}", [PHONE])
        assert said in main.inner_text()
        assert "damaged" in main.inner_text().lower()
    for step, said in ((60, "model.broken' is damaged"), (120, "intact")):
        visit(page, f"{url}/{step}")
        page.get_by_role("button", name="verify").click()
        expect(main).to_contain_text(said, ignore_case=True)


def test_a_store_that_goes_away_and_comes_back_is_followed(
    tmp_path: Path, shown: Shown, served: Serve, page: Page, watch: Watch
) -> None:
    """The page says that it is gone, and shows it again without being loaded anew."""
    watch.expect("^410 GET ")
    watch.expect("console error: Failed to load resource.* 410")
    place, aside = tmp_path / "store", tmp_path / "aside"
    shutil.copytree(Path(shown(stores.small).url).parent, place)
    url, run = served(place), shown(stores.small).find_run("gpt").hash
    visit(page, url)
    main = page.locator("main")
    expect(main).to_contain_text("low rate")
    page.evaluate("window.__same = true")
    place.rename(aside)
    gone = page.get_by_text("no store").or_(page.get_by_text("gone")).first
    expect(gone).to_be_visible()
    aside.rename(place)
    expect(gone).not_to_be_visible()
    expect(main).to_contain_text("low rate")
    assert page.evaluate("window.__same")
    shutil.rmtree(place)
    for path in ("/lineage", f"/runs/{run}", f"/checkpoints/{run}/200"):
        visit(page, f"{url}{path}")
        assert "is no store" in page.inner_text("body"), path


def test_a_server_that_has_ended_is_told_and_found_again(
    tmp_path: Path, page: Page, watch: Watch
) -> None:
    """People leave pages open over night: it must neither be silent nor ask without end."""
    watch.expect("console error: Failed to load resource: net::")
    store = stores.empty(tmp_path / "store")
    server = start(store, tmp_path / "first.log")
    watch.origins.add(server.url)
    banner = page.get_by_text("server does not answer")
    try:
        visit(page, server.url)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        server.stop()
        expect(banner).to_be_visible()
        assert len(asked) < 10, "the page asks a server that is not there again and again"
        port = server.url.rpartition(":")[2]
        server = start(store, tmp_path / "second.log", port=port)
        expect(banner).not_to_be_visible()
        with store.run("fresh", hp={"lr": 1}) as run:  # a new run appears by itself
            run.save(1, {"model": {"weight": [0.5]}}, {"loss": 1})
            expect(page.locator("main")).to_contain_text("fresh")
    finally:
        server.stop()


@pytest.mark.long
def test_ten_thousand_checkpoints_do_not_hold_anything_up(
    shown: Shown, served: Serve, page: Page
) -> None:
    """The first page has a few of them, and no page works for a second."""
    store = shown(stores.many)
    url = served(store)
    told = httpx.get(f"{url}/api/v1/runs", timeout=60).json()
    assert (told["total"], len(told["runs"])) == (1000, 50)
    page.goto(url)
    page.get_by_text("run 999", exact=True).first.wait_for()
    run = store.find_run("run 5").hash
    visit(page, f"{url}/runs/{run}")  # where the browser reads the megabytes of the plots
    for path in ("/", f"/runs/{run}", "/lineage", "/storage", "/?q=run+77"):
        assert 0 < work_of(page, f"{url}{path}") < 1, path
        assert page.evaluate("document.querySelectorAll('*').length") < 30_000, path
    check_sizes(page, url)
