"""A real object store to test against, and a proxy before it that does harm."""

import tests.examples  # noqa: F401  (the server is one of the programs there)
