"""The tests, in the folders of the package; `CONTRIBUTING.md` says which to run."""

from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "formats" / "golden"
WEIGHTSLAB = ROOT / "tests" / "data" / "weightslab_2.0_root"
"""A root that weightslab 2.0 wrote."""
