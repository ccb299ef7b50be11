"""Each page with nothing to show, with damage, with hundreds of runs, with odd contents,
and while its store or its server goes away and comes back.
"""

import re
import shutil
from pathlib import Path

import httpx
import numpy as np
import pytest
from playwright.sync_api import Route, expect

from standfast import Run, Store
from tests.web import stores
from tests.web.browser.browser import PHONE, check_sizes, serve, settle, visit, work_of


def test_an_empty_store_says_what_to_do(shown, served, page):
    for path in ("/", "/lineage", "/compare", "/storage", "/files"):
        check_sizes(page, f"{served(shown(stores.empty))}{path}", [PHONE])
        said = page.locator("main").inner_text()
        assert len(said) > 40, path
        for word in ("undefined", "NaN", "[object", "null"):
            assert word not in said, path


def test_damage_is_shown_where_it_is(shown, served, page, watch):
    watch.expect("^422 (GET|POST) ")
    watch.expect("console error: Failed to load resource.* 422")
    store = shown(stores.damaged)
    store.index.refresh()
    main, url, gpt = page.locator("main"), served(store), store.find_run("gpt").hash
    lost = next(each.run for each in store.index.runs() if each.problem)
    visit(page, url)
    expect(main).to_contain_text("damaged")
    visit(page, f"{url}/runs/{lost}")
    expect(main).to_contain_text(lost[:8])
    for step, said in ((40, "_step_000040.json"), (80, "not there"), (100, "_step_000100.json")):
        check_sizes(page, f"{url}/checkpoints/{gpt}/{step}", [PHONE])
        assert said in main.inner_text()
        assert "damaged" in main.inner_text().lower()
    for step, said in ((60, "'model.broken'"), (120, "intact")):
        visit(page, f"{url}/checkpoints/{gpt}/{step}")
        page.get_by_role("button", name="verify").click()
        expect(main).to_contain_text(said, ignore_case=True)


def test_a_store_that_goes_away_and_comes_back_is_followed(tmp_path, shown, served, page, watch):
    watch.expect("^410 GET ")
    watch.expect("console error: Failed to load resource.* 410")
    place, aside = tmp_path / "store", tmp_path / "aside"
    shutil.copytree(Path(shown(stores.small).url).parent, place)
    visit(page, served(place))
    main, gone = page.locator("main"), page.get_by_text("no store").or_(page.get_by_text("gone"))
    page.evaluate("window.__same = true")
    place.rename(aside)
    expect(gone.first).to_be_visible()
    aside.rename(place)
    expect(gone.first).not_to_be_visible()
    expect(main).to_contain_text("low rate")
    assert page.evaluate("window.__same"), "the page was loaded anew"
    shutil.rmtree(place)
    visit(page, f"{served(place)}/lineage")
    expect(page.locator("body")).to_contain_text("is no store")


def test_a_server_that_has_ended_is_told_and_found_again(tmp_path, page, watch):
    watch.expect("console error: Failed to load resource: net::")
    store = stores.empty(tmp_path)
    server = serve(tmp_path)
    watch.origins.add(server.url)
    banner = page.get_by_text("server does not answer")
    visit(page, server.url)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    server.stop()
    expect(banner).to_be_visible()
    assert len(asked) < 10, "the page asks a server that is not there again and again"
    server = serve(tmp_path, port=int(server.url.rpartition(":")[2]))
    expect(banner).not_to_be_visible()
    with store.run("fresh", hp={"lr": 1}) as run:  # a new run appears by itself
        run.save(1, {"model": {"weight": [0.5]}}, {"loss": 1})
        expect(page.locator("main")).to_contain_text("fresh")
    server.stop()


@pytest.fixture
def odd(workshop: Store) -> Run:
    """Tensors at the top of a state, integers beyond what JavaScript counts, and a NaN."""
    run = workshop.run("odd", hp={"lr": 0.1})
    if not run.checkpoints():
        ids = np.arange(1000, dtype=np.int64) * 1_000_003 + (1 << 60)
        weight = np.random.default_rng(0).standard_normal((3, 20, 20), np.float32)
        with run:
            run.save(1, {"w": weight, "ids": ids, "inner": {"b": weight[0]}}, {"time": 3.0})
            weight[0, 0, 0] = np.nan
            run.save(2, {"w": weight, "ids": ids, "inner": {"b": weight[1]}}, {"time": 1.0})
        with workshop.run("odd too", hp={"lr": 0.2}) as other:
            other.save(1, [weight], {"time": 2.0})
    return run


def test_odd_tensors_are_shown_and_a_picture_that_failed_is_drawn_again(odd, served, page, watch):
    visit(page, f"{served(odd.store, allow_edit=True)}/checkpoints/{odd.hash}/1")
    expect(page.locator(".row.columns")).to_contain_text("3 tensor")
    expect(page.locator("main")).to_contain_text("no part")
    page.locator(".row[aria-selected]", has_text="ids").click()
    page.locator(".bars path").first.wait_for()
    bars = page.locator(".bars path").evaluate_all("all => all.map(e => e.getAttribute('d'))")
    assert len(bars) == 64
    assert "M0,0Z" not in bars
    page.locator(".row[aria-selected]", has_text=re.compile(r"^\s*w")).first.click()
    page.locator(".hm image").first.wait_for()
    watch.expect("console error: Failed to load resource: net::")
    page.route("**/heatmap*", lambda route: route.abort())
    page.get_by_label("index 0, below 3").fill("1")
    page.get_by_label("index 0, below 3").press("Enter")
    again = page.get_by_role("button", name="Try again")
    again.wait_for()
    page.unroute_all()
    again.click()
    page.locator(".hm image").first.wait_for()
    expect(again).to_have_count(0)
    visit(
        page, f"{served(odd.store, allow_edit=True)}/compare?before={odd.hash}@1&after={odd.hash}@2"
    )
    expect(page.locator("tr[data-name='w']")).to_contain_text("not finite")
    expect(page.locator("tr[data-name='inner.b']")).not_to_contain_text("not finite")


def test_a_setting_in_the_filter_is_no_metric_and_a_metric_may_be_called_time(odd, served, page):
    visit(page, f"{served(odd.store, allow_edit=True)}/?q=odd")
    names = page.locator("main tbody td.name")
    page.get_by_role("button", name="time", exact=True).click()
    expect(names).to_have_text(["odd", "odd too"])
    page.get_by_role("button", name="time ↑").press("Enter")
    expect(names).to_have_text(["odd too", "odd"])
    expect(page.get_by_role("button", name="time ↓")).to_be_focused()
    page.get_by_label("Filter runs").fill("lr=0.1")
    page.get_by_label("Filter runs").press("Enter")
    expect(names).to_have_text(["odd"])
    expect(page.locator(".chip")).to_have_count(0)


def test_what_people_zoom_to_and_write_stays_when_the_run_goes_on(workshop, served, page):
    with workshop.run("live", hp={}) as run:
        for step in range(1, 12):
            run.save(step, {"n": step}, {"loss": 1 / step})
        visit(page, f"{served(workshop, allow_edit=True)}/runs/{run.hash}")
        plot = page.locator(".plot.js-plotly-plot").first
        plot.evaluate("plot => Plotly.relayout(plot, {'xaxis.range': [5, 10]})")
        page.get_by_role("button", name="Rename").click()
        name = page.locator("#head form input")
        name.fill("half a na")
        run.save(30, {"n": 30}, {"loss": 0.01})
        page.wait_for_function(
            "() => document.querySelector('.plot.js-plotly-plot').data[0].x.includes(30)"
        )
        settle(page)
        assert plot.evaluate("plot => plot.layout.xaxis.range") == [5, 10]
        expect(name).to_have_value("half a na")
        expect(name).to_be_focused()


def test_a_name_that_is_typed_stays_when_an_answer_comes_late(workshop, served, page):
    with workshop.run("late", hp={}) as run:
        run.save(1, {"n": 1})
        visit(page, f"{served(workshop, allow_edit=True)}/runs/{run.hash}")
        held: list[Route] = []
        page.route(
            f"**/api/v1/runs/{run.hash}",
            lambda route: route.continue_() if held else held.append(route),
        )
        run.save(2, {"n": 2})
        while not held:
            page.wait_for_timeout(20)
        page.get_by_role("button", name="Rename").click()
        page.locator("#head form input").fill("half a na")
        held[0].continue_()
        settle(page)
        expect(page.locator("#head form input")).to_have_value("half a na")


@pytest.mark.long
def test_hundreds_of_runs_do_not_hold_anything_up(shown, served, page):
    store = shown(stores.many)
    url = served(store)
    told = httpx.get(f"{url}/api/v1/runs", timeout=60).json()
    assert (told["total"], len(told["runs"])) == (400, 50)
    run = store.find_run("run 5").hash
    visit(page, f"{url}/runs/{run}")  # where the browser reads the megabytes of the plots
    for path in ("/", f"/runs/{run}", "/lineage", "/storage", "/?q=run+77"):
        assert 0 < work_of(page, f"{url}{path}") < 1, path
        assert page.evaluate("document.querySelectorAll('*').length") < 30_000, path
    check_sizes(page, url)
