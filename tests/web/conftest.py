"""Fixtures of the tests in a browser."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page

from standfast import Store
from tests.web import stores
from tests.web.browser.browser import Browsing, Server, Watch, serve, visit

Serve = Callable[..., str]
Shown = Callable[[Any], Store]
See = Callable[[str], Page]


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the stores lie that tests only read."""
    return tmp_path_factory.mktemp("shown")


@pytest.fixture
def shown(shared_folder: Path) -> Shown:
    """A store of a builder, made once for all tests: they must leave it as it is."""
    return lambda builder: stores.cached(builder, shared_folder)


@pytest.fixture
def small(shown: Shown) -> Store:
    """The store with everything."""
    return shown(stores.small)


@pytest.fixture(scope="session")
def servers() -> Iterator[dict[Any, Server]]:
    """Those of the stores that tests only read, which are started once."""
    running: dict[Any, Server] = {}
    yield running
    for server in running.values():
        server.stop()


@pytest.fixture
def served(servers: dict[Any, Server], shared_folder: Path, watch: Watch) -> Iterator[Serve]:
    """Serves a store, and gives the address; options are those of `serve`."""
    own: list[Server] = []

    def address(store: Store | Path, **options: Any) -> str:
        place = store if isinstance(store, Path) else Path(store.url).parent
        key = (place, *options)
        if not place.is_relative_to(shared_folder):
            server = serve(place, **options)
            own.append(server)
        else:
            server = servers.get(key) or servers.setdefault(key, serve(place, **options))
        watch.origins.add(server.url)
        return server.url

    yield address
    for server in own:
        server.stop()


@pytest.fixture
def watch() -> Watch:
    """What must not happen on the pages of this test, and what it expects."""
    return Watch()


@pytest.fixture(scope="session")
def browsing() -> Iterator[Browsing]:
    """The browser of this process, which starts with the first page."""
    started = Browsing()
    yield started
    started.close()


@pytest.fixture
def page(browsing: Browsing, watch: Watch) -> Iterator[Page]:
    """A page; the test fails if anything went wrong on it."""
    with browsing.page(watch) as page:
        yield page
        page.wait_for_timeout(0)  # what was reported meanwhile comes in
    assert watch.problems == []


@pytest.fixture
def see(small: Store, served: Serve, page: Page) -> See:
    """Visits a page of the store with everything, by its name in `stores.pages` or its path."""
    url, named = served(small), stores.pages(small)

    def visited(name: str) -> Page:
        visit(page, f"{url}{named.get(name, name)}")
        return page

    return visited


@pytest.fixture(scope="session")
def workshop(shared_folder: Path) -> Store:
    """A store into which tests save runs of their own; it is served with `allow_edit=True`."""
    return Store(shared_folder / "workshop")
