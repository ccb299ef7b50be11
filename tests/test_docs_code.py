"""The Python in the README and in docs/ runs.

The blocks of a page run one after the other, in one namespace and one empty folder. A word after
```` ```python ```` leaves a block out: `gpu` and `cluster` name what it needs, and a `sketch` is
part of a program that only its reader has.
"""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT, python_path

BLOCK = re.compile(r"^```python *(.*)\n((?:.*\n)*?)```$", re.MULTILINE)
MARKS = {"gpu", "cluster", "sketch"}
PAGES = {
    str(page.relative_to(ROOT)): page.read_text()
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if page.parent.name != "decisions" and "```python" in page.read_text()
}

SHORTER = {"10_000": "200", "10_001": "201", "1000)": "100)", "1001)": "101)", "num_workers=4": "num_workers=1"}
"""What a page has, and what its test has instead, so that it takes less time."""

LONG = set()
"""Pages that take seconds."""

OWN_PROCESS = re.compile("mpi4py|orbax|init_process_group")
"""What must not be started in the process of all tests."""

SET_UP: dict[str, str] = {}
"""What a page takes for granted besides the prelude."""


def prelude() -> dict[str, Any]:
    """What the pages call by these names: a program that trains."""
    import torch
    from torch import nn

    import standfast

    torch.manual_seed(0)
    dataset = torch.randint(1500, (256, 4))
    model = nn.Sequential(OrderedDict(wte=nn.Embedding(1500, 4), head=nn.Linear(4, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    loader = standfast.ResumableLoader(dataset, batch_size=64, seed=1)
    batches = loader.forever()
    state = standfast.TrainingState(model=model, optimizer=optimizer, loader=loader)
    config = {"lr": 0.01}
    step = 100

    def train_step(batch: Any) -> float:
        optimizer.zero_grad()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    def validate() -> float:
        return model(dataset).square().mean().item()

    return locals()


def run_page(page: str, replaced: dict[str, str]) -> None:
    """Run its blocks in the current folder."""
    names = {"__name__": "__main__"} | prelude()
    exec(SET_UP.get(page, ""), names)
    for block in BLOCK.finditer(PAGES[page]):
        line = PAGES[page].count("\n", 0, block.start()) + 1
        code = block[2]
        for old, new in replaced.items():
            code = code.replace(old, new)
        try:
            if block[1]:
                continue
            if code.startswith(">>>"):
                test = doctest.DocTestParser().get_doctest(code, names, page, page, line)
                doctest.DebugRunner().run(test, clear_globs=False)
            else:  # a traceback has the lines of the page
                exec(compile("\n" * line + code, ROOT / page, "exec"), names)
        except BaseException as error:
            error.add_note(f"in the block at {page}:{line}")
            raise


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=[pytest.mark.long] * (page in LONG)) for page in PAGES]
)
def test_the_blocks_of_a_page_run(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    replaced = SHORTER | {"/mnt/": f"{tmp_path}/", "/data/": f"{tmp_path}/"}
    if '"s3://' in PAGES[page]:
        replaced["s3://bucket"] = request.getfixturevalue("bucket_url")
    if OWN_PROCESS.search(PAGES[page]):
        command = [sys.executable, "-W", "error", "-m", "tests.test_docs_code", page]
        environment = os.environ | {"PYTHONPATH": python_path()}
        subprocess.run(command, check=True, env=environment, timeout=120)
    else:
        run_page(page, replaced)


def test_a_block_that_does_not_run_says_why() -> None:
    marks = {block[1] for text in PAGES.values() for block in BLOCK.finditer(text)}
    assert marks <= MARKS | {""}


if __name__ == "__main__":
    run_page(sys.argv[1], SHORTER | {"/data/": f"{Path.cwd()}/"})
