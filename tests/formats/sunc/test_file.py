"""The `.sunc` format: golden files, what is written and read back, and what is refused."""

import math
import struct
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast import errors
from standfast.formats.sunc import file as sunc
from standfast.tensors import TensorSpec
from tests.formats.builders import reader_of
from tests.formats.sunc.builders import (
    PAYLOAD_END,
    Array,
    file_of,
    golden,
    header,
    index_of,
    sealed_file,
    section_bytes,
    sections_of,
    small_metadata,
    small_sections,
    tree,
    what_the_original_reads,
    whole_files,
    written,
)

INVALID = 2**64 - 1

SECTIONS = ["blocks", "field_slots", "storage", "free_slots"]


def test_the_scalar_golden_file_holds_what_was_saved():
    data = golden("scalar")
    keys = "nd block_size block_volume block_bytes field_bytes blocks_len field_slots_len "
    keys += "arena_max_blocks arena_free_count base_spacing bits_per_dim max_level"
    numbers = [2, 4, 16, 40, 8, 3, 3, 8, 5, 0.5, 4, 6]
    assert index_of(data).metadata == dict(zip(keys.split(), numbers, strict=True))
    sections = sections_of(data)
    assert list(sections) == SECTIONS
    blocks = sections["blocks"]
    assert blocks["origin"].tolist() == [[0, 0], [4, 0], [8, 0]]
    assert blocks["level"].tolist() == [0, 1, 1]
    assert blocks["spacing"].tolist() == [0.5, 0.25, 0.25]
    assert blocks["block_index"].tolist() == [0, INVALID, 2]
    assert sections["field_slots"].tolist() == [0, 1, 2]
    storage = sections["storage"]
    assert (storage.dtype, storage.shape) == (np.float64, (8, 16, 1))
    for block in range(3):
        assert storage[block, :, 0].tolist() == [(1000 * block + i) * 0.1 for i in range(16)]
    assert storage[3, :, 0].tolist() == [i * 0.25 for i in range(16)]
    assert sections["free_slots"][:5].tolist() == [7, 6, 5, 4, 3]


@pytest.mark.parametrize("name", ["scalar", "u1", "mixed", "vector"])
def test_a_golden_file_is_written_again_byte_for_byte(name):
    data = golden(name)
    metadata = index_of(data).metadata
    assert index_of(data).digests is None
    assert written(sections_of(data), metadata, extras=False) == data
    # The original sees nothing of our extension.
    ours = written(sections_of(data), {**metadata, "step": 3})
    assert ours.startswith(data)
    assert what_the_original_reads(ours) == what_the_original_reads(data)
    assert index_of(ours).metadata == {**metadata, "step": 3}
    assert section_bytes(ours, index_of(ours)) == section_bytes(data, index_of(data))


def test_the_padding_of_blocks_is_kept_through_copies():
    sections = small_sections()
    assert sections["blocks"]["padding"].tobytes() == b"padding" * 2
    sections["blocks"] = sections["blocks"][::-1].copy()[::-1]
    assert written(sections, small_metadata(), extras=False) == file_of()


def trees() -> st.SearchStrategy[tuple[dict[str, Array], dict[str, Any]]]:
    return st.builds(
        tree,
        seed=st.integers(0, 2**32),
        nd=st.integers(1, 3),
        blocks=st.integers(0, 3),
        slots=st.integers(0, 3),
        field=st.sampled_from(["f8", "2f8", "f4", "3u1", "7u1", "0f8"]),
        rest=st.sampled_from(["", "extension", "U(1)", "SU(2)", "SU(3)"]),
    )


@settings(deadline=None, max_examples=60)
@given(trees(), st.booleans(), st.randoms())
def test_sections_come_back_as_they_were_saved(given, extras, order):
    sections, metadata = given
    data = written(sections, metadata, extras)
    shuffled = list(sections.items())
    order.shuffle(shuffled)
    assert written(dict(shuffled), metadata, extras) == data
    back = sections_of(data)
    assert list(back) == list(sections)
    for name, array in sections.items():
        assert (back[name].dtype, back[name].shape) == (array.dtype, array.shape)
        assert back[name].tobytes() == array.tobytes()
    index = index_of(data)
    assert {key: index.metadata[key] for key in metadata} == metadata
    assert written(back, index.metadata, extras) == data
    digests = [blake3(part).digest() for part in section_bytes(data, index).values()]
    assert index.digests == (b"".join(digests) if extras else None)
    assert all(array.flags.aligned for array in back.values())
    unchecked = index_of(data, verify=False)
    assert (unchecked.digests, unchecked.rows) == (None, index.rows)


def test_our_extension_has_the_bytes_of_its_page():
    assert written(small_sections(), {**small_metadata(), "name": "run"}) == sealed_file(name="run")


def test_chunks_of_large_sections_follow_the_order_of_the_file():
    sections, metadata = tree(0, nd=1, blocks=1, slots=600_000, field="f8", rest="")
    data = written(dict(reversed(sections.items())), metadata)
    chunk = 16 << 20
    expected = [
        blake3(part[start : start + chunk]).digest()
        for part in section_bytes(data, index_of(data)).values()
        for start in range(0, len(part), chunk)
    ]
    assert len(expected) == 5
    assert index_of(data).digests == b"".join(expected)


def test_links_of_no_blocks_have_no_group():
    sections, metadata = tree(0, nd=2, blocks=0, slots=1, field="f8", rest="SU(2)")
    assert sections_of(written(sections, metadata))["links"].shape == (0, 32, 1, 1)
    sections["links"] = np.zeros((0, 32, 2, 2), np.complex128)
    with pytest.raises(errors.UnsupportedShape, match="'links'"):
        written(sections, metadata)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "uint8", "bfloat16"])
def test_storage_of_any_dtype_is_saved_once_its_size_is_named(dtype):
    storage = TensorSpec(dtype, (3, 4, 8))
    sections = [("field_slots", TensorSpec("uint64", (2,))), ("storage", storage)]
    sections += [
        ("blocks", TensorSpec("uint8", (2, 32))),
        ("free_slots", TensorSpec("uint64", (3,))),
    ]
    site = storage.nbytes // 12
    layout = sunc.layout(sections, small_metadata(field_bytes=site), extras=False)
    assert layout.body[0] == header(field_bytes=site)
    with pytest.raises(errors.UnsupportedDType, match=f"'storage'.*field_bytes={site}"):
        sunc.layout(sections, small_metadata(), extras=False)


def test_of_a_stream_the_payload_alone_is_read():
    index = sunc.read_index(reader_of(sealed_file()), None, sunc.Options())
    assert (index.end, index.digests) == (PAYLOAD_END, None)
    assert list(index.rows) == SECTIONS


@pytest.mark.parametrize("own", [False, True])
def test_a_foreign_extension_is_kept(own):
    for rest in (b"x", b"LIN", b"LINX and more", b"?" * 200, b"HFDh", *[b"HFDG and more"] * own):
        sections = small_sections() | {"extension": np.frombuffer(rest, np.uint8)}
        data = written(sections, small_metadata(), extras=own)
        assert data.startswith(file_of(rest))
        assert sections_of(data)["extension"].tobytes() == rest


@pytest.mark.parametrize(
    "rest", [b"HFDG", b"not ours HFDG", b"HFDG" + bytes(8) + b"{}" + bytes(8) + b"HFDG"]
)
def test_a_foreign_extension_that_looks_like_ours_is_opened_unchecked(rest):
    with pytest.raises(errors.StandfastError, match="HFDG"):
        index_of(file_of(rest))
    sections = sections_of(file_of(rest), verify=False)
    assert sections["extension"].tobytes() == rest


def lengths_that_open(data: bytes) -> list[int]:
    """The lengths at which a file can be cut and still be one."""
    opened = []
    for size in range(len(data)):
        try:
            index_of(data[:size])
        except errors.StandfastError:
            continue
        opened.append(size)
    return opened


def test_a_cut_is_found_unless_the_format_cannot_tell():
    assert lengths_that_open(whole_files()["plain"]) == [PAYLOAD_END]
    data = whole_files()["linked"]
    tag_cut = [PAYLOAD_END, *range(PAYLOAD_END + 1, PAYLOAD_END + 4)]
    links_of_another_group = PAYLOAD_END + 20 + 8 * 16
    assert lengths_that_open(data) == [*tag_cut, links_of_another_group, data.index(b"HFDG")]


def test_our_extension_is_not_read_if_it_is_too_long():
    size, reads = 1 << 40, []
    length = struct.pack("<Q", size - PAYLOAD_END - 24)

    def read(start: int, count: int) -> bytes:
        reads.append(count)
        if start == size - 12:
            return length + b"HFDG"
        return (file_of(b"HFDG") + length)[start : start + count]

    with pytest.raises(errors.StandfastError, match="100,000,000"):
        sunc.read_index(read, size, sunc.Options())
    assert max(reads) == 92


def without(name: str) -> dict[str, Array]:
    return {key: array for key, array in small_sections().items() if key != name}


LINKS = np.zeros((2, 4, 1, 1), np.complex128)
SHAPE, DTYPE = errors.UnsupportedShape, errors.UnsupportedDType
MISFITS: list[tuple[str, Array, type[errors.StandfastError]]] = [
    ("weight", np.zeros(1), errors.UnsupportedTensor),
    *(
        ("field_slots", np.zeros(2, np.int64), DTYPE),
        ("field_slots", np.zeros(3, np.uint64), SHAPE),
    ),
    ("free_slots", np.zeros((3, 1), np.uint64), SHAPE),
    *(
        ("blocks", np.zeros(2, sunc.block_dtype(2)), SHAPE),
        ("blocks", np.zeros(64, np.uint8), SHAPE),
    ),
    *(("blocks", np.zeros((2, 4)), DTYPE), ("storage", np.zeros((3, 4, 4), np.float16), DTYPE)),
    *(("storage", np.zeros(12), SHAPE), ("storage", np.zeros((3, 5, 1)), SHAPE)),
    *(("links", np.zeros((2, 4, 1, 2)), DTYPE), ("links", LINKS[:1], SHAPE)),
    *(("links", np.zeros((2, 4, *shape), "c16"), SHAPE) for shape in ((2, 3), (65, 65))),
    *(("extension", np.zeros(0, np.uint8), SHAPE), ("extension", np.zeros(2), DTYPE)),
]
REFUSED_SECTIONS = [
    *((small_sections() | {name: array}, error) for name, array, error in MISFITS),
    *((without(name), errors.UnsupportedTensor) for name in ("blocks", "storage")),
    (
        small_sections() | {"links": LINKS, "extension": np.zeros(1, np.uint8)},
        errors.UnsupportedTensor,
    ),
]


@pytest.mark.parametrize(("sections", "error"), REFUSED_SECTIONS)
def test_sections_that_do_not_fit_are_refused(sections, error):
    with pytest.raises(error) as refused:
        written(sections, small_metadata())
    assert type(refused.value) is error
    assert any(f"'{each}'" in str(refused.value) for each in (*sections, "blocks", "storage"))


WRONG_FIELDS = {"block_size": 6, "arena_free_count": 4, "max_level": 61, "block_volume": 5}
WRONG_FIELDS |= {"block_bytes": 40, "field_bytes": 16, "blocks_len": 3, "field_slots_len": 3}
WRONG_FIELDS |= {"arena_max_blocks": 4, "standfast.digest": "", "size": (1, 2), 3: "x"}  # type: ignore[dict-item]
REFUSED_METADATA: list[dict[Any, Any]] = [
    *({"nd": value} for value in (None, "1", True, 9, -1, 10**5000)),
    *({"base_spacing": value} for value in (1, math.inf)),
    *({key: value} for key, value in WRONG_FIELDS.items()),
    dict.fromkeys(small_metadata()),
]


def test_metadata_that_does_not_fit_is_refused(seams):
    for changes in REFUSED_METADATA:
        metadata = {k: v for k, v in (small_metadata() | changes).items() if v is not None}
        with pytest.raises(errors.RefusedMetadata):
            written(small_sections(), metadata)
    with pytest.raises(errors.RefusedMetadata, match="'step'"):
        written(small_sections(), {**small_metadata(), "step": 3}, extras=False)
    seams.bound("bytes of sunc metadata", 1000)
    with pytest.raises(errors.RefusedMetadata):
        written(small_sections(), {**small_metadata(), "text": "x" * 1000})
