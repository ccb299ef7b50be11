"""The Python in the README and in docs/ runs.

The blocks of a page run one after the other, in one namespace and one empty folder. A word after
```` ```python ```` leaves a block out: `gpu` and `cluster` name what it needs, and a `sketch` is
part of a program that only its reader has.
"""

import doctest
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch.distributed

from tests import ROOT, python_path
from tests.kit.cases import kept

BLOCK = re.compile(r"^```python *(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
MARKS = {"gpu", "cluster", "sketch"}
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page.parent.name != "decisions" and "```python" in page.read_text()
}

SHORTER = {
    "1000)": "300)",
    "1001)": "301)",
    "10_000": "200",
    "10_001": "201",
    "epochs(100)": "epochs(3)",
    "epochs(10)": "epochs(2)",
    "num_workers=4": "num_workers=0",
}
"""What a page has, and what its test has instead, to take less time."""

LONG = {
    *(page for page in PAGES if page.startswith("docs/coming-from/")),
    *("docs/jax.md", "docs/loader.md", "docs/parallel.md", "docs/ranks.md"),
}
"""Pages that take seconds: they import other frameworks, or start programs."""

OWN_PROCESS = re.compile(r"mpi4py|\bjax\b|orbax|os.environ")
"""What the process of all tests must not start."""

BEFORE = dict(
    re.findall(
        r"^## (.*)\n(?:.*\n)??```python\n((?:.*\n)*?)```$",
        (ROOT / "tests" / "docs_set_up.md").read_text(),
        re.MULTILINE,
    )
)
"""What pages take for granted."""


def blocks(page: str) -> list[tuple[int, str]]:
    """The line and the code of each block that runs."""
    text = PAGES[page]
    found = [(text.count("\n", 0, each.start()) + 1, each) for each in BLOCK.finditer(text)]
    return [(line, each[2]) for line, each in found if not each[1]]


def run_page(page: str, replaced: dict[str, str]) -> None:
    """Run its blocks in the current folder."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for line, code in [(0, BEFORE["Every page"] + BEFORE.get(page, "")), *blocks(page)]:
        file = ROOT / (page if line else "tests/docs_set_up.md")
        for old, new in replaced.items():
            code = code.replace(old, new)
        try:
            if code.startswith(">>>"):
                test = doctest.DocTestParser().get_doctest(code, names, page, page, line)
                doctest.DebugRunner(optionflags=doctest.ELLIPSIS).run(test, clear_globs=False)
            else:  # a traceback shows the lines of the page
                exec(compile("\n" * line + code, file, "exec"), names)
        except BaseException as error:
            error.add_note(f"in the block at {page}:{line}" if line else f"in the set-up of {page}")
            if isinstance(error, doctest.DocTestFailure):
                error.add_note(f"{error.example.source}gives\n{error.got}")
            raise


@pytest.mark.filterwarnings("ignore::standfast.errors.NotVerified")  # files of other programs
@pytest.mark.parametrize("page", kept(PAGES, *(page for page in PAGES if page not in LONG)))
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, request):
    monkeypatch.chdir(tmp_path)
    replaced = SHORTER | {"/mnt/": f"{tmp_path}/", "/data/": f"{tmp_path}/"}
    code = BEFORE.get(page, "") + "".join(code for _, code in blocks(page))
    if '"s3://' in code:
        replaced["s3://bucket"] = request.getfixturevalue("bucket_url")
    try:
        if OWN_PROCESS.search(code):
            command = [sys.executable, "-W", "error", "-m", "tests.test_docs_code", page]
            environment = os.environ | {"PYTHONPATH": python_path()}
            subprocess.run(command, check=True, env=environment, timeout=120)
        else:
            run_page(page, replaced)
    finally:
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def test_a_block_that_does_not_run_says_why():
    for page, text in PAGES.items():
        marks = [block[1] for block in BLOCK.finditer(text)]
        assert set(marks) <= MARKS | {""}, page
        assert len(marks) == text.count("```python"), page  # no block is overlooked
    assert set(BEFORE) - {"Every page"} <= set(PAGES), "what is set up is for a page"


if __name__ == "__main__":
    run_page(sys.argv[1], SHORTER | {"/data/": f"{Path.cwd()}/"})
