"""Each page with nothing to show, with damage, with ten thousand checkpoints, and with a store
that goes away and comes back while it is shown.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

import standfast
from tests.web import stores
from tests.web.browser.browser import Watch, shot, start, visit, work_of
from tests.web.conftest import Serve

Shown = Callable[[Any], standfast.Store]


@pytest.mark.parametrize("path", ["/", "/lineage", "/compare", "/storage", "/files"])
def test_an_empty_store_says_what_to_do(path: str, shown: Shown, served: Serve, page: Page) -> None:
    shot(page, f"{served(shown(stores.empty))}{path}", f"empty-{path.strip('/') or 'runs'}")
    said = page.locator("main").inner_text()
    assert len(said) > 40
    for word in ("undefined", "NaN", "[object", "null"):
        assert word not in said


def test_a_damaged_store_is_listed_with_its_damage(shown: Shown, served: Serve, page: Page) -> None:
    store = shown(stores.damaged)
    run = store.find_run("gpt").hash
    url = served(store)
    for name, path in (
        ("runs", "/"), ("run", f"/runs/{run}"), ("lineage", "/lineage"), ("storage", "/storage")
    ):  # fmt: skip
        if name in ("runs", "run"):
            shot(page, f"{url}{path}", f"damaged-{name}")
            assert "damaged" in page.locator("main").inner_text().lower(), name
        else:
            visit(page, f"{url}{path}")


@pytest.mark.parametrize(
    ("step", "said"), [(40, "_step_000040.json: it"), (80, "not there"), (100, "it ends after")]
)
def test_a_damaged_checkpoint_says_what_is_wrong_with_it(
    step: int, said: str, shown: Shown, served: Serve, page: Page, watch: Watch
) -> None:
    watch.expect("^422 GET ")
    watch.expect("console error: Failed to load resource.* 422")
    store = shown(stores.damaged)
    url = f"{served(store)}/checkpoints/{store.find_run('gpt').hash}/{step}"
    shot(page, url, f"damaged-checkpoint-{step}")
    shown_text = page.locator("main").inner_text()
    assert said in shown_text
    assert "damaged" in shown_text.lower()


def test_verifying_finds_the_byte_that_is_wrong(
    shown: Shown, served: Serve, page: Page, watch: Watch
) -> None:
    watch.expect("^422 POST ")
    watch.expect("console error: Failed to load resource.* 422")
    store = shown(stores.damaged)
    url, run = served(store), store.find_run("gpt").hash
    visit(page, f"{url}/checkpoints/{run}/60")
    page.get_by_role("button", name="verify").click()
    expect(page.locator("main")).to_contain_text("model.broken' is damaged")
    visit(page, f"{url}/checkpoints/{run}/120")
    page.get_by_role("button", name="verify").click()
    expect(page.locator("main")).to_contain_text("intact", ignore_case=True)


def test_a_run_whose_own_file_is_lost_is_shown_by_its_hash(
    shown: Shown, served: Serve, page: Page
) -> None:
    store = shown(stores.damaged)
    store.index.refresh()
    lost = next(each.run for each in store.index.runs() if each.problem)
    visit(page, f"{served(store)}/runs/{lost}")
    assert lost[:8] in page.locator("main").inner_text()


def test_a_store_that_goes_away_and_comes_back_is_followed(
    tmp_path: Path, shown: Shown, served: Serve, page: Page, watch: Watch
) -> None:
    """The page says that it is gone, and shows it again without being loaded anew."""
    watch.expect("^410 GET ")
    watch.expect("console error: Failed to load resource.* 410")
    place, aside = tmp_path / "store", tmp_path / "aside"
    shutil.copytree(Path(shown(stores.small).url).parent, place)
    visit(page, served(place))
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


def test_a_store_that_is_gone_is_no_failure_of_any_page(
    tmp_path: Path, shown: Shown, served: Serve, page: Page, watch: Watch
) -> None:
    watch.expect("^410 GET ")
    watch.expect("console error: Failed to load resource.* 410")
    place = tmp_path / "store"
    shutil.copytree(Path(shown(stores.small).url).parent, place)
    url, run = served(place), shown(stores.small).find_run("gpt").hash
    assert httpx.get(f"{url}/api/v1/lineage").status_code == 200
    shutil.rmtree(place)
    for path in ("/", "/lineage", "/storage", f"/runs/{run}", f"/checkpoints/{run}/200"):
        visit(page, f"{url}{path}")
        assert "is no store" in page.inner_text("body"), path


def test_a_server_that_has_ended_is_told_and_found_again(
    tmp_path: Path, page: Page, watch: Watch
) -> None:
    """People leave pages open over night: it must neither be silent nor ask without end."""
    watch.expect("console error: Failed to load resource: net::")
    stores.empty(tmp_path / "store")
    server = start(tmp_path / "store", tmp_path / "first.log")
    watch.origins.add(server.url)
    banner = page.get_by_text("server does not answer")
    try:
        visit(page, server.url)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        server.stop()
        expect(banner).to_be_visible()
        page.wait_for_timeout(1000)
        assert len(asked) < 10, "the page asks a server that is not there again and again"
        port = server.url.rpartition(":")[2]
        server = start(tmp_path / "store", tmp_path / "second.log", port=port)
        expect(banner).not_to_be_visible()
    finally:
        server.stop()


def test_a_new_run_appears_by_itself(tmp_path: Path, served: Serve, page: Page) -> None:
    store = stores.empty(tmp_path / "store")
    visit(page, served(store))
    with store.run("fresh", hp={"lr": 1}) as run:
        for step in (1, 2):
            run.save(step, {"model": {"weight": [0.5]}}, {"loss": 1 / step})
            expect(page.locator("main")).to_contain_text("fresh")


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
    shot(page, url, "many-runs")


def test_the_last_page_of_a_thousand_runs_can_be_reached(
    shown: Shown, served: Serve, page: Page
) -> None:
    visit(page, f"{served(shown(stores.many))}/?page=20")
    rows = page.locator("main table tbody tr")
    assert rows.count() == 50
    assert "run 0" in page.locator("main").inner_text()


def test_a_tensor_of_a_gigabyte_is_looked_at_within_bounds(
    shown: Shown, served: Serve, page: Page
) -> None:
    store = shown(stores.huge)
    run = store.find_run("huge").hash
    visit(page, f"{served(store)}/checkpoints/{run}/1")
    asked = f"{served(store)}/api/v1/tensor?ref={run}@1&name=model.weight"
    summary = page.evaluate("async asked => (await fetch(asked)).json()", asked)
    assert summary["elements"] == 1 << 28
    assert 0 < summary["seen"] <= 1 << 26
    assert summary["exact"] is False
    assert abs(summary["mean"]) < 0.01
    assert abs(summary["std"] - 1) < 0.01


def test_a_seed_of_64_bits_keeps_its_digits(
    small: standfast.Store, served: Serve, page: Page
) -> None:
    """JavaScript's numbers have 53 bits: what is more must not be rounded on its way."""
    visit(page, f"{served(small)}/runs/{small.find_run('gpt').hash}")
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    assert "9223372036854775807" in page.locator("main").inner_text().replace(",", "")
