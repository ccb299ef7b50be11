"""The example for single files finds what it changed and what it damaged."""

from __future__ import annotations

from pathlib import Path

from tests.examples.programs import run


def test_it_finds_the_change_and_the_damage(tmp_path: Path) -> None:
    loaded, changed, damaged = run("files", tmp_path / "folder").splitlines()
    assert loaded == "step 100, ['embedding', 'head'], rows (10, 64)"
    assert changed == "changed: ['head']"
    assert "tensor 'head' is damaged" in damaged
