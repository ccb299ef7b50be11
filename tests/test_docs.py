"""The pages: every link leads somewhere."""

import re
from pathlib import Path

import pytest

from tests import ROOT

PAGES = [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")


def _prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def _anchors(page: Path) -> set[str]:
    """What its headings can be linked by, as GitHub makes them."""
    heads = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    words = [re.sub(r"[^\w\- ]", "", head.lower().replace("`", "")) for head in heads]
    return {each.replace(" ", "-") for each in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_somewhere(page):
    for link in LINK.findall(_prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        assert not anchor or anchor in _anchors(target), link


def test_every_page_is_in_the_index():
    index = ROOT / "docs" / "README.md"
    linked = {(index.parent / link).resolve() for link in LINK.findall(index.read_text())}
    pages = [page for page in PAGES if page.parent.name not in ("decisions", ROOT.name)]
    assert {page for page in pages if page != index} <= linked


def test_every_test_that_a_page_names_exists():
    for page in PAGES:
        text = page.read_text()
        folder = ROOT / "".join(re.findall("are in `(tests/[\\w/]*)`", text))
        for path, name in re.findall(r"`([\w/]+\.py)::(\w+)", text):
            file = (ROOT if path.startswith("tests/") else folder) / path
            assert f"\ndef {name}(" in file.read_text(), f"{page.name}: {path}::{name}"
