"""The tests, in the folders of the package; `CONTRIBUTING.md` says which to run."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "tests" / "formats" / "golden"
WEIGHTSLAB = ROOT / "tests" / "data" / "weightslab_2.0_root"
"""A root that weightslab 2.0 wrote."""


def python_path() -> str:
    """PYTHONPATH for a program that a test starts: the tests, and what this process was given.

    What is tested may be a copy of the package, which the program must import too.
    """
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
