"""`standfast.oxck`: a checkpoint by the original's names, with its rules and its errors."""

import copy
import errno
import io
import math
import weakref
from typing import Any

import numpy as np
import pytest
import torch

import standfast
from standfast import errors, oxck
from standfast.oxck import Checkpoint, CheckpointTensor, WeightTensor
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


def test_a_new_checkpoint_is_empty():
    checkpoint = Checkpoint()
    assert (checkpoint.version, checkpoint.metadata, checkpoint.tensors) == (1, {}, [])
    assert (checkpoint.num_params(), checkpoint.total_bytes()) == (0, 0)
    assert written(checkpoint) == file_of("{}")


def test_metadata_is_set_and_got():
    checkpoint = small()
    checkpoint.set_metadata("step", "4")
    assert (checkpoint.get_metadata("step"), checkpoint.get_metadata("loss")) == ("4", None)


def test_the_first_tensor_of_a_name_is_found():
    checkpoint = small()
    checkpoint.add_tensor(CheckpointTensor("w", [9]))
    assert checkpoint.get_tensor("w") is checkpoint.tensors[0]
    assert checkpoint.get_tensor("missing") is None
    with pytest.raises(errors.RefusedTensor):
        checkpoint.add_tensor(np.ones(2))  # type: ignore[arg-type]
    assert len(checkpoint.tensors) == 3


@pytest.mark.parametrize(
    ("shape", "elements", "count"),
    [([2, 3, 4], 24, 24), ([5], 5, 5), ([0], 0, 0), ([2, 0, 3], 0, 0), ([], 1, 0), ([], 0, 0)],
)
def test_elements_are_counted_by_the_shape(shape, elements, count):
    each = CheckpointTensor("x", [0.0] * elements, shape)
    assert (each.element_count(), each.size_bytes()) == (count, 4 * count)
    checkpoint = Checkpoint(tensors=[each, CheckpointTensor("y", [1, 2]), each])
    assert checkpoint.num_params() == 2 * count + 2
    assert checkpoint.total_bytes() == 8 * count + 8
    assert len(written(checkpoint)) == 30 + 2 * (17 + 8 * len(shape) + 4 * elements) + 33


def test_weights_are_copied_to_and_fro():
    weight = WeightTensor("w", np.arange(6, dtype=np.float32), (2, 3))
    each = CheckpointTensor.from_weight_tensor(weight)
    assert (each.name, each.shape, each.data.tolist()) == ("w", [2, 3], [0, 1, 2, 3, 4, 5])
    each.data[0] = 9
    back = each.to_weight_tensor()
    assert (back.name, back.shape, back.data[0], weight.data[0]) == ("w", (2, 3), 9, 0)
    back.data[0] = 5
    assert each.data[0] == 9


def test_the_golden_file_is_saved_again_byte_for_byte(tmp_path):
    checkpoint = Checkpoint.load(FIRST)
    assert (checkpoint.version, checkpoint.digests) == (1, False)
    assert (checkpoint.num_params(), checkpoint.total_bytes()) == (31, 124)
    assert all(each.data.flags.aligned and each.data.flags.writeable for each in checkpoint.tensors)
    checkpoint.save(tmp_path / "again.oxck")
    assert (tmp_path / "again.oxck").read_bytes() == FIRST.read_bytes()
    assert written(read(FIRST.read_bytes())) == FIRST.read_bytes()


def test_the_golden_file_is_built_by_hand_byte_for_byte():
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


@pytest.mark.parametrize(
    "text",
    [
        *("", " {} ", '{"b":"1" "a":"2",,}', '{"a":"\\n\n"}', '{"a":"1","a":"2"}'),
        '{"a":"x","standfast.json":"junk"}',
    ],
)
def test_metadata_is_saved_as_it_was_loaded_until_it_changes(text, tmp_path):
    data = file_of(text, tensor("x"), tensor("x", (), b""), tensor("", (0, 7), b""))
    (tmp_path / "old.oxck").write_bytes(data)
    checkpoint = Checkpoint.load(tmp_path / "old.oxck")
    before = dict(checkpoint.metadata)
    checkpoint.save(tmp_path / "new.oxck")
    assert (tmp_path / "new.oxck").read_bytes() == written(read(data)) == data
    checkpoint.metadata = {"b": "3", "a": "1"}
    assert written(checkpoint).startswith(file_of('{"a":"1","b":"3"}', count=3))
    checkpoint.metadata = before
    assert written(checkpoint) == data


@pytest.mark.parametrize("digests", [False, True])
def test_repeated_names_are_kept_here_and_refused_there(digests, tmp_path):
    path, checkpoint = tmp_path / "twice.oxck", small()
    checkpoint.add_tensor(CheckpointTensor("w", [8, 9]))
    checkpoint.digests = digests
    checkpoint.save(path)
    again = Checkpoint.load(path)
    assert [each.name for each in again.tensors] == ["w", "b", "w"]
    assert again.tensors[2].data.tolist() == [8, 9]
    with pytest.raises(errors.DuplicateKey, match=r"'w'.*standfast\.oxck\.Checkpoint"):
        standfast.open(path)


def test_trailing_bytes_of_a_file_are_refused_and_of_a_stream_left_alone(tmp_path):
    data = written(small())
    (tmp_path / "long.oxck").write_bytes(data + b"more")
    with pytest.raises(errors.TrailingBytes, match=r"long\.oxck"):
        Checkpoint.load(tmp_path / "long.oxck")
    stream = io.BytesIO(data + b"more")
    assert len(Checkpoint.read_from(stream).tensors) == 2
    assert stream.read() == b"more"


def test_a_stream_is_not_flushed_or_closed():
    class Watched(io.BytesIO):
        def flush(self) -> None:
            raise AssertionError

    stream = Watched()
    small().write_to(stream)
    assert not stream.closed


def test_a_checkpoint_has_digests_if_it_is_told_to(tmp_path):
    path, checkpoint = tmp_path / "sealed.oxck", small()
    checkpoint.digests = True
    checkpoint.save(path)
    assert standfast.verify(path).tensors == 2
    data = path.read_bytes()
    arrays = {each.name: each.data.reshape(each.shape) for each in checkpoint.tensors}
    assert data == written(checkpoint) == saved(arrays, {"step": "3"}) == written(read(data))
    strings, tensors = original_read(io.BytesIO(data))
    assert strings["step"] == "3"
    assert [each.name for each in tensors] == ["w", "b"]
    again = read(data)
    again.digests = False
    assert written(again) == written(small())


def test_a_file_with_digests_that_the_original_saved_again_loads_unverified(tmp_path):
    checkpoint = small()
    checkpoint.digests = True
    data = written(checkpoint)
    text, _, tensors = data[28:].partition(b"}" + b" " * 64)
    path = tmp_path / "again.oxck"
    path.write_bytes(file_of(text + b"}", tensors.lstrip(b" "), count=len(checkpoint.tensors)))
    with pytest.raises(errors.IndexMismatch, match="verify=False"):
        Checkpoint.load(path)
    assert list(standfast.load(path, verify=False)) == [each.name for each in checkpoint.tensors]


def test_a_checkpoint_that_changed_gets_fresh_digests(tmp_path):
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


def test_a_tensor_that_is_removed_does_not_stay_in_memory():
    checkpoint = read(saved({"w": np.ones(1_000_000, np.float32)}))
    elements = weakref.ref(checkpoint.tensors.pop().data)
    assert elements() is None


def test_the_six_errors_are_ours_too():
    assert {kind: kind.__mro__[2] for kind in oxck.CheckpointError.__subclasses__()} == {
        oxck.Io: errors.FileError,
        oxck.InvalidMagic: errors.BadHeader,
        oxck.UnsupportedVersion: errors.UnsupportedFile,
        oxck.MetadataParse: errors.BadField,
        oxck.TruncatedData: errors.TruncatedFile,
        oxck.NameTooLong: errors.BadName,
    }


CUTS = [(0, 4, 0), (6, 4, 2), (8, 20, 0), (27, 20, 19), (29, 2, 1), (58, 4, 3)]
REFUSED: list[tuple[bytes, type[errors.StandfastError], dict[str, Any]]] = [
    (file_of(magic=b"OXC\xff"), oxck.InvalidMagic, {"got": b"OXC\xff"}),
    (b"NOPE", oxck.InvalidMagic, {"got": b"NOPE"}),
    *((file_of(version=n), oxck.UnsupportedVersion, {"version": n}) for n in (0, 2, 2**32 - 1)),
    *((file_of(text), oxck.MetadataParse, {}) for text in ('{"a":1}', '{"a":"\\u0041"}', b"\xff")),
    (file_of("{}", tensor(b"\xff\xff")), oxck.MetadataParse, {}),
    *(
        (
            file_of("{}", tensor("a"))[:length],
            oxck.TruncatedData,
            {"expected": expected, "got": got},
        )
        for length, expected, got in CUTS
    ),
    (file_of("{}", tensor("x", (), floats(1, 2))), errors.SizeMismatch, {}),
    (file_of('{"standfast.digest":"0"}'), errors.DamagedFile, {}),
]


@pytest.mark.parametrize(("data", "error", "fields"), REFUSED)
def test_what_is_refused_says_why_and_in_which_file(data, error, fields, tmp_path):
    path = tmp_path / "model.oxck"
    path.write_bytes(data)
    for use in (lambda: read(data), lambda: Checkpoint.load(path)):
        with pytest.raises(error) as refused:
            use()
        assert {name: getattr(refused.value, name) for name in fields} == fields
        if isinstance(refused.value, oxck.MetadataParse):
            assert refused.value.reason in str(refused.value)
    assert str(refused.value).count(str(path)) == 1


@pytest.mark.parametrize(("name", "length"), [("n" * 65_536, 65_536), ("é" * 40_000, 80_000)])
def test_a_name_too_long_says_how_long(name, length, tmp_path):
    checkpoint = Checkpoint(tensors=[CheckpointTensor(name, [1])])
    for use in (written, lambda each: each.save(tmp_path / "long.oxck")):
        with pytest.raises(oxck.NameTooLong) as refused:
            use(checkpoint)
        assert refused.value.length == length
    assert list(tmp_path.iterdir()) == []
    checkpoint.tensors[0].name = longest = "n" * 65_535
    assert read(written(checkpoint)).tensors[0].name == longest


def test_files_that_cannot_be_read_or_written_are_io_errors(tmp_path):
    class Full(io.BytesIO):
        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    for attempt, number in (
        (lambda: Checkpoint.load(tmp_path / "missing.oxck"), errno.ENOENT),
        (lambda: Checkpoint.load(tmp_path), errno.EINVAL),
        (lambda: small().save(tmp_path / "missing" / "x.oxck"), errno.ENOENT),
        (lambda: small().write_to(Full()), errno.ENOSPC),
    ):
        with pytest.raises(oxck.Io) as refused:
            attempt()
        assert refused.value.errno == number


def with_tensor(**changes: Any) -> Checkpoint:
    each = CheckpointTensor("x", [1, 2, 3, 4], [2, 2])
    for attribute, value in changes.items():
        setattr(each, attribute, value)
    return Checkpoint(tensors=[each])


SHAPES = [[], [2, 3], [-2, -2], [2.0, 2.0], [1] * 63 + [2, 2]]


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        *(({"shape": shape}, errors.UnsupportedShape) for shape in SHAPES),
        ({"shape": [2**61, 0], "data": np.zeros(0, "f4")}, errors.UnsupportedShape),
        *(({"data": data}, errors.UnsupportedDType) for data in (np.zeros(4), [1, 2, 3, 4])),
        *(({"name": name}, errors.BadName) for name in ("\ud800", 3)),
    ],
)
def test_a_tensor_that_would_not_come_back_is_refused(changes, error):
    with pytest.raises(error) as refused:
        written(with_tensor(**changes))
    assert repr(changes.get("name", "x")) in str(refused.value)


def test_data_that_was_replaced_is_written():
    scattered = np.arange(8, dtype=np.float32).reshape(4, 2)[:, 0]
    assert read(written(with_tensor(data=scattered))).tensors[0].data.tolist() == [0, 2, 4, 6]
    assert read(written(with_tensor(data=np.arange(4, dtype=">f4")))).tensors[0].data[3] == 3
    square = np.arange(4, dtype=np.float32).reshape(2, 2)
    assert read(written(with_tensor(data=square, shape=(2, 2)))).tensors[0].shape == [2, 2]


@pytest.mark.parametrize("digests", [True, False])
def test_metadata_that_would_not_come_back_is_refused(digests):
    own = {"standfast.digest": "0" * 64}, {"standfast.chunks": ""}, {"standfast.json": '["a"]'}
    for metadata in ({"step": 3}, {3: "step"}, {"a": "\ud800"}, *own, {"a": "x"} | own[2]):
        with pytest.raises(errors.RefusedMetadata):
            written(Checkpoint(metadata=metadata, digests=digests))


def test_float32_of_any_byte_order_framework_and_layout_becomes_row_major():
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


OTHER_DTYPES: list[Any] = [
    *(torch.tensor([2**53 + 1]), torch.tensor([1e300], dtype=torch.float64)),
    *(torch.tensor([1.5], dtype=torch.bfloat16), torch.tensor([1.5], dtype=torch.float16)),
    *(torch.tensor([1 + 2j]), torch.tensor([True]), np.array([1.5]), np.array([1.5], np.float16)),
    *(np.array([1], np.int32), np.array([1 + 2j], np.complex64)),
]
OTHER_VALUES: list[Any] = [
    *(None, [None], [2**24 + 1], [0.5, 2**53 + 1], [2**200], [1e300], [-1e300], [1e-60]),
    *([1 + 2j], ["1.5"], [[1.0], [2.0, 3.0]], torch.nn.Linear(1, 1).weight.grad, {"w": 1.0}),
]
NOT_NUMBERS: list[Any] = [[torch.nn.Parameter(torch.ones(2))], [np.ones((2, 3)), np.ones((2, 2))]]


@pytest.mark.parametrize(
    ("given", "shape", "error"),
    [
        *((given, None, errors.UnsupportedDType) for given in OTHER_DTYPES),
        *((given, None, errors.RefusedTensor) for given in OTHER_VALUES),
        *((given, None, errors.UnsupportedTensor) for given in NOT_NUMBERS),
        *(([1, 2, 3, 4], shape, errors.UnsupportedShape) for shape in (5, [2.0, 2.0], ["2"])),
    ],
)
def test_what_float32_cannot_hold_is_refused(given, shape, error):
    with pytest.raises(error, match=r"'layer\.0'"):
        CheckpointTensor("layer.0", given, shape)


def test_a_list_of_numbers_is_rounded_as_a_literal_is():
    each = CheckpointTensor("x", [0.1, 2**24, -(2**24), 3.4028235e38, math.inf, -0.0, 1e-45])
    assert each.data.tobytes() == floats(0.1, 2**24, -(2**24), 3.4028235e38, math.inf, -0.0, 1e-45)
    assert math.isnan(CheckpointTensor("x", [math.nan]).data[0])


def test_a_cast_is_made_if_it_is_allowed_but_drops_no_imaginary_part():
    for given, expected in (
        (torch.tensor([2**53 + 1]), 2.0**53),
        (torch.tensor([1e300], dtype=torch.float64), math.inf),
        (torch.tensor([1.5], dtype=torch.bfloat16), 1.5),
        (np.array([1.5], ">f8"), 1.5),
        ([2**24 + 1], 2.0**24),
        ([1e300], math.inf),
    ):
        assert CheckpointTensor("x", given, allow_cast=True).data.tolist() == [expected]
    for refused in (np.array([1 + 2j]), torch.tensor([1 + 2j]), [1 + 2j], None):
        with pytest.raises(errors.RefusedTensor, match="'x'"):
            CheckpointTensor("x", refused, allow_cast=True)


def test_a_tensor_owns_its_data_and_its_shape():
    array, shape = np.zeros(4, np.float32), [2, 2]
    parameter = torch.nn.Parameter(torch.zeros(4))
    each, other = CheckpointTensor("x", array, shape), CheckpointTensor("x", parameter)
    array[0] = shape[0] = 9
    parameter.data[0] = 9
    assert (each.data[0], each.shape, other.data[0]) == (0, [2, 2], 0)


def test_tensors_are_equal_if_their_names_shapes_and_bits_are():
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


def test_a_tensor_shows_its_name_its_shape_and_some_of_its_data():
    each = CheckpointTensor("layer.0.weight", [0.5, 1.5], [2, 1])
    assert repr(each) == "CheckpointTensor('layer.0.weight', [0.5, 1.5], [2, 1])"
    assert len(repr(CheckpointTensor("x", np.zeros(1_000_000, np.float32)))) < 200


def test_a_file_that_cannot_be_saved_is_named_and_left_as_it_was(tmp_path):
    path = tmp_path / "model.oxck"
    small().save(path)
    before = path.read_bytes()
    for wrong in (
        with_tensor(shape=[3]),
        with_tensor(name="\ud800"),
        Checkpoint(metadata={"step": 3}),
    ):
        with pytest.raises(errors.StandfastError) as caught:
            wrong.save(path)
        assert str(path) in str(caught.value)
        assert path.read_bytes() == before
