"""All mutants, in the order in which they are tried."""

from __future__ import annotations

from typing import Final

from tests.mutants.formats import FORMATS
from tests.mutants.mutant import Mutant
from tests.mutants.programs import PROGRAMS
from tests.mutants.saving import SAVING
from tests.mutants.stores import STORES
from tests.mutants.training import TRAINING

MUTANTS: Final[tuple[Mutant, ...]] = (*SAVING, *FORMATS, *STORES, *TRAINING, *PROGRAMS)
