"""The formats as targets of the fuzzer, one file each."""

from tests.fuzz.target import Target
from tests.fuzz.targets import npz, oxck, safetensors, sunc, tenzor, torch

TARGETS: dict[str, Target] = {
    module.TARGET.name: module.TARGET for module in (safetensors, tenzor, oxck, sunc, torch, npz)
}
"""By the names of the formats."""
