"""`standfast.oxck`: a checkpoint by the original's names, with its rules and its errors."""

from __future__ import annotations

import errno
import io
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import standfast
from standfast import errors
from standfast.errors import (
    BadName,
    DuplicateKey,
    RefusedMetadata,
    StandfastError,
    TrailingBytes,
    UnsupportedDType,
    UnsupportedShape,
)
from standfast.oxck import (
    Checkpoint,
    CheckpointError,
    CheckpointTensor,
    InvalidMagic,
    Io,
    MetadataParse,
    NameTooLong,
    TruncatedData,
    UnsupportedVersion,
    WeightTensor,
)
from tests import GOLDEN
from tests.formats.oxck.builders import file_of, floats, original_read, saved, tensor

FIRST = GOLDEN / "oxck_mixed.oxck"


def written(checkpoint: Checkpoint) -> bytes:
    stream = io.BytesIO()
    checkpoint.write_to(stream)
    return stream.getvalue()


def read(data: bytes) -> Checkpoint:
    return Checkpoint.read_from(io.BytesIO(data))


def small() -> Checkpoint:
    checkpoint = Checkpoint()
    checkpoint.set_metadata("step", "3")
    checkpoint.add_tensor(CheckpointTensor("w", [1, 2, 3, 4, 5, 6], [2, 3]))
    checkpoint.add_tensor(CheckpointTensor("b", [7], []))
    return checkpoint


# A checkpoint in memory


def test_a_new_checkpoint_is_empty() -> None:
    checkpoint = Checkpoint()
    assert (checkpoint.version, checkpoint.metadata, checkpoint.tensors) == (1, {}, [])
    assert (checkpoint.num_params(), checkpoint.total_bytes()) == (0, 0)
    assert written(checkpoint) == file_of("{}")


def test_metadata_is_set_and_got() -> None:
    checkpoint = small()
    checkpoint.set_metadata("step", "4")
    assert (checkpoint.get_metadata("step"), checkpoint.get_metadata("loss")) == ("4", None)


def test_the_first_tensor_of_a_name_is_found() -> None:
    checkpoint = small()
    checkpoint.add_tensor(CheckpointTensor("w", [9]))
    found = checkpoint.get_tensor("w")
    assert found is checkpoint.tensors[0]
    assert checkpoint.get_tensor("missing") is None


@pytest.mark.parametrize(
    ("shape", "elements", "count"),
    [([2, 3, 4], 24, 24), ([5], 5, 5), ([0], 0, 0), ([2, 0, 3], 0, 0), ([], 1, 0), ([], 0, 0)],
)
def test_elements_are_counted_by_the_shape(shape: list[int], elements: int, count: int) -> None:
    each = CheckpointTensor("x", [0.0] * elements, shape)
    assert (each.element_count(), each.size_bytes()) == (count, 4 * count)
    checkpoint = Checkpoint(tensors=[each, CheckpointTensor("y", [1, 2]), each])
    assert checkpoint.num_params() == 2 * count + 2
    assert checkpoint.total_bytes() == 8 * count + 8
    assert len(written(checkpoint)) == 30 + 2 * (17 + 8 * len(shape) + 4 * elements) + 33


def test_the_golden_file_has_fewer_parameters_than_elements() -> None:
    checkpoint = Checkpoint.load(FIRST)
    assert sum(each.data.size for each in checkpoint.tensors) == 32
    assert (checkpoint.num_params(), checkpoint.total_bytes()) == (31, 124)


def test_data_of_any_kind_becomes_flat_float32() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    given = CheckpointTensor("x", array.T)
    assert (given.shape, given.data.shape) == ([3, 2], (6,))
    assert given.data.dtype == np.float32
    assert given.data.tolist() == [0, 3, 1, 4, 2, 5]
    assert CheckpointTensor("x", [1, 2]).data.dtype == np.float32
    assert CheckpointTensor("x", np.ones((), np.float32)).shape == []


@pytest.mark.parametrize("dtype", ["f8", "f2", "i4", "u1", "?", "c8", ">f4"])
def test_another_dtype_is_refused_unless_it_is_cast(dtype: str) -> None:
    array = np.array([1, 0, 1]).astype(dtype)
    with pytest.raises(UnsupportedDType, match="'x': OXCK holds only float32"):
        CheckpointTensor("x", array)
    if dtype != "c8":
        assert CheckpointTensor("x", array, cast=True).data.tolist() == [1, 0, 1]


def test_weights_are_copied_to_and_fro() -> None:
    weight = WeightTensor("w", np.arange(6, dtype=np.float32), (2, 3))
    each = CheckpointTensor.from_weight_tensor(weight)
    assert (each.name, each.shape, each.data.tolist()) == ("w", [2, 3], [0, 1, 2, 3, 4, 5])
    each.data[0] = 9
    back = each.to_weight_tensor()
    assert (back.name, back.shape, back.data[0], weight.data[0]) == ("w", (2, 3), 9, 0)
    back.data[0] = 5
    assert each.data[0] == 9


# Bytes


def test_the_golden_file_holds_what_was_saved() -> None:
    checkpoint = Checkpoint.load(FIRST)
    assert (checkpoint.version, checkpoint.digests) == (1, False)
    assert checkpoint.get_metadata("lang") == "日本語 ünï"
    assert checkpoint.get_metadata("note") == 'say "hi" \\ back'
    shapes = {each.name: each.shape for each in checkpoint.tensors}
    assert shapes == {
        "layer.0.weight": [2, 3, 4],
        "layer.0.bias": [4],
        "scalar": [1],
        "scalar0d": [],
        "empty": [0],
        "重み": [2],
    }
    bias = checkpoint.tensors[1].data
    assert bias.tobytes() == floats(math.nan, math.inf, -0.0, 1e-40)
    assert all(each.data.flags.aligned and each.data.flags.writeable for each in checkpoint.tensors)


def test_the_golden_file_is_saved_again_byte_for_byte(tmp_path: Path) -> None:
    Checkpoint.load(FIRST).save(tmp_path / "again.oxck")
    assert (tmp_path / "again.oxck").read_bytes() == FIRST.read_bytes()
    assert written(read(FIRST.read_bytes())) == FIRST.read_bytes()


def test_the_golden_file_is_built_by_hand_byte_for_byte() -> None:
    checkpoint = Checkpoint()
    for key, value in (("step", "1000"), ("note", 'say "hi" \\ back'), ("loss", "0.123")):
        checkpoint.set_metadata(key, value)
    checkpoint.set_metadata("lang", "日本語 ünï")
    weight = [i * 0.5 - 3 for i in range(24)]
    checkpoint.add_tensor(CheckpointTensor("layer.0.weight", weight, [2, 3, 4]))
    bias = [math.nan, math.inf, -0.0, 1e-40]
    checkpoint.add_tensor(CheckpointTensor("layer.0.bias", bias, [4]))
    checkpoint.add_tensor(CheckpointTensor("scalar", [3.5], [1]))
    checkpoint.add_tensor(CheckpointTensor("scalar0d", [7.0], []))
    checkpoint.add_tensor(CheckpointTensor("empty", [], [0]))
    checkpoint.add_tensor(CheckpointTensor("重み", [1, 2], [2]))
    assert written(checkpoint) == FIRST.read_bytes()


LENIENT = [
    "",
    " {} ",
    '{"b":"1" "a":"2",,}',
    '{"a":"\\n\n"}',
    '{"a":"1","a":"2"}',
    '{"a":"x","standfast.json":"junk"}',
]


@pytest.mark.parametrize("text", LENIENT)
def test_what_was_loaded_is_saved_as_it_stood(text: str, tmp_path: Path) -> None:
    data = file_of(text, tensor("x"), tensor("x", (), b""), tensor("", (0, 7), b""))
    (tmp_path / "old.oxck").write_bytes(data)
    checkpoint = Checkpoint.load(tmp_path / "old.oxck")
    checkpoint.save(tmp_path / "new.oxck")
    assert (tmp_path / "new.oxck").read_bytes() == data
    assert written(read(data)) == data


def test_metadata_that_changed_is_written_anew() -> None:
    checkpoint = read(file_of('{"b":"1" "a":"2",,}', tensor("x")))
    checkpoint.set_metadata("a", "3")
    assert written(checkpoint) == file_of('{"a":"3","b":"1"}', tensor("x"))
    checkpoint.set_metadata("a", "2")
    assert written(checkpoint) == file_of('{"b":"1" "a":"2",,}', tensor("x"))


def test_repeated_names_are_kept_here_and_refused_there(tmp_path: Path) -> None:
    path = tmp_path / "twice.oxck"
    checkpoint = small()
    checkpoint.add_tensor(CheckpointTensor("w", [8, 9]))
    for digests in (False, True):
        checkpoint.digests = digests
        checkpoint.save(path)
        again = Checkpoint.load(path)
        assert [each.name for each in again.tensors] == ["w", "b", "w"]
        assert again.tensors[2].data.tolist() == [8, 9]
        with pytest.raises(DuplicateKey, match=r"'w'.*standfast\.oxck\.Checkpoint keeps both"):
            standfast.open(path)


def test_a_shape_without_dimensions_has_one_element_or_none() -> None:
    for values in ([], [7.0]):
        data = written(Checkpoint(tensors=[CheckpointTensor("x", values, [])]))
        assert data == file_of("{}", tensor("x", (), floats(*values)))
        again = read(data)
        assert (again.tensors[0].shape, again.tensors[0].data.tolist()) == ([], values)
        assert written(again) == data
    with pytest.raises(UnsupportedShape, match=r"'x': 2 elements do not have the shape \[\]"):
        written(Checkpoint(tensors=[CheckpointTensor("x", [1, 2], [])]))
    with pytest.raises(errors.SizeMismatch, match="'x' is a scalar, but field data_len says 2"):
        read(file_of("{}", tensor("x", (), floats(1, 2))))


def test_trailing_bytes_of_a_file_are_refused_and_of_a_stream_left_alone(tmp_path: Path) -> None:
    data = written(small())
    (tmp_path / "long.oxck").write_bytes(data + b"more")
    with pytest.raises(TrailingBytes, match=r"long\.oxck: 4 bytes follow the last tensor"):
        Checkpoint.load(tmp_path / "long.oxck")
    stream = io.BytesIO(data + b"more")
    assert len(Checkpoint.read_from(stream).tensors) == 2
    assert stream.read() == b"more"


def test_a_stream_is_not_flushed_or_closed() -> None:
    class Watched(io.BytesIO):
        flushes = 0

        def flush(self) -> None:
            self.flushes += 1

    stream = Watched()
    small().write_to(stream)
    assert (stream.flushes, stream.closed) == (0, False)


# Digests


def test_a_checkpoint_has_digests_if_it_is_told_to(tmp_path: Path) -> None:
    path = tmp_path / "sealed.oxck"
    checkpoint = small()
    checkpoint.digests = True
    checkpoint.save(path)
    assert standfast.verify(path).tensors == 2
    assert (
        path.read_bytes()
        == written(checkpoint)
        == saved(
            {each.name: each.data.reshape(each.shape) for each in checkpoint.tensors}, {"step": "3"}
        )
    )
    strings, tensors = original_read(io.BytesIO(path.read_bytes()))
    assert strings["step"] == "3"
    assert [each.name for each in tensors] == ["w", "b"]


def test_a_checkpoint_loaded_with_digests_is_saved_with_them(tmp_path: Path) -> None:
    data = saved({"w": np.arange(6, dtype=np.float32)}, {"step": 3, "note": "x"})
    checkpoint = read(data)
    assert checkpoint.digests
    assert checkpoint.metadata == {"step": "3", "note": "x", "standfast.json": '["step"]'}
    assert written(checkpoint) == data


def test_a_checkpoint_that_changed_gets_fresh_digests(tmp_path: Path) -> None:
    path = tmp_path / "changed.oxck"
    checkpoint = read(saved({"w": np.arange(6, dtype=np.float32)}, {"step": 3}))
    checkpoint.tensors[0].data[2] = 99
    checkpoint.add_tensor(CheckpointTensor("new", [1, 2]))
    checkpoint.set_metadata("step", "4")
    checkpoint.save(path)
    assert standfast.verify(path).tensors == 2
    with standfast.open(path) as file:
        assert (file.metadata, file["w"][2], file["new"].tolist()) == ({"step": 4}, 99, [1, 2])
    assert written(Checkpoint.load(path)) == path.read_bytes()


def test_digests_can_be_left_out_again() -> None:
    checkpoint = read(saved({"w": np.ones(2, np.float32)}, {"note": "x"}))
    checkpoint.digests = False
    assert written(checkpoint) == file_of('{"note":"x"}', tensor("w", (2,), floats(1, 1)))


def test_what_was_loaded_does_not_stay_in_memory() -> None:
    checkpoint = read(saved({"w": np.ones(1_000_000, np.float32)}))
    data = checkpoint.tensors.pop().data
    holders = [held for held in vars(checkpoint).values() if held is data]
    loaded = checkpoint._loaded
    assert holders == []
    assert loaded is not None
    assert loaded.tensors == []


# The six errors


def test_the_six_errors_are_ours_too() -> None:
    assert {kind: kind.__mro__[2] for kind in CheckpointError.__subclasses__()} == {
        Io: errors.FileError,
        InvalidMagic: errors.BadHeader,
        UnsupportedVersion: errors.UnsupportedFile,
        MetadataParse: errors.BadField,
        TruncatedData: errors.TruncatedFile,
        NameTooLong: errors.BadName,
    }


def test_another_magic_says_what_it_got() -> None:
    with pytest.raises(InvalidMagic, match=r"expected b'OXCK', got b'OXC\\xff'") as refused:
        read(file_of(magic=b"OXC\xff"))
    assert refused.value.got == b"OXC\xff"
    with pytest.raises(InvalidMagic) as refused:
        read(b"NOPE")
    assert refused.value.got == b"NOPE"


@pytest.mark.parametrize("version", [0, 2, 2**32 - 1])
def test_another_version_says_which(version: int) -> None:
    with pytest.raises(UnsupportedVersion, match=f"version: {version}") as refused:
        read(file_of(version=version))
    assert refused.value.version == version


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (file_of('{"a":1}'), "behind the key 'a'"),
        (file_of('{"a":"\\u0041"}'), "unknown escape"),
        (file_of(b"\xff"), "not UTF-8"),
        (file_of("{}", tensor(b"\xff\xff")), "the name is not UTF-8"),
    ],
    ids=["value", "escape", "bytes", "name"],
)
def test_text_that_is_none_says_why(data: bytes, reason: str) -> None:
    with pytest.raises(MetadataParse, match=r"^metadata parse error: ") as refused:
        read(data)
    assert reason in refused.value.reason


@pytest.mark.parametrize(
    ("length", "expected", "got"),
    [(0, 4, 0), (3, 4, 3), (6, 4, 2), (8, 20, 0), (27, 20, 19), (29, 2, 1), (33, 4, 3), (58, 4, 3)],
)
def test_data_that_ends_says_how_much_there_was(
    length: int, expected: int, got: int, tmp_path: Path
) -> None:
    data = file_of("{}", tensor("a"))[:length]
    (tmp_path / "cut.oxck").write_bytes(data)
    for source in (io.BytesIO(data), tmp_path / "cut.oxck"):
        use = Checkpoint.load if isinstance(source, Path) else Checkpoint.read_from
        with pytest.raises(TruncatedData, match=f"{expected} bytes, got {got}") as refused:
            use(source)  # type: ignore[arg-type]
        assert (refused.value.expected, refused.value.got) == (expected, got)


@pytest.mark.parametrize(("name", "length"), [("n" * 65_536, 65_536), ("é" * 40_000, 80_000)])
def test_a_name_too_long_says_how_long(name: str, length: int, tmp_path: Path) -> None:
    checkpoint = small()
    checkpoint.add_tensor(CheckpointTensor(name, [1]))
    for use in (written, lambda each: each.save(tmp_path / "long.oxck")):
        with pytest.raises(NameTooLong, match=f"{length:,} bytes") as refused:
            use(checkpoint)
        assert refused.value.length == length
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_is_written() -> None:
    name = "n" * 65_535
    assert read(written(Checkpoint(tensors=[CheckpointTensor(name, [1])]))).tensors[0].name == name


def test_files_that_cannot_be_read_or_written_are_io_errors(tmp_path: Path) -> None:
    with pytest.raises(Io, match="there is no file") as refused:
        Checkpoint.load(tmp_path / "missing.oxck")
    assert refused.value.errno == errno.ENOENT
    with pytest.raises(Io, match="folder"):
        Checkpoint.load(tmp_path)
    with pytest.raises(Io) as refused:
        small().save(tmp_path / "missing" / "x.oxck")
    assert refused.value.errno == errno.ENOENT


def test_a_stream_that_cannot_be_written_is_an_io_error() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Io, match="No space left") as refused:
        small().write_to(Full())
    assert refused.value.errno == errno.ENOSPC


# What would not come back is refused


def with_tensor(**changes: Any) -> Checkpoint:
    each = CheckpointTensor("x", [1, 2, 3, 4], [2, 2])
    for attribute, value in changes.items():
        setattr(each, attribute, value)
    return Checkpoint(tensors=[each])


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"shape": [2, 3]}, UnsupportedShape, r"'x': 4 elements do not have the shape \[2, 3\]"),
        ({"shape": [-2, -2]}, UnsupportedShape, "'x': no array can have"),
        ({"shape": [2.0, 2.0]}, UnsupportedShape, r"'x': the shape \[2.0, 2.0\] is none"),
        ({"shape": [1] * 63 + [2, 2]}, UnsupportedShape, "'x': no array can have"),
        ({"shape": [2**61, 0], "data": np.zeros(0, "f4")}, UnsupportedShape, "no array can have"),
        ({"data": np.zeros(4)}, UnsupportedDType, "'x': its data must be an array of float32"),
        ({"data": [1, 2, 3, 4]}, UnsupportedDType, "'x': its data must be an array of float32"),
        ({"name": "\ud800"}, BadName, "no valid Unicode string"),
        ({"name": 3}, BadName, "tensor 3: the name is no valid Unicode string"),
    ],
)
def test_a_tensor_that_would_not_come_back_is_refused(
    changes: dict[str, Any], error: type[StandfastError], message: str
) -> None:
    with pytest.raises(error, match=message):
        written(with_tensor(**changes))


def test_data_that_was_replaced_is_written() -> None:
    scattered = np.arange(8, dtype=np.float32).reshape(4, 2)[:, 0]
    assert read(written(with_tensor(data=scattered))).tensors[0].data.tolist() == [0, 2, 4, 6]
    square = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert read(written(with_tensor(data=square, shape=(2, 2)))).tensors[0].shape == [2, 2]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"step": 3}, "'step': keys and values must be strings"),
        ({3: "step"}, "3: keys and values must be strings"),
        ({"a": "\ud800"}, "'a': keys and values must be strings of valid Unicode"),
        ({"standfast.digest": "0" * 64}, "'standfast.digest': Standfast writes it"),
        ({"standfast.chunks": ""}, "'standfast.chunks': Standfast writes it"),
        ({"standfast.json": '["a"]'}, "it lists 'a', which is not there"),
        ({"a": "x", "standfast.json": '["a"]'}, "'a': not the JSON"),
    ],
)
@pytest.mark.parametrize("digests", [True, False])
def test_metadata_that_would_not_come_back_is_refused(
    metadata: dict[Any, Any], message: str, digests: bool
) -> None:
    with pytest.raises(RefusedMetadata, match=message):
        written(Checkpoint(metadata=metadata, digests=digests))
