"""All malformed safetensors files: a table row for each way in which one can be wrong."""

from __future__ import annotations

from tests.formats.safetensors import malformed_header, malformed_metadata, malformed_tensors
from tests.formats.safetensors.builders import Case

CASES: tuple[Case, ...] = (
    *malformed_header.CASES,
    *malformed_tensors.CASES,
    *malformed_metadata.CASES,
)
