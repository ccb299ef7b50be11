"""`standfast.oxck`: a checkpoint by the original's names, with its rules and its errors."""

from __future__ import annotations

import copy
import errno
import io
import math
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import errors
from standfast.errors import (
    BadName,
    DamagedFile,
    DuplicateKey,
    IndexMismatch,
    RefusedMetadata,
    RefusedTensor,
    StandfastError,
    TrailingBytes,
    UnsupportedDType,
    UnsupportedShape,
    UnsupportedTensor,
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


def test_a_file_with_digests_that_the_original_saved_again_loads_unverified(tmp_path: Path) -> None:
    checkpoint = small()
    checkpoint.digests = True
    data = written(checkpoint)
    text, _, tensors = data[28:].partition(b"}" + b" " * 64)
    path = tmp_path / "again.oxck"
    path.write_bytes(file_of(text + b"}", tensors.lstrip(b" "), count=len(checkpoint.tensors)))
    with pytest.raises(IndexMismatch, match=r"standfast\.load\(path, verify=False\)"):
        Checkpoint.load(path)
    assert list(standfast.load(path, verify=False)) == [each.name for each in checkpoint.tensors]


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


def test_a_tensor_that_is_removed_does_not_stay_in_memory() -> None:
    checkpoint = read(saved({"w": np.ones(1_000_000, np.float32)}))
    elements = weakref.ref(checkpoint.tensors.pop().data)
    assert elements() is None


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
    with pytest.raises(UnsupportedVersion) as refused:
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
    with pytest.raises(MetadataParse) as refused:
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
        with pytest.raises(TruncatedData) as refused:
            use(source)  # type: ignore[arg-type]
        assert (refused.value.expected, refused.value.got) == (expected, got)


@pytest.mark.parametrize(("name", "length"), [("n" * 65_536, 65_536), ("é" * 40_000, 80_000)])
def test_a_name_too_long_says_how_long(name: str, length: int, tmp_path: Path) -> None:
    checkpoint = small()
    checkpoint.add_tensor(CheckpointTensor(name, [1]))
    for use in (written, lambda each: each.save(tmp_path / "long.oxck")):
        with pytest.raises(NameTooLong) as refused:
            use(checkpoint)
        assert refused.value.length == length
    assert list(tmp_path.iterdir()) == []


def test_the_longest_name_is_written() -> None:
    name = "n" * 65_535
    assert read(written(Checkpoint(tensors=[CheckpointTensor(name, [1])]))).tensors[0].name == name


def test_files_that_cannot_be_read_or_written_are_io_errors(tmp_path: Path) -> None:
    with pytest.raises(Io) as refused:
        Checkpoint.load(tmp_path / "missing.oxck")
    assert refused.value.errno == errno.ENOENT
    with pytest.raises(Io):
        Checkpoint.load(tmp_path)
    with pytest.raises(Io) as refused:
        small().save(tmp_path / "missing" / "x.oxck")
    assert refused.value.errno == errno.ENOENT


def test_a_stream_that_cannot_be_written_is_an_io_error() -> None:
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(Io) as refused:
        small().write_to(Full())
    assert refused.value.errno == errno.ENOSPC


# What would not come back is refused


def with_tensor(**changes: Any) -> Checkpoint:
    each = CheckpointTensor("x", [1, 2, 3, 4], [2, 2])
    for attribute, value in changes.items():
        setattr(each, attribute, value)
    return Checkpoint(tensors=[each])


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"shape": [2, 3]}, UnsupportedShape),
        ({"shape": [-2, -2]}, UnsupportedShape),
        ({"shape": [2.0, 2.0]}, UnsupportedShape),
        ({"shape": [1] * 63 + [2, 2]}, UnsupportedShape),
        ({"shape": [2**61, 0], "data": np.zeros(0, "f4")}, UnsupportedShape),
        ({"data": np.zeros(4)}, UnsupportedDType),
        ({"data": [1, 2, 3, 4]}, UnsupportedDType),
        ({"name": "\ud800"}, BadName),
        ({"name": 3}, BadName),
    ],
)
def test_a_tensor_that_would_not_come_back_is_refused(
    changes: dict[str, Any], error: type[StandfastError]
) -> None:
    with pytest.raises(error) as refused:
        written(with_tensor(**changes))
    assert repr(changes.get("name", "x")) in str(refused.value)


def test_data_that_was_replaced_is_written() -> None:
    scattered = np.arange(8, dtype=np.float32).reshape(4, 2)[:, 0]
    assert read(written(with_tensor(data=scattered))).tensors[0].data.tolist() == [0, 2, 4, 6]
    assert read(written(with_tensor(data=np.arange(4, dtype=">f4")))).tensors[0].data[3] == 3
    square = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert read(written(with_tensor(data=square, shape=(2, 2)))).tensors[0].shape == [2, 2]


@pytest.mark.parametrize(
    "metadata",
    [
        {"step": 3},
        {3: "step"},
        {"a": "\ud800"},
        {"standfast.digest": "0" * 64},
        {"standfast.chunks": ""},
        {"standfast.json": '["a"]'},
        {"a": "x", "standfast.json": '["a"]'},
    ],
)
@pytest.mark.parametrize("digests", [True, False])
def test_metadata_that_would_not_come_back_is_refused(
    metadata: dict[Any, Any], digests: bool
) -> None:
    with pytest.raises(RefusedMetadata):
        written(Checkpoint(metadata=metadata, digests=digests))


# The seed: "A single tensor entry in the checkpoint", of which `data` is "Raw `f32` data in
# row-major order" and "product [of the shape] must equal `data.len()`". Nothing else is accepted.


def test_float32_of_any_byte_order_framework_and_layout_becomes_row_major() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    parameter = torch.nn.Parameter(torch.from_numpy(array.copy()))
    for given in (array, array.astype(">f4"), np.asfortranarray(array), parameter, parameter.data):
        each = CheckpointTensor("x", given)
        assert (each.shape, each.data.shape, each.data.dtype) == ([2, 3], (6,), np.dtype("<f4"))
        assert each.data.tobytes() == floats(0, 1, 2, 3, 4, 5)
    assert CheckpointTensor("x", parameter.T).data.tolist() == [0, 3, 1, 4, 2, 5]
    assert CheckpointTensor("x", np.ones((), np.float32)).shape == []
    assert CheckpointTensor("x", [[1, 2.5], [3, True]]).data.tolist() == [1, 2.5, 3, 1]
    assert CheckpointTensor("x", [[1], [2]]).shape == [2, 1]


@pytest.mark.parametrize(
    "given",
    [
        torch.tensor([2**53 + 1]),
        torch.tensor([1e300], dtype=torch.float64),
        torch.tensor([1 + 2j]),
        torch.tensor([1.5], dtype=torch.bfloat16),
        torch.tensor([1.5], dtype=torch.float16),
        torch.tensor([True]),
        np.array([1.5]),
        np.array([1.5], np.float16),
        np.array([1], np.int32),
        np.array([1 + 2j], np.complex64),
    ],
    ids=lambda value: str(value.dtype),
)
def test_an_array_of_another_dtype_is_refused(given: Any) -> None:
    with pytest.raises(UnsupportedDType, match=r"'layer\.0'.*float32.*allow_cast"):
        CheckpointTensor("layer.0", given)


@pytest.mark.parametrize(
    "given",
    [
        None,
        [None],
        [2**24 + 1],
        [0.5, 2**53 + 1],
        [2**200],
        [1e300],
        [-1e300],
        [1e-60],
        [1 + 2j],
        ["1.5"],
        [[1.0], [2.0, 3.0]],
        torch.nn.Linear(1, 1).weight.grad,
        {"w": 1.0},
    ],
    ids=repr,
)
def test_values_that_float32_cannot_hold_are_refused(given: Any) -> None:
    with pytest.raises(RefusedTensor, match=r"tensor 'layer\.0'"):
        CheckpointTensor("layer.0", given)


def test_a_list_of_numbers_is_rounded_as_a_literal_is() -> None:
    each = CheckpointTensor("x", [0.1, 2**24, -(2**24), 3.4028235e38, math.inf, -0.0, 1e-45])
    assert each.data.tobytes() == floats(0.1, 2**24, -(2**24), 3.4028235e38, math.inf, -0.0, 1e-45)
    assert math.isnan(CheckpointTensor("x", [math.nan]).data[0])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (torch.tensor([2**53 + 1]), 2.0**53),
        (torch.tensor([1e300], dtype=torch.float64), math.inf),
        (torch.tensor([1.5], dtype=torch.bfloat16), 1.5),
        (torch.tensor([True]), 1.0),
        (np.array([1.5], ">f8"), 1.5),
        ([2**24 + 1], 2.0**24),
        ([1e300], math.inf),
    ],
)
def test_a_cast_that_was_allowed_is_made(given: Any, expected: float) -> None:
    assert CheckpointTensor("x", given, allow_cast=True).data.tolist() == [expected]


@pytest.mark.parametrize("given", [np.array([1 + 2j]), torch.tensor([1 + 2j]), [1 + 2j], None])
def test_no_cast_drops_an_imaginary_part_or_makes_nothing_a_number(given: Any) -> None:
    with pytest.raises(RefusedTensor, match="tensor 'x'"):
        CheckpointTensor("x", given, allow_cast=True)


@pytest.mark.parametrize(
    "given",
    [
        [torch.nn.Parameter(torch.ones(2))],
        [torch.ones(2, dtype=torch.bfloat16)],
        [np.ones((2, 3)), np.ones((2, 2))],
    ],
    ids=["gradients", "bfloat16", "ragged"],
)
def test_a_list_of_what_numpy_cannot_read_is_refused(given: Any) -> None:
    """The original's `data: Vec<f32>`."""
    with pytest.raises(UnsupportedTensor, match="tensor 'x': not a list of numbers"):
        CheckpointTensor("x", given)


@pytest.mark.parametrize("shape", [5, [2.0, 2.0], ["2"], [None]], ids=repr)
def test_what_is_not_a_shape_is_refused(shape: Any) -> None:
    """The seed: "shape: Vec<u64>"."""
    with pytest.raises(UnsupportedShape, match=r"tensor 'x': .* is not a shape"):
        CheckpointTensor("x", [1, 2, 3, 4], shape)


def test_only_tensors_are_added() -> None:
    checkpoint = small()
    with pytest.raises(RefusedTensor):
        checkpoint.add_tensor(np.ones(2))  # type: ignore[arg-type]
    assert checkpoint == small()


def test_a_tensor_owns_its_data_and_its_shape() -> None:
    array, shape = np.zeros(4, np.float32), [2, 2]
    each = CheckpointTensor("x", array, shape)
    parameter = torch.nn.Parameter(torch.zeros(4))
    other = CheckpointTensor("x", parameter)
    array[0] = 9
    shape[0] = 9
    with torch.no_grad():
        parameter[0] = 9
    assert (each.data[0], each.shape, other.data[0]) == (0, [2, 2], 0)
    weight = WeightTensor("w", array, (4,))
    CheckpointTensor.from_weight_tensor(weight).data[0] = 1
    assert weight.data[0] == 9


def test_tensors_are_equal_if_their_names_shapes_and_bits_are() -> None:
    """The seed: `#[derive(Debug, Clone)] pub struct CheckpointTensor`."""
    each = CheckpointTensor("x", [math.nan, 1, -0.0, 2], [2, 2])
    assert each == CheckpointTensor("x", [math.nan, 1, -0.0, 2], (2, 2))
    assert each == copy.deepcopy(each)
    assert each != CheckpointTensor("y", each.data, [2, 2])
    assert each != CheckpointTensor("x", each.data, [4])
    assert each != CheckpointTensor("x", [math.nan, 1, 0.0, 2], [2, 2])
    assert each != "x"
    assert CheckpointTensor("x", [], []) != CheckpointTensor("x", [1], [])
    assert each.to_weight_tensor() == each.to_weight_tensor()
    assert each.to_weight_tensor() != CheckpointTensor("y", [1]).to_weight_tensor()
    assert read(written(small())).tensors == small().tensors


def test_a_tensor_shows_its_name_its_shape_and_some_of_its_data() -> None:
    each = CheckpointTensor("layer.0.weight", [0.5, 1.5], [2, 1])
    assert repr(each) == "CheckpointTensor('layer.0.weight', [0.5, 1.5], [2, 1])"
    large = CheckpointTensor("x", np.zeros(1_000_000, np.float32))
    assert len(repr(large)) < 200
    assert repr(large).endswith(", [1000000])")


# Errors name the file


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (b"NOPE" + bytes(30), InvalidMagic),
        (file_of(version=9), UnsupportedVersion),
        (file_of('{"a":1}'), MetadataParse),
        (file_of("{}", tensor(b"\xff\xff")), MetadataParse),
        (file_of("{}", tensor("a"))[:-1], TruncatedData),
        (file_of("{}", tensor("a")) + b"x", TrailingBytes),
        (file_of("{}", tensor("x", (), floats(1, 2))), errors.SizeMismatch),
        (file_of('{"standfast.digest":"0"}'), DamagedFile),
    ],
    ids=["magic", "version", "metadata", "name", "cut", "longer", "shape", "digest"],
)
def test_a_file_that_cannot_be_loaded_is_named(
    data: bytes, error: type[StandfastError], tmp_path: Path
) -> None:
    """The seed: "Load a checkpoint from `path`."."""
    path = tmp_path / "model.oxck"
    path.write_bytes(data)
    with pytest.raises(error) as caught:
        Checkpoint.load(path)
    assert str(caught.value).count(str(path)) == 1


def test_a_file_that_cannot_be_saved_is_named_and_left_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "model.oxck"
    small().save(path)
    before = path.read_bytes()
    for wrong in (
        with_tensor(shape=[3]),
        with_tensor(name="n" * 70_000),
        with_tensor(name="\ud800"),
        with_tensor(data=np.zeros(4)),
        Checkpoint(metadata={"step": 3}),  # type: ignore[dict-item]
    ):
        with pytest.raises(StandfastError) as caught:
            wrong.save(path)
        assert str(path) in str(caught.value)
        assert path.read_bytes() == before
