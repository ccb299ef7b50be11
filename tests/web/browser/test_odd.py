"""States, tensors and metrics of an odd kind, and people who do something while a page changes."""

from __future__ import annotations

import re

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from standfast import Store
from tests.web.browser.browser import Watch, settle, visit
from tests.web.conftest import Serve


@pytest.fixture(scope="session")
def odd(workshop: Store) -> Store:
    """Tensors at the top of a state, integers beyond what JavaScript counts, and a NaN."""
    ids = np.arange(1000, dtype=np.int64) * 1_000_003 + (1 << 60)
    weight = np.random.default_rng(0).standard_normal((3, 20, 20), np.float32)
    with workshop.run("odd", hp={"lr": 0.1}) as run:
        run.save(1, {"w": weight, "ids": ids, "inner": {"b": weight[0]}}, {"time": 3.0})
        weight[0, 0, 0] = np.nan
        run.save(2, {"w": weight, "ids": ids, "inner": {"b": weight[1]}}, {"time": 1.0})
    with workshop.run("odd too", hp={"lr": 0.2}) as run:
        run.save(1, [weight], {"time": 2.0})
    return workshop


def test_tensors_at_the_top_of_a_state_and_large_integers_are_shown(
    odd: Store, served: Serve, page: Page
) -> None:
    for name, tensors in (("odd too", 1), ("odd", 3)):
        visit(page, f"{served(odd, allow_edit=True)}/checkpoints/{odd.find_run(name).hash}/1")
        expect(page.locator(".row.columns")).to_contain_text(f"{tensors} tensor")
        expect(page.locator("main")).to_contain_text("no part")
    page.locator(".row[aria-selected]", has_text="ids").click()
    page.locator(".bars path").first.wait_for()
    bars = page.locator(".bars path").evaluate_all("all => all.map(e => e.getAttribute('d'))")
    assert len(bars) == 64
    assert "M0,0Z" not in bars


def test_a_picture_that_failed_is_drawn_when_it_is_tried_again(
    odd: Store, served: Serve, page: Page, watch: Watch
) -> None:
    visit(page, f"{served(odd, allow_edit=True)}/checkpoints/{odd.find_run('odd').hash}/1")
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


def test_a_change_that_is_not_finite_is_called_so(odd: Store, served: Serve, page: Page) -> None:
    run = odd.find_run("odd").hash
    visit(page, f"{served(odd, allow_edit=True)}/compare?before={run}@1&after={run}@2")
    expect(page.locator("tr[data-name='w']")).to_contain_text("not finite")
    expect(page.locator("tr[data-name='inner.b']")).not_to_contain_text("not finite")


def test_a_setting_in_the_filter_is_no_metric_and_a_metric_may_be_called_time(
    odd: Store, served: Serve, page: Page
) -> None:
    visit(page, f"{served(odd, allow_edit=True)}/?q=odd")
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


def test_what_people_zoomed_to_and_what_they_write_stays_when_the_run_goes_on(
    workshop: Store, served: Serve, page: Page
) -> None:
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
