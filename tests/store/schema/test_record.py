"""A record comes back as it was written, and nothing malformed gets past its reader."""

import json

import msgspec
import numpy as np
import pytest
from blake3 import blake3

import standfast
from standfast import errors
from standfast.files.digests import CHUNK, DIGEST
from standfast.store.schema import record as records
from standfast.store.schema.decoder import decode, decode_head
from standfast.store.schema.record import DataFile, Head, Part, Place, Record, encode
from standfast.store.schema.seal import seal, unseal
from standfast.store.tree.aliases import View
from standfast.tensors import TensorSpec
from tests.kit.stores import record_path
from tests.store.schema.edits import Change, add, ended, lines_of, put, rewritten, take

RUN = "0123456789abcdef01234567"
STEP = 100
COLUMNS = ["names", "kinds", "specs", "extents", "digests", "views"]


def _file(label: str, size: int, held: int, used: int) -> DataFile:
    name = f"{RUN}_step_{STEP:06d}.0123abcd.{label}.safetensors"
    return DataFile(name, size, "ab" * 32, held, used)


def _record() -> Record:
    """A tensor in one piece, one in two, a view, an empty one, and two files."""
    specs = [
        TensorSpec("float32", (2, 3)),
        TensorSpec("uint8", (CHUNK + 10,)),
        TensorSpec("float32", (3,)),
        TensorSpec("bfloat16", (0, 5)),
    ]
    head = Head(
        run=RUN,
        identity={"hp": "cd" * 32, "model": None, "data": None},
        step=STEP,
        epoch=3,
        sequence=7,
        token="0123abcd",
        time="2026-11-15T14:30:00.123456Z",
        best=True,
        metrics={"loss": 0.5},
        parent=Place(RUN, 50, 6, "ff00ff00"),
        software={"python": "3"},
        tensors=4,
        nbytes=24 + CHUNK + 10,
        parts=[Part("a", "a", 0, 3), Part(None, "state", 3, 1)],
        files=[_file("a", CHUNK + 4096, CHUNK, CHUNK), _file("b", 4096 + 34, 34, 34)],
    )
    return Record(
        head=head,
        tree=b'{"a":{"w":{"$tensor":0},"big":{"$tensor":1},"v":{"$tensor":2}},"s":{"$tensor":3}}',
        names=["a.w", "a.big", "a.v", "s"],
        kinds=["numpy", "torch", "numpy", "numpy"],
        specs=specs,
        counts=np.array([1, 2, 0, 0]),
        files=np.array([1, 0, 1]),
        starts=np.array([4096, 4096, 4120]),
        sizes=np.array([24, CHUNK, 10]),
        digests=bytes(range(4 * DIGEST)),
        views={2: View(0, 4, (4,))},
    )


GOOD = encode(_record())


def _edited(line: str | int, change: Change) -> bytes:
    """The record with one line changed and all its digests right."""
    lines = lines_of(GOOD)
    if line == "head":
        lines[0] = seal(records.FORMAT, change(unseal(lines[0], records.FORMAT)))
    elif isinstance(line, str):
        number = 2 + COLUMNS.index(line)
        lines[number] = msgspec.json.encode({line: change(json.loads(lines[number])[line])})
    else:
        lines[line] = change(lines[line])
    return ended(lines)


def test_a_record_comes_back_as_it_was():
    record, back = _record(), decode(GOOD, RUN, STEP)
    for name in ("head", "tree", "names", "kinds", "specs", "digests", "views"):
        assert getattr(back, name) == getattr(record, name), name
    for name in ("counts", "files", "starts", "sizes"):
        assert getattr(back, name).tolist() == getattr(record, name).tolist(), name
    assert encode(back) == GOOD
    for line in ("head", "extents", 4):
        assert _edited(line, lambda same: same) == GOOD, "only what a test changes is refused"


def test_a_record_is_what_the_page_of_the_format_says():
    lines = GOOD.split(b"\n")
    assert len(lines) == 10
    assert lines[-1] == b""
    head = json.loads(lines[0])
    assert list(head)[:2] == ["format", "seal"]
    assert head["format"] == "standfast record 1"
    zeroed = lines[0].replace(head["seal"].encode(), b"0" * 64)
    assert blake3(zeroed).hexdigest() == head["seal"]
    assert head["parts"] == [["a", "a", 0, 3], [None, "state", 3, 1]]
    assert head["token"] == "0123abcd"
    assert head["parent"] == {"run": RUN, "step": 50, "sequence": 6, "token": "ff00ff00"}
    assert [list(json.loads(line)) for line in lines[2:8]] == [[name] for name in COLUMNS]
    assert json.loads(lines[3])["kinds"] == {"values": ["numpy", "torch"], "rows": [0, 1, 0, 0]}
    assert json.loads(lines[7])["views"] == [[2, 0, 4, [4]]]
    assert json.loads(lines[6])["digests"].startswith("blake3:16777216:")
    body = GOOD[: GOOD.rindex(b"\n", 0, -1) + 1]
    assert json.loads(lines[8]) == {"digest": blake3(body).hexdigest()}


def _extents(counts: list[int], sizes: list[int]) -> dict[str, list[int]]:
    starts = [4096, 4096, 4120, 4096]
    return {"counts": counts, "files": [1, 0, 1, 1], "starts": starts, "sizes": sizes}


MALFORMED: dict[str, tuple[str | int, Change]] = {
    # The head
    "another run": ("head", put("run", "f" * 24)),
    "a step that is another": ("head", put("step", 101)),
    "a step that is a float": ("head", put("step", 100.0)),
    "no sequence": ("head", take("sequence")),
    "sequence 0": ("head", put("sequence", 0)),
    "a sequence of 2^53": ("head", put("sequence", 1 << 53)),
    "no token": ("head", take("token")),
    "a token of other digits": ("head", put("token", "0123abcX")),
    "a parent without a token": ("head", take("parent", "token")),
    "a parent of sequence 0": ("head", put("parent", "sequence", 0)),
    "needs that are numbers": ("head", put("needs", [1])),
    "best is no bool": ("head", put("best", 1)),
    "a parent without a step": ("head", put("parent", {"run": RUN, "sequence": 1})),
    "a parent with more": ("head", put("parent", "more", 1)),
    "an identity that is a number": ("head", put("identity", "hp", 5)),
    "fewer tensors than parts have": ("head", put("tensors", 3)),
    "negative bytes": ("head", put("nbytes", -1)),
    "a part that begins too late": ("head", put("parts", 0, 2, 1)),
    "a part of negative length": ("head", put("parts", [["a", "a", 0, 5], [None, "s", 5, -1]])),
    "a part too few": ("head", take("parts", 1)),
    "a part of three": ("head", put("parts", 0, ["a", "a", 0])),
    "a file twice": ("head", lambda h: put("files", 1, "name", h["files"][0]["name"])(h)),
    "a file of another grammar": ("head", put("files", 0, "name", "model.safetensors")),
    "a file above the folder": (
        "head",
        lambda h: put("files", 0, "name", "../" + h["files"][0]["name"])(h),
    ),
    "a file that holds more than it is": ("head", put("files", 0, "held", CHUNK + 5000)),
    "a file that is used more than it holds": ("head", put("files", 0, "used", CHUNK + 1)),
    "a file that is used negatively": ("head", put("files", 0, "used", -1)),
    "a file without a digest": ("head", take("files", 0, "digest")),
    "a file with more": ("head", put("files", 0, "more", 1)),
    # Names and kinds
    "a name too few": ("names", take(3)),
    "a name too many": ("names", add("more")),
    "a name twice": ("names", put(1, "a.w")),
    "a kind too many": ("kinds", add(0, "rows")),
    "a kind that is none": ("kinds", put("rows", 0, 2)),
    "kinds without values": ("kinds", put("values", [])),
    "kinds with more": ("kinds", put("more", 1)),
    # Specs
    "an unknown dtype": ("specs", put("dtypes", "values", 0, "float3")),
    "a dtype too few": ("specs", take("dtypes", "rows", 3)),
    "a shape too few": ("specs", take("shapes", 3)),
    "a shape too many": ("specs", add([1], "shapes")),
    "a negative length": ("specs", put("shapes", 0, [-2, -3])),
    "a shape of floats": ("specs", put("shapes", 0, [2.0, 3])),
    "a huge shape": ("specs", put("shapes", 0, [1 << 40, 1 << 40])),
    "a huge shape of nothing": ("specs", put("shapes", 3, [0, 1 << 62, 1 << 62])),
    "too many dimensions": ("specs", put("shapes", 0, [1] * 65)),
    "a shape of another size": ("specs", put("shapes", 0, [2, 4])),
    "a dtype of another size": ("specs", put("dtypes", "values", 0, "float64")),
    # Extents
    "a count too few": ("extents", take("counts", 3)),
    "a count too many": ("extents", add(0, "counts")),
    "counts that do not add up": ("extents", put("counts", 0, 2)),
    "a negative count": ("extents", put("counts", [2, 2, -1, 0])),
    "counts that overflow": ("extents", put("counts", [1 << 62, 1 << 62, 1 << 62, (1 << 62) + 3])),
    "starts too many": ("extents", add(0, "starts")),
    "a file that is none": ("extents", put("files", 0, 2)),
    "an extent beyond the end": ("extents", put("starts", 0, 4096 + 11)),
    "a negative start": ("extents", put("starts", 0, -1)),
    "an empty extent": ("extents", put("sizes", [24, CHUNK + 10, 0])),
    "a negative extent": ("extents", put("sizes", [24, CHUNK + 24, -14])),
    "extents that are too short": ("extents", put("sizes", 0, 23)),
    "an extent that ends within a chunk": ("extents", put("sizes", [24, CHUNK - 8, 18])),
    "a view with extents": ("extents", lambda _: _extents([1, 2, 1, 0], [24, CHUNK, 10, 12])),
    "an empty tensor with an extent": (
        "extents",
        lambda _: _extents([1, 2, 0, 1], [24, CHUNK, 10, 1]),
    ),
    # Digests
    "digests without their kind": ("digests", lambda text: text.removeprefix("blake3:")),
    "digests of other chunks": ("digests", lambda text: text.replace("16777216", "1048576")),
    "digests that are no base64": ("digests", lambda text: text[:-4] + "é==="),
    "digests too few": ("digests", lambda text: text[: -32 // 3 * 4]),
    "digests too many": ("digests", lambda text: text.rstrip("=") + "A" * 40),
    # Views
    "a view of nothing": ("views", put(0, 1, 4)),
    "a view that is no tensor": ("views", put(0, 0, 4)),
    "a view of itself": ("views", put(0, 1, 2)),
    "a view of a view": ("views", lambda views: [*views, [3, 2, 0, [10, 2]]]),
    "a view twice": ("views", lambda views: views * 2),
    "a view beyond its base": ("views", put(0, 2, 16)),
    "a view before its base": ("views", put(0, 2, -4)),
    "a view with a huge offset": ("views", put(0, 2, 1 << 70)),
    "a view with a negative stride": ("views", put(0, 3, [-4])),
    "a view without strides": ("views", take(0, 3)),
    "a tensor with bytes of its own that is a view": ("views", lambda v: [*v, [3, 0, 0, [0, 2]]]),
    # Lines
    "a line with spaces": (3, lambda line: line.replace(b":", b": ", 1)),
    "a key twice": (2, lambda line: line[:-1] + b"," + line[1:]),
    "a key twice in the head": (
        0,
        lambda line: _resealed(line.replace(b'"best":true', b'"best":true,"best":true')),
    ),
    "a second key": (2, lambda line: line[:-1] + b',"more":[]}'),
    "no object": (2, lambda line: b"[]"),
    "no JSON": (4, lambda line: line[:-1]),
    "half of a surrogate pair": (2, lambda line: line.replace(b"a.w", rb"\ud800")),
    "a number that is none": (5, lambda line: line.replace(b"4096", b"NaN")),
    "nested deeply": (7, lambda line: b'{"views":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "a line without a key": (2, lambda line: line + b"\n{}"),
    "a line that is a list": (2, lambda line: line + b'\n["more"]'),
    "an unknown line with spaces": (2, lambda line: line + b'\n{"more": 1}'),
    "a line twice": (2, lambda line: line + b"\n" + line),
    "a known name in another spelling": (2, lambda line: line + b'\n{"n\\u0061mes":[]}'),
    "a head that is not sealed": (0, lambda line: line.replace(b'"step":100', b'"step":101')),
    "a head of another format": (0, lambda line: line.replace(b"record 1", b"marks 1")),
    "a head that is nested deeply": (
        0,
        lambda line: _resealed(line.replace(b"0.5", b"[" * 100_000 + b"]" * 100_000)),
    ),
    "a head with NaN": (0, lambda line: _resealed(line.replace(b"0.5", b"NaN"))),
    "a head with a number of many digits": (
        0,
        lambda line: _resealed(line.replace(b'"epoch":3', b'"epoch":' + b"3" * 100_000)),
    ),
}


def _resealed(line: bytes) -> bytes:
    start = line.index(b'"seal":"') + 8
    zeroed = line[:start] + b"0" * 64 + line[start + 64 :]
    return zeroed[:start] + blake3(zeroed).hexdigest().encode() + zeroed[start + 64 :]


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_record_is_refused(name):
    data = _edited(*MALFORMED[name])
    assert data != GOOD
    with pytest.raises(errors.DamagedFile):
        decode(data, RUN, STEP)


def test_extents_whose_sizes_overflow_are_refused():
    sizes = [(1 << 62) - CHUNK] * 4 + [4 * CHUNK, CHUNK, 10]  # 2^64 more than the tensor has
    file = {"size": (1 << 62) - 1, "held": CHUNK, "used": CHUNK}
    lines = lines_of(_edited("head", lambda head: head["files"][0].update(file) or head))
    extents = {
        "counts": [1, len(sizes), 0, 0],
        "files": [1] + [0] * (len(sizes) - 1) + [1],
        "starts": [4096] + [0] * (len(sizes) - 1) + [4120],
        "sizes": [24, *sizes],
    }
    lines[5] = msgspec.json.encode({"extents": extents})
    with pytest.raises(errors.DamagedFile):
        decode(ended(lines), RUN, STEP)


def test_columns_may_come_in_any_order_and_all_must_come():
    lines = lines_of(GOOD)
    assert encode(decode(ended([*lines[:2], *reversed(lines[2:])]), RUN, STEP)) == GOOD
    for missing in range(8):
        fewer = lines[:missing] + lines[missing + 1 :]
        for each in (fewer, fewer[:-1]):
            with pytest.raises(errors.DamagedFile):
                decode(ended(each), RUN, STEP)


def test_every_flipped_bit_and_every_end_that_is_early_or_late_is_found():
    for position in range(len(GOOD)):
        data = bytearray(GOOD)
        data[position] ^= 1 << position % 8
        with pytest.raises(errors.DamagedFile):
            decode(bytes(data), RUN, STEP)
    for end in range(0, len(GOOD), 7):
        with pytest.raises((errors.TruncatedFile, errors.IndexMismatch)):
            decode(GOOD[:end], RUN, STEP)
    for more in (b"\n", b" ", GOOD, b"\0" * 100):
        with pytest.raises(errors.DamagedFile):
            decode(GOOD + more, RUN, STEP)
    for run, step in ((RUN, STEP + 1), ("f" * 24, STEP)):
        with pytest.raises(errors.DamagedFile):
            decode(GOOD, run, step)


def test_a_newer_version_is_too_new_and_a_flipped_bit_of_this_one_is_not():
    newer = _edited(0, lambda line: _resealed(line.replace(b"record 1", b"record 2")))
    for text in (newer, newer + b"what ends a record may be another thing then"):
        with pytest.raises(errors.TooNew):
            decode(text, RUN, STEP)
    with pytest.raises(errors.IndexMismatch):
        decode(_edited(0, lambda line: line.replace(b"record 1", b"record 3")), RUN, STEP)


def test_unknown_lines_and_members_are_kept():
    line = b'{"more":{"a.w":[1,2.5,null]}}'
    text = ended([*lines_of(_edited("head", put("later", {"a": [1]}))), line])
    record = decode(text, RUN, STEP)
    assert record.others == {"more": line}
    assert record.head.others == {"later": {"a": [1]}}
    assert encode(record) == text
    assert records.summary(record.head) == records.summary(decode(GOOD, RUN, STEP).head)


def test_what_a_record_needs_is_asked_for_before_anything_is_read():
    text = _edited("head", put("needs", ["packed"]))
    with pytest.raises(errors.TooNew, match="packed"):
        decode(text, RUN, STEP)
    head = decode_head(text.split(b"\n")[0], RUN, STEP)
    assert (head.sequence, head.needs) == (7, ["packed"])
    assert decode(_edited("head", put("needs", [])), RUN, STEP).head.needs == []


def test_a_hostile_tree_in_a_store_is_damage_for_every_reader(tmp_path):
    run = standfast.Store(tmp_path).run("a")
    run.save(1, {"a": np.ones(3), "b": np.ones(3)})
    for tree in (b'{"a":{"$tensor":7}}', b"[" * 5000 + b"]" * 5000, b"nonsense"):
        rewritten(record_path(run, 1), put(1, tree))
        for into in (None, {"a": np.zeros(3), "b": np.zeros(3)}):
            with pytest.raises(errors.DamagedFile):
                run.load(1, into=into)
