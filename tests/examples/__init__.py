"""The programs in `examples/`, which are no package: here they can be imported."""

import sys

from tests import ROOT

EXAMPLES = ROOT / "examples"
sys.path.append(str(EXAMPLES))
