"""A page elsewhere can neither read the dashboard nor change anything by it."""

import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from playwright.sync_api import Page

from tests.kit.cases import kept
from tests.kit.sites import Site
from tests.web import stores
from tests.web.browser.browser import ELSEWHERE, Browsing
from tests.web.conftest import Serve, Shown

ATTACK = """<!doctype html><link rel="icon" href="data:,"><title>elsewhere</title><script>
const url = new URLSearchParams(location.search).get('url');
const run = new URLSearchParams(location.search).get('run');
window.read = [];
const note = (how, text) => { if (text) window.read.push([how, String(text).slice(0, 200)]); };
const tried = (how, promise) => promise.then(text => note(how, text), () => {});
const paths = ['/', '/api/v1/store', '/api/v1/runs', `/runs/${run}`, `/api/v1/runs/${run}`];
const body = JSON.stringify({ name: 'pwned', tag: 'pwned', text: 'pwned' });
const targets = [
  ['POST', `/api/v1/runs/${run}/name`], ['POST', `/api/v1/checkpoints/${run}/100/tags`],
  ['POST', `/api/v1/checkpoints/${run}/100/notes`],
  ['DELETE', `/api/v1/checkpoints/${run}/100/tags/paper`],
];
const ways = [];
for (const path of paths) {
  for (const mode of ['cors', 'no-cors'])
    for (const credentials of ['omit', 'include'])
      ways.push(tried(`fetch ${mode}`, fetch(url + path, { mode, credentials })
        .then(answer => answer.text())));
  ways.push(tried('fetch with the header', fetch(url + path, { headers: { 'X-Standfast': '1' } })
    .then(answer => answer.text())));
  for (const tag of ['script', 'img', 'iframe', 'embed', 'link', 'video'])
    ways.push(new Promise(done => {
      const element = document.createElement(tag);
      element.onload = element.onerror = () => {
        try { note(tag, element.contentDocument?.body?.innerText); } catch {}
        if (tag === 'img') note('img', element.naturalWidth || '');
        try { if (element.sheet) note('css', element.sheet.cssRules.length || ''); } catch {}
        done();
      };
      element.rel = 'stylesheet';
      element.src = element.href = url + path;
      document.documentElement.append(element);
      setTimeout(done, 1500);
    }));
}
for (const [method, path] of targets) {
  for (const type of ['text/plain', 'application/json', 'application/x-www-form-urlencoded'])
    for (const mode of ['cors', 'no-cors'])
      for (const extra of [{}, { 'X-Standfast': '1' }])
        try {
          ways.push(tried(`${method} ${mode}`, fetch(url + path, {
            method, mode, body, headers: { 'Content-Type': type, ...extra },
          }).then(answer => answer.text())));
        } catch {}
  navigator.sendBeacon(url + path, body);
  const frame = document.createElement('iframe');
  frame.name = `frame ${path}`;
  document.documentElement.append(frame);
  for (const enctype of ['text/plain', 'application/x-www-form-urlencoded',
                         'multipart/form-data']) {
    const form = document.createElement('form');
    Object.assign(form, { method: 'post', action: url + path, enctype, target: frame.name });
    const field = document.createElement('input');
    field.name = '{"name": "pwned", "tag": "pwned", "text": "pwned", "rest": "';
    field.value = '"}';
    form.append(field);
    document.documentElement.append(form);
    form.submit();
  }
}
Promise.allSettled(ways).then(() => { window.done = true; });
</script>"""
RENAME = """async run => (await fetch(`/api/v1/runs/${run}/name`, { method: 'POST',
headers: { 'X-Standfast': '1', 'Content-Type': 'application/json' },
body: JSON.stringify({ name: `pwned ${Math.random()}` }) })).status"""
"""What the dashboard's own pages do, in JavaScript."""


class Target(NamedTuple):
    """A dashboard that may be written with, and the run to write about."""

    url: str
    place: Path
    run: str

    @property
    def state(self) -> str:
        """A digest of all that edits would change."""
        files = sorted(self.place.glob("checkpoints/models/*/*.json"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


@pytest.fixture
def target(shown: Shown, served: Serve, tmp_path: Path) -> Target:
    small, place = shown(stores.small), tmp_path / "target"
    shutil.copytree(Path(small.url).parent, place)
    return Target(served(place, allow_edit=True), place, small.find_run("gpt").hash)


@pytest.fixture
def site() -> Iterator[Site]:
    with Site({"/": ATTACK}) as site:
        yield site


@pytest.fixture
def victim(browsing: Browsing) -> Iterator[Page]:
    """A page that may go anywhere on this machine, and whose errors are expected."""
    with browsing.context() as context:
        yield context.new_page()


@pytest.mark.parametrize("host", kept(["127.0.0.1", "localhost", ELSEWHERE], "127.0.0.1"))
def test_a_page_elsewhere_reads_and_changes_nothing(host, target, site, victim):
    before = target.state
    victim.goto(target.url)  # as somebody has who has it open
    victim.goto(f"http://{host}:{site.port}/?url={target.url}&run={target.run}")
    victim.wait_for_function("window.done")
    victim.wait_for_load_state("networkidle")
    assert victim.evaluate("window.read") == []
    assert not any("low rate" in frame.content() for frame in victim.frames), "it was framed"
    assert target.state == before
    victim.goto(f"{target.url}/lineage")
    assert victim.evaluate(RENAME, target.run) == 200, "the dashboard itself may edit"
    assert target.state != before
    # What was tried is real: of its own server, the page reads all it asks for.
    site.pages["/api/v1/store"] = "secret"
    victim.goto(f"{site.url}/?url={site.url}&run={'0' * 24}")
    victim.wait_for_function("window.done")
    read = {how for how, text in victim.evaluate("window.read") if text == "secret"}
    assert {"fetch cors", "fetch with the header", "iframe"} <= read
    assert any(path.endswith("/tags/paper") for path in site.asked)
