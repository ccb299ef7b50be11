"""One target, guided by the coverage of what it reads: `python -m tests.fuzz.campaign NAME …`.

The further arguments are libFuzzer's: a folder of inputs, and its options.
"""

import os
import sys
import zlib
from random import Random

import atheris

# What is measured; it has to be imported here first, and all of it.
MEASURED = ["formats", "files.layout", "files.forms", "store.schema", "store.tree", "store.load"]
with atheris.instrument_imports(include=[f"standfast.{each}" for each in MEASURED]):
    import standfast
    from standfast.formats import FORMATS
    from standfast.store.load import reading
    from standfast.store.schema import decoder

from tests.fuzz.records import subject_named  # noqa: E402
from tests.fuzz.run import memory_folder  # noqa: E402

assert standfast, (FORMATS, reading, decoder)


def main() -> None:
    """Fuzz until libFuzzer's options say that it is enough."""
    name = sys.argv.pop(1)
    with memory_folder() as folder:
        subject = subject_named(name, folder)
        seeds = subject.seeds()

        def attempt(data: bytes) -> None:
            hashed = zlib.crc32(data)
            subject.attempt(data, Random(hashed), hashed)

        def mutate(data: bytes, most: int, seed: int) -> bytes:
            random = Random(seed)
            if random.random() < 0.3:
                data = atheris.Mutate(data, most)
            return subject.mutate(random, data, seeds)[:most]

        # libFuzzer starts itself again to merge.
        again = folder / "again"
        again.write_text(f'#!/bin/sh\nexec {sys.executable} -m tests.fuzz.campaign {name} "$@"\n')
        again.chmod(0o700)
        sys.argv[0] = str(again)
        atheris.Setup(sys.argv, attempt, custom_mutator=mutate)
        atheris.Fuzz()


if __name__ == "__main__":
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    os.environ.setdefault("PYTHONHASHSEED", "0")
    main()
