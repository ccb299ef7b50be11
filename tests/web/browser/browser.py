"""The dashboard as people see it: the real server, and a real browser that forgives nothing."""

import asyncio
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvicorn
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from standfast import Store
from standfast.web.app import make_app

ELSEWHERE = "attacker.example"
"""A name that the browser finds on this machine, as after a DNS rebinding."""
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"),
    *("--disable-component-update", "--disable-sync"),
    f"--host-resolver-rules=MAP {ELSEWHERE} 127.0.0.1, MAP * ~NOTFOUND, "
    "EXCLUDE 127.0.0.1, EXCLUDE localhost",
]
DESK = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
LONGEST_WAIT = 60.0
"""Seconds after which a page hangs; on a busy machine it may well be slow."""
expect.set_options(timeout=LONGEST_WAIT * 1000)
OBSERVED = """
window.__shift = 0; window.__shifted = [];
new PerformanceObserver(list => { for (const entry of list.getEntries())
  if (!entry.hadRecentInput) {
    window.__shift += entry.value;
    for (const { node } of entry.sources) window.__shifted.push(
      node ? `${node.nodeName}.${node.className || node.parentNode?.className || ''}` : '?');
  }
}).observe({ type: 'layout-shift', buffered: true });
const { setTimeout, clearTimeout } = window;
window.__timers = new Set();
window.setTimeout = (action, delay = 0, ...given) => {
  const timer = setTimeout(() => { __timers.delete(timer); action(...given); }, delay);
  if (delay <= 500) __timers.add(timer);
  return timer;
};
window.clearTimeout = timer => { __timers.delete(timer); clearTimeout(timer); };
"""
"""Runs before all else on each page: what people would feel is added up, and timers are known."""
_IDLE = """async () => {
  for (let idle = 0; idle < 4; idle += 1) {
    await new Promise(done => requestIdleCallback(() => requestAnimationFrame(done)));
    if (__timers.size || [...document.querySelectorAll('[aria-busy=true]')].some(element => {
      const box = element.getBoundingClientRect();
      return box.width && box.bottom > 0 && box.top < innerHeight; })) idle = -1;
  } return true; }"""
"""Waits until all that can be seen of a page is there, and it has had nothing to do for a while."""


def chromium() -> str:
    """The browser; without one the tests fail, since what they show would be unknown."""
    found = shutil.which("chromium")
    if found is None:
        pytest.fail("there is no `chromium` to test the dashboard in: `make packages` installs it")
    return found


@dataclass
class Server:
    """A dashboard that is being served."""

    url: str
    """Without a slash at its end, and without a token."""
    stop: Callable[[], None]


@dataclass
class Program(Server):
    """A `standfast ui` that is running."""

    process: subprocess.Popen[str]
    log: Path


def serve(place: Path, port: int = 0, **options: Any) -> Server:
    """Serve the dashboard of a store from a thread, as `standfast ui` does from a program.

    Options are those of `make_app`. A folder `files` in that of the store is shown too.
    """
    files = place / "files"
    app = make_app(Store(place), files=files if files.is_dir() else None, **options)
    listening = socket.create_server(("127.0.0.1", port), backlog=128)
    quiet = {"log_level": "critical", "access_log": False, "lifespan": "off", "ws": "none"}
    server = uvicorn.Server(uvicorn.Config(app, timeout_graceful_shutdown=2, **quiet))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()

    def stop() -> None:
        server.should_exit = True
        app.state.site.watch.end()
        thread.join(LONGEST_WAIT)

    return Server(f"http://127.0.0.1:{listening.getsockname()[1]}", stop)


def start(place: Path, log: Path, *options: str) -> Program:
    """Start the program on a free port; returns when it answers."""
    command = [sys.executable, "-c", "from standfast.cli import main; main()", "ui", place]
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--no-open", "--port", "0", *options],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def stop() -> None:
        process.terminate()
        try:
            process.wait(60)
        finally:
            process.kill()

    end = time.monotonic() + LONGEST_WAIT
    while process.poll() is None and time.monotonic() < end:
        found = re.search(r"https?://[^\s/]+:\d+", log.read_text())
        if found:
            return Program(found[0], stop, process, log)
        time.sleep(0.02)
    stop()
    pytest.fail(f"standfast ui did not start: {log.read_text()}")


@dataclass
class Watch:
    """What must not happen on a page, unless the test said that it would."""

    origins: set[str] = field(default_factory=set)
    """Where requests may go."""
    problems: list[str] = field(default_factory=list)
    allowed: list[re.Pattern[str]] = field(default_factory=list)
    pending: set[Any] = field(default_factory=set)
    """Requests that were not answered yet, but for those that wait for news."""
    answered: int = 0

    def expect(self, pattern: str) -> None:
        """Let pass what the pattern is found in: `404 .*/runs/none`, `console error: .*refused`."""
        self.allowed.append(re.compile(pattern))

    def report(self, problem: str) -> None:
        if not any(pattern.search(problem) for pattern in self.allowed):
            self.problems.append(problem)

    def is_own(self, url: str) -> bool:
        parts = urlsplit(url)
        own = f"{parts.scheme}://{parts.netloc}" in self.origins
        return own or parts.scheme in ("data", "blob", "about")

    def attach(self, context: BrowserContext) -> None:
        """Watch all pages of a context.

        Nothing can leave: the browser finds no other machine. Requests are not stopped on their
        way, since browsers that are stopped so keep nothing, and load everything again.
        """
        for event, action in self._listeners.items():
            context.on(event, action)  # type: ignore[call-overload]

    def detach(self, context: BrowserContext) -> None:
        for event, action in self._listeners.items():
            context.remove_listener(event, action)

    @property
    def _listeners(self) -> dict[str, Any]:
        return {
            "request": self._on_request,
            "requestfinished": self._on_end,
            "requestfailed": self._on_end,
            "response": self._on_response,
            "page": self._attach_page,
        }

    def _attach_page(self, page: Page) -> None:
        page.on("console", self._on_console)
        page.on("pageerror", lambda error: self.report(f"exception: {error}"))
        page.on("crash", lambda _: self.report("the page crashed"))
        page.on("dialog", self._on_dialog)
        page.on("websocket", lambda socket: self.report(f"websocket {socket.url}"))
        page.on("download", lambda download: self.report(f"download {download.url}"))
        page.on("popup", lambda popup: self.report(f"popup {popup.url}"))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning", "assert"):
            place = message.location.get("url", "")
            self.report(f"console {message.type}: {message.text} ({place})")

    def _on_dialog(self, dialog: Any) -> None:
        self.report(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Any) -> None:
        if not self.is_own(request.url):
            self.report(f"request elsewhere: {request.url}")
        elif "wait=" not in request.url:
            self.pending.add(request)

    def _on_end(self, request: Any) -> None:
        self.pending.discard(request)
        self.answered += 1

    def _on_response(self, response: Any) -> None:
        if response.status >= 400:
            self.report(f"{response.status} {response.request.method} {response.url}")


def settle(page: Page) -> None:
    """Wait until a page has all that it asked for, or was about to ask for, and has shown it."""
    watch: Watch = page.watch  # type: ignore[attr-defined]
    answered = -1
    while watch.pending or answered != watch.answered:  # an answer is shown a moment later
        answered = watch.answered
        page.wait_for_function(_IDLE)


def visit(page: Page, url: str) -> None:
    """Go to a page of the dashboard, and wait until all of it is there."""
    page.goto(url, wait_until="load")
    settle(page)


def work_of(page: Page, url: str) -> float:
    """Visit a page; the seconds of the processor that it took, however busy the machine is."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    visit(page, url)
    found = session.send("Performance.getMetrics")["metrics"]
    session.detach()
    return next(each["value"] for each in found if each["name"] == "TaskDuration")


def check_sizes(page: Page, url: str, sizes: Iterable[Any] = (PHONE, DESK)) -> None:
    """Visit a page on a phone and at a desk, which it must fit, and where it must not jump."""
    for size in sizes:
        page.set_viewport_size(size)
        visit(page, url)
        check_fit(page, f"{url}, {size['width']} wide,")
        check_shift(page, url)


def check_fit(page: Page, what: str) -> None:
    """The document is not wider than the window."""
    too_wide = page.evaluate(
        """() => { const root = document.documentElement;
        if (root.scrollWidth <= root.clientWidth) return [];
        const is_clipped = element => { for (let e = element.parentElement; e; e = e.parentElement)
          if (e !== root && e !== document.body && getComputedStyle(e).overflowX !== 'visible')
            return true; return false; };
        return [`${root.scrollWidth} > ${root.clientWidth}`, ...[...document.querySelectorAll('*')]
          .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1 && !is_clipped(e))
          .map(e => `${e.tagName}.${e.className}#${e.id}`).slice(0, 8)]; }"""
    )
    assert not too_wide, f"{what} is wider than its window: {too_wide}"


def check_shift(page: Page, what: str, most: float = 0.1) -> None:
    """What was shown stayed where it was while the rest came."""
    shift = page.evaluate("window.__shift")
    assert shift < most, f"{what} jumped by {shift:.2f}: {page.evaluate('window.__shifted')}"


class Browsing:
    """One browser for all tests of a process."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._shared: BrowserContext | None = None
        self._loop: Any = None

    @contextmanager
    def context(self, **options: Any) -> Iterator[BrowserContext]:
        """A context that knows nothing of others."""
        with self._at_work():
            context = self._new_context(**options)
            try:
                yield context
            finally:
                context.close()

    @contextmanager
    def page(self, watch: Watch) -> Iterator[Page]:
        """A page in the context of all tests: what it has loaded once need not come again."""
        with self._at_work():
            self._shared = self._shared or self._new_context(viewport=DESK)
            watch.attach(self._shared)
            page = self._shared.new_page()
            page.watch = watch  # type: ignore[attr-defined]
            try:
                yield page
            finally:
                page.close()
                watch.detach(self._shared)

    def _new_context(self, **options: Any) -> BrowserContext:
        if self._browser is None:
            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(
                executable_path=chromium(), args=ARGUMENTS
            )
            self._loop = asyncio._get_running_loop()
        # A page with an animation is drawn again and again for as long as it is open.
        context = self._browser.new_context(reduced_motion="reduce", **options)
        context.set_default_timeout(LONGEST_WAIT * 1000)
        context.add_init_script(OBSERVED)
        return context

    @contextmanager
    def _at_work(self) -> Iterator[None]:
        """The loop of Playwright stays that of the thread when it is not at work, and nobody else
        could run one: it is put aside between tests.
        """
        asyncio._set_running_loop(self._loop)
        try:
            yield
        finally:
            asyncio._set_running_loop(None)

    def close(self) -> None:
        with self._at_work():
            if self._browser is not None:
                self._browser.close()
            if self._playwright is not None:
                self._playwright.stop()
