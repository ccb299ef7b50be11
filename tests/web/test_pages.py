"""What people do on the pages: filter, choose, walk by keys, look at tensors, compare."""

import re

import numpy as np
from playwright.sync_api import Locator, Page, expect

from tests.web import stores
from tests.web.browser.browser import settle, visit, work_of

NAMES = {"gpt", "low rate", "wide", "less data", "heat", "not begun"}


def rows(page: Page) -> Locator:
    return page.locator("main tbody tr[data-run]")


def names(page: Page) -> set[str]:
    return set(page.locator("main td.name a").all_inner_texts())


def filter_box(page: Page) -> Locator:
    return page.get_by_label("Filter runs")


def test_the_filter_leaves_the_runs_that_have_its_text_parts_and_metrics(see, small):
    page = see("/")
    chips, main = page.locator(".chip"), page.locator("main")
    assert names(page) == NAMES
    filter_box(page).fill("low")
    expect(rows(page)).to_have_count(1)
    assert names(page) == {"low rate"}
    assert page.url.endswith("?q=low")
    filter_box(page).fill("nothing has this")
    expect(main).to_contain_text("No run fits")
    page.get_by_role("button", name="Show all runs").click()
    expect(rows(page)).to_have_count(len(NAMES))
    part = f"model:{small.find_run('gpt').hash[8:16]}"
    filter_box(page).press_sequentially(f"{part} ")
    expect(chips).to_have_text([re.compile(part)])
    assert filter_box(page).input_value() == ""
    settle(page)
    with_model = names(page)
    assert {"gpt", "low rate"} <= with_model < NAMES
    filter_box(page).press_sequentially("loss<0")
    filter_box(page).press("Enter")
    expect(chips).to_have_count(2)
    expect(main).to_contain_text("No run fits")
    filter_box(page).press("Backspace")
    expect(chips).to_have_count(1)
    expect(rows(page)).to_have_count(len(with_model))
    page = see("/")
    equal, lit = page.locator(f"[data-part='{part}']"), page.locator(".hash > .same")
    assert equal.count() >= 2
    colours = equal.evaluate_all("all => all.map(e => getComputedStyle(e).backgroundColor)")
    assert len(set(colours)) == 1
    equal.first.hover()
    expect(lit).to_have_count(equal.count())
    page.locator("h1").hover()
    expect(lit).to_have_count(0)
    hp = small.find_run("low rate").hash[:8]
    page.locator(f"[data-part='hp:{hp}']").first.click()
    expect(rows(page)).to_have_count(1)
    assert page.url.endswith(f"?hp={hp}")
    page.go_back()
    expect(rows(page)).to_have_count(len(NAMES))
    expect(chips).to_have_count(0)
    page.go_forward()
    expect(rows(page)).to_have_count(1)


def test_a_long_list_comes_in_pages(shown, served, page):
    visit(page, served(shown(stores.several)))
    pager = page.locator(".pager")
    expect(page.locator("#count")).to_have_text("60 runs")
    assert rows(page).count() == 50
    first = names(page)
    page.get_by_role("button", name="Next page").click()
    expect(pager).to_contain_text("51–60 of 60")
    settle(page)
    assert page.url.endswith("?page=2")
    assert rows(page).count() == 10
    assert "run 0" in names(page)
    assert not first & names(page)
    page.keyboard.press("[")
    expect(pager).to_contain_text("1–50 of 60")
    page.go_back()
    expect(pager).to_contain_text("51–60 of 60")


def test_runs_are_sorted_chosen_and_compared(see, small):
    page = see("/")
    page.get_by_role("button", name="Name", exact=True).click()
    page.wait_for_url("**/?sort=name")
    settle(page)
    found = page.locator("main td.name a").all_inner_texts()
    assert found == sorted(found)
    expect(page.locator("th[aria-sort=ascending]")).to_have_count(1)
    for name in ("gpt", "low rate"):
        page.get_by_label(f"choose {name}", exact=True).check()
    together = page.get_by_role("link", name="Plot together").get_attribute("href") or ""
    assert all(small.find_run(name).hash in together for name in ("gpt", "low rate"))
    page.get_by_role("link", name="Compare", exact=True).last.click()
    page.wait_for_url("**/compare?*")
    settle(page)
    expect(page.locator("main")).to_contain_text("the same model")


def test_a_row_changes_in_its_place_while_somebody_is_on_it(workshop, served, page):
    weight = {"model": {"weight": np.zeros(2)}}
    workshop.run("old", hp={"lr": 1}).save(1, weight, {"loss": 2.0})
    with workshop.run("new", hp={"lr": 2}) as new:
        new.save(1, weight, {"loss": 1.0})
        visit(page, served(workshop, allow_edit=True))
        page.keyboard.press("j")
        page.keyboard.press("j")
        row = page.locator("tr:focus")
        expect(row).to_contain_text("old")
        page.evaluate("document.activeElement.mine = true")
        expect(page.locator("tr", has_text="new").locator(".live")).to_have_count(1)
        new.save(7, weight, {"loss": 0.25})
        expect(page.locator("tr", has_text="new")).to_contain_text("0.2500")
    assert page.evaluate("document.activeElement.mine === true"), "the focus was lost"
    expect(row).to_contain_text("old")


def test_keys_lead_everywhere(see):
    page = see("/")
    for keys, path in (("gl", "/lineage"), ("gs", "/storage"), ("gf", "/files"), ("gr", "/")):
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_url(f"**{path}")
        settle(page)
    page.keyboard.press("/")
    expect(filter_box(page)).to_be_focused()
    page.keyboard.type("g")  # is text here
    page.keyboard.press("Escape")
    expect(filter_box(page)).not_to_be_focused()
    assert filter_box(page).input_value() == "g"
    filter_box(page).fill("")
    expect(rows(page)).to_have_count(len(NAMES))
    page.locator("h1").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    found = page.locator("main td.name a").all_inner_texts()
    for key in ("j", "ArrowDown", "j", "k"):
        page.keyboard.press(key)
    at = page.locator("tr:focus")
    expect(at).to_contain_text(found[1])
    assert at.evaluate("e => getComputedStyle(e).boxShadow") != "none", "the focus is not seen"
    page.keyboard.press("x")
    expect(page.locator("#chosen")).to_contain_text("1 chosen")
    page.keyboard.press("Escape")
    expect(page.locator("#chosen")).to_be_hidden()
    page.keyboard.press("Enter")
    page.wait_for_url("**/runs/*")
    expect(page.locator("h1")).to_contain_text(found[1])


def test_the_theme_is_the_systems_until_another_is_chosen_and_phones_have_a_menu(see, page):
    def darkness() -> str:
        return str(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))

    page.emulate_media(color_scheme="dark")
    page.set_viewport_size({"width": 390, "height": 844})
    see("/")
    dark = darkness()
    page.get_by_role("button", name="Light or dark").click()
    light = darkness()
    assert dark != light
    storage = page.get_by_role("navigation", name="Pages", exact=True).get_by_text("Storage")
    expect(storage).to_be_hidden()
    page.get_by_role("button", name="Menu").click()
    storage.click()
    page.wait_for_url("**/storage")
    assert darkness() == light
    page.keyboard.press("t")
    assert darkness() == dark
    page.evaluate("localStorage.clear()")


def test_a_run_has_curves_with_its_checkpoints_which_open_and_say_why_they_stay(see):
    page = see("run")
    plot = page.locator(".plot").first
    plot.locator(".scatterlayer .trace path.js-line").first.wait_for()
    assert plot.locator(".points path.point").count() == 10
    marked = plot.evaluate("e => e.data.find(t => t.meta === 'checkpoints')")
    assert {"star-triangle-up", "diamond"} <= set(marked["marker"]["symbol"])
    assert any("paper" in text for text in marked["text"])
    assert any("latest" in text and "newest" in text for text in marked["text"])
    table = page.locator("#checkpoints tbody")
    expect(table.locator("tr").first).to_contain_text("▲ latest")
    expect(table.locator("tr", has_text="paper")).to_contain_text("tagged 'paper'")
    expect(table.locator("tr", has_text="goes").first).to_be_visible()
    exact = table.locator("time").first
    assert re.search(r"\d{4}-\d\d-\d\dT", exact.get_attribute("title") or "")
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    seed = "9223372036854775807"  # with more bits than the numbers of JavaScript have
    assert seed in page.locator("main").inner_text().replace(",", "")
    page.get_by_role("button", name="Log").click()
    page.wait_for_function("() => document.querySelector('.plot').layout.yaxis.type === 'log'")
    page.get_by_label("Smoothing").fill("0.9")
    page.wait_for_function("() => document.querySelector('.plot').data.length === 3")
    raw, smooth = plot.evaluate("e => e.data.slice(0, 2).map(trace => trace.y)")
    assert np.abs(np.diff(smooth)).mean() < np.abs(np.diff(raw)).mean()
    last = plot.locator(".points path.point").last.bounding_box()
    assert last is not None
    page.mouse.click(last["x"] + last["width"] / 2, last["y"] + last["height"] / 2)
    page.wait_for_url("**/checkpoints/*/200")
    page = see("runs-together")
    page.locator(".plot").first.locator("path.js-line").nth(1).wait_for()
    assert page.locator("path.js-line").count() >= 4
    expect(page.locator(".legend a")).to_have_text(["gpt", "low rate"])
    loaded = page.evaluate(
        "performance.getEntriesByType('resource').filter(each => each.name.endsWith('/plotly.js'))"
        ".map(each => each.transferSize)"
    )
    assert loaded == [0], "the browser keeps the megabytes of the plots"


def test_lineage_says_what_changed_at_each_edge(see, small):
    page = see("/lineage")
    low = page.locator(".branch", has_text="low rate")
    expect(low).to_contain_text(re.compile(r"from 100: lr 0\.0003 → (0\.00001|1e-0?5)"))
    assert low.get_attribute("aria-level") == "2"
    assert page.locator(".branch", has_text="less data").get_attribute("aria-level") == "3"
    page.keyboard.press("/")
    page.keyboard.type("wide")
    expect(page.locator(".branch")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{small.find_run('wide').hash}")


def test_a_tensor_is_looked_at_in_the_tree(see):
    page = see("checkpoint")
    expect(page.get_by_placeholder("A tag")).to_have_count(0)
    page.get_by_label("Filter tensors").fill("model.")
    leaf = page.locator(".row[aria-selected]", has_text="weight").first
    name = leaf.get_attribute("title") or ""
    leaf.click()
    panel = page.get_by_label("The chosen tensor")
    expect(panel.locator("h3")).to_contain_text(name)
    expect(panel.locator("dl.stats")).to_contain_text("norm")
    panel.locator(".bars path").first.wait_for()
    panel.locator(".hm image").first.wait_for()
    page.get_by_role("button", name="Norms").click()
    expect(leaf.locator(".norm")).to_have_text(re.compile(r"^[\d.e−-]+"))
    panel.get_by_role("button", name="Close").click()
    expect(panel).to_contain_text("No tensor chosen")


def test_a_checkpoint_is_verified_tagged_and_noted(workshop, served, page):
    run = workshop.run("first", hp={})
    run.save(1, {"model": {"weight": np.ones(3)}})
    visit(page, f"{served(workshop, allow_edit=True)}/checkpoints/{run.hash}/1")
    tag, note = page.get_by_placeholder("A tag"), page.get_by_placeholder("A note")
    tags = page.locator(".mark", has_text="<b>paper")
    page.get_by_role("button", name="Verify now").click()
    expect(page.locator("#integrity")).to_contain_text("intact")
    tag.fill("<b>paper")
    tag.press("Enter")
    expect(tags).to_have_count(1)
    note.fill("It was the lr.")
    note.press("Enter")
    expect(page.locator(".notes")).to_contain_text("It was the lr.")
    page.get_by_role("button", name="remove the tag <b>paper").click()
    expect(tags).to_have_count(0)
    assert run.checkpoint(1).notes[0].text == "It was the lr."


def test_ten_thousand_tensors_do_not_freeze_the_tree(workshop, served, page):
    weights = {f"layers.{at}.weight": np.full(1, at, np.float32) for at in range(10_000)}
    with workshop.run("tall", hp={}) as run:
        run.save(1, {"model": weights})
    assert 0 < work_of(page, f"{served(workshop, allow_edit=True)}/checkpoints/{run.hash}/1") < 1
    expect(page.locator(".row.columns")).to_contain_text("10,000 tensors")
    assert page.locator(".row").count() < 400
    page.locator(".row.group").first.click()
    assert page.locator(".row").count() < 400
    page.locator(".row", has_text="more").first.click()
    page.get_by_label("Filter tensors").fill("layers.9999.")
    expect(page.locator(".row[aria-selected]")).to_have_count(1)


def test_two_checkpoints_are_picked_by_typing(see):
    page = see("/compare")
    expect(page.locator("main")).to_contain_text("Choose two checkpoints")
    for label, typed in (("Before", "gpt"), ("After", "low")):
        page.get_by_label(label, exact=True).fill(typed)
        page.get_by_label(label, exact=True).press("Enter")
        settle(page)
    expect(page.locator("main")).to_contain_text("Hyperparameters")
    page.get_by_label("Before: step").select_option(index=1)
    page.wait_for_url("**before=*%40180*after=*")
    page.go_back()
    page.wait_for_url("**before=*%40200*after=*")


def test_what_changed_most_comes_first_and_opens_as_three_histograms(see):
    page = see("compare")
    changed, parts = page.locator("tr[data-name]"), page.locator(".switch button")
    first = changed.first.get_attribute("data-name")
    parts.filter(has_text="model").click()
    names = changed.evaluate_all("all => all.map(e => e.dataset.name.split('.')[0])")
    assert set(names) == {"model"}
    parts.filter(has_text="All").click()
    assert changed.first.get_attribute("data-name") == first
    changed.first.focus()
    page.keyboard.press("Enter")
    for side in ("Before", "After", "Difference"):
        expect(page.locator(".aside")).to_contain_text(side)


def test_storage_says_what_would_go_and_an_error_can_be_tried_again(see, page, watch):
    watch.expect("422")
    said = '{"error": {"kind": "DamagedFile", "message": "the index is <i>damaged</i>"}}'
    page.route("**/api/v1/storage", lambda route: route.fulfill(status=422, body=said))
    main = see("/storage").locator("main")
    expect(page.get_by_role("alert").last).to_contain_text("the index is <i>damaged</i>")
    page.unroute("**/api/v1/storage")
    page.get_by_role("button", name="Try again").click()
    for text in ("By run and part", "Saved by dedup", "the latest of its run"):
        expect(main).to_contain_text(text)
    goes = page.locator("section", has_text="What gc would free")
    goes.locator("a[href*='/checkpoints/']").first.click()
    page.wait_for_url("**/checkpoints/**")
    expect(main).to_contain_text("goes with the next gc")


def test_files_are_walked_down_to_a_tensor_and_a_mesh(see):
    page = see("/files")
    page.get_by_role("link", name="weights.safetensors").click()
    page.wait_for_url("**path=weights.safetensors")
    settle(page)
    page.locator(".row[aria-selected]").first.click()
    page.get_by_label("The chosen tensor").locator("dl.stats").wait_for()
    page = see("mesh")
    canvas = page.locator("canvas")
    colours, bare = canvas.evaluate(
        "c => { const all = new Uint32Array(c.getContext('2d')"
        ".getImageData(0, 0, c.width, c.height).data.buffer);"
        " return [new Set(all).size, all.filter(each => each === 0).length / all.length]; }"
    )
    assert colours > 10
    assert bare < 0.1, "the blocks are not filled"
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    expect(page.locator(".mesh")).to_contain_text(re.compile(r"Level \d\s*origin"))
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator(".mesh .hm image").wait_for()
