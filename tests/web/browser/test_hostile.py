"""What a hostile store says is shown as text, and never done."""

from typing import Any
from urllib.parse import quote, urlencode

import pytest
from playwright.sync_api import Page

from standfast import Store
from tests.kit.cases import kept
from tests.web import stores
from tests.web.api.client import Api
from tests.web.browser.browser import settle, visit
from tests.web.conftest import Shown
from tests.web.stores import ATTACKS, ODDITIES

TEXTS = (*ATTACKS, *ODDITIES)


@pytest.fixture
def store(shown: Shown) -> Store:
    return shown(stores.hostile)


def test_all_that_a_store_says_is_text(store, served, page):
    first, second, *_ = _runs(store)
    turned = next(run.hash for run in store.runs() if "\u202e" in (run.name or ""))
    names = [store.open_run(run).name or "" for run in (turned, first, second)]
    logged = _with_log(store)
    for path, texts in {
        "/": ATTACKS,
        "/lineage": ATTACKS,
        "/storage": [],
        f"/runs/{turned}?with={first},{second},{logged}": [*names, "__proto__", "constructor"],
        f"/compare?before={first}@2&after={second}@2": [],
        f"/checkpoints/{turned}/2": ATTACKS,
    }.items():
        visit(page, f"{served(store)}{path}")
        _open_all(page)
        _check_shown(page, texts)
        _check_turns(page)
        _check_harmless(page)
    for text in ATTACKS:  # each tensor of the last page
        page.get_by_text(text, exact=False).last.click(force=True)
    settle(page)
    _check_harmless(page)


def test_every_tensor_and_metric_can_be_looked_at_whatever_its_name(store):
    api, run = Api(store), _runs(store)[0]
    for text in TEXTS:
        said = api(f"/tensor?{urlencode({'ref': f'{run}@2', 'name': f'model.{text}'})}")
        assert (said["name"], said["max"]) == (f"model.{text}", 11)
    metrics = api(f"/runs/{_with_log(store)}/metrics")["metrics"]
    assert metrics["constructor"]["all"] >= 49
    assert "__proto__" in metrics


def test_names_of_files_and_folders_are_text(store, served, page):
    visit(page, f"{served(store)}/files")
    _check_shown(page, [text.replace("/", "\u2215") for text in ATTACKS])
    _check_harmless(page)
    for name in ("<svg∕onload=window.__pwned=1>", "__proto__", "?q=1&page=2#part"):
        visit(page, f"{served(store)}/files")
        page.get_by_role("link", name=f"{name}.safetensors").click()
        _open_all(page)
        _check_shown(page, [ATTACKS[0]])
        _check_harmless(page)


@pytest.mark.parametrize("text", kept([ATTACKS[1], ATTACKS[2], "../etc/passwd\x00"], ATTACKS[1]))
def test_what_is_asked_for_comes_back_as_text(text, store, served, page, watch):
    watch.expect("^4[0-9][0-9] GET ")
    watch.expect("console error: Failed to load resource.* 4[0-9][0-9]")
    url, asked, run = served(store), quote(text, safe=""), _runs(store)[0]
    for path in (
        f"/?q={asked}&sort={asked}&metric={asked}",
        f"/runs/{asked}",
        f"/runs/{run}?with={asked}",
        f"/checkpoints/{asked}/{asked}",
        f"/checkpoints/{run}/2#{asked}",
        f"/compare?before={asked}&after={asked}",
        f"/files?path={asked}",
        f"/{asked}",
    ):
        visit(page, f"{url}{path}")
        _check_harmless(page)
        assert "Traceback" not in page.content()


def _runs(store: Store) -> list[str]:
    return sorted(run.hash for run in store.runs())


def _with_log(store: Store) -> str:
    return next(run.hash for run in store.runs() if run.name == ODDITIES[-1])


def _open_all(page: Page) -> None:
    """Open what can be opened, so that all of the text is there."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")
    settle(page)


def _check_shown(page: Page, texts: Any) -> None:
    shown = page.evaluate(
        "[document.body.innerText, ...[...document.querySelectorAll('[title], svg text, option')]"
        ".map(e => `${e.textContent} ${e.getAttribute('title')}`)].join('\\n')"
    )
    for text in texts:
        assert text in shown, f"{text!r} is not shown on {page.url}"


def _check_turns(page: Page) -> None:
    """After a mark that turns text round nothing comes in its line or box, or it is spelled out."""
    loose = page.evaluate(
        """() => { const found = [];
        const isolated = e => /isolate|plaintext/.test(getComputedStyle(e).unicodeBidi);
        const inline = e => getComputedStyle(e).display === 'inline';
        const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let node; (node = walker.nextNode());) {
          if (!node.data.includes('\u202e') || node.parentElement.closest('script'))
            continue;
          let box = node.parentElement;
          while (inline(box) && !isolated(box)) box = box.parentElement;
          const after = new Range();
          after.setStartAfter(node);
          after.setEndAfter(box.lastChild);
          if (after.toString().trim()) found.push(box.outerHTML.slice(0, 300));
        } return found; }"""
    )
    assert loose == [], page.url


def _check_harmless(page: Page) -> None:
    """Nothing was run, and nothing is there that could be."""
    assert page.evaluate("window.__pwned === undefined"), page.url
    page.evaluate(
        "document.querySelectorAll('*').forEach(e => ['mouseover', 'focus', 'load', 'error']"
        ".forEach(kind => e.dispatchEvent(new Event(kind))))"
    )
    found = page.evaluate(
        """() => [...document.querySelectorAll('*')].filter(e =>
          [...e.attributes].some(a => /^on/i.test(a.name)
            || (/href|src|action|data/.test(a.name) && /^\\s*javascript:/i.test(a.value)))
          || (e.tagName === 'SCRIPT' && !e.src && e.type !== 'application/json')
          || (e.tagName === 'IMG' && e.getAttribute('src') === 'x')
        ).map(e => e.outerHTML.slice(0, 200))"""
    )
    assert found == [], page.url
    assert page.evaluate("window.__pwned === undefined"), page.url
