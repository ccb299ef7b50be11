"""The pickle of a `.metadata`: objects of a few known classes, and nothing else."""

import collections
import pathlib
import pickle
from typing import Any

import pytest
import torch
from torch.distributed._shard.sharded_tensor.metadata import TensorProperties as EarlierProperties
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from standfast import errors
from standfast.errors import LimitExceeded, RefusedPickle
from standfast.formats.dcp_metadata import Fields, Key, read_metadata


def some_metadata(**changes: Any) -> Metadata:
    chunk = ChunkStorageMetadata(torch.Size([0, 1]), torch.Size([2, 3]))
    tensor = TensorStorageMetadata(TensorProperties(torch.bfloat16), torch.Size([2, 4]), [chunk])
    fields: dict[str, Any] = {
        "state_dict_metadata": {"w": tensor, "step": BytesStorageMetadata()},
        "planner_data": {"w": ("w",), "step": ("step",)},
        "storage_data": {
            MetadataIndex("w", (0, 1), 3): _StorageInfo("__0_0.distcp", 10, 2000),
            MetadataIndex("step"): _StorageInfo("__0_0.distcp", 2010, 5, ["zstd"]),
        },
        "storage_meta": StorageMeta(pathlib.PurePosixPath("/a/b"), "id"),
        "version": "1.0.0",
    }
    return Metadata(**{**fields, **changes})


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_field_is_read(protocol):
    top = read_metadata(pickle.dumps(some_metadata(), protocol))
    described = top.dict("state_dict_metadata")
    assert list(described) == ["w", "step"]
    tensor = Fields(described["w"], "TensorStorageMetadata", "w")
    assert tensor.get("size") == (2, 4)
    properties = Fields(tensor.get("properties"), "TensorProperties", "w")
    found = [properties.get(field) for field in ("dtype", "layout")]
    assert found == ["torch.bfloat16", "torch.strided"]
    (chunk,) = tensor.get("chunks")
    box = Fields(chunk, "ChunkStorageMetadata", "w")
    assert (box.get("offsets"), box.get("sizes")) == ((0, 1), (2, 3))
    assert described["step"].kind == "BytesStorageMetadata"
    assert top.get("planner_data") == {"w": ("w",), "step": ("step",)}
    items = top.dict("storage_data")
    assert list(items) == [Key("w", (0, 1)), Key("step", None)]
    first, second = (Fields(info, "_StorageInfo", "w") for info in items.values())
    place = [first.get(field) for field in ("relative_path", "offset", "length")]
    assert place == ["__0_0.distcp", 10, 2000]
    assert first.get("transform_descriptors") is None
    assert second.get("transform_descriptors") == ["zstd"]
    assert top.get("version") == "1.0.0"


def test_a_folder_may_have_been_saved_to_any_path():
    posix, windows = pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("c:/d")
    for path in ("text", None, pathlib.Path("/x/y"), posix, windows):
        data = pickle.dumps(some_metadata(storage_meta=StorageMeta(path)))
        assert read_metadata(data).get("version") == "1.0.0"


def test_names_of_earlier_and_later_releases_are_known():
    earlier = TensorStorageMetadata(EarlierProperties(torch.float64), torch.Size([]), [])  # type: ignore[arg-type]
    data = pickle.dumps(some_metadata(state_dict_metadata=collections.OrderedDict(w=earlier)))
    assert b"_shard.sharded_tensor.metadata" in data
    assert b"OrderedDict" in data
    found = read_metadata(data).dict("state_dict_metadata")["w"]
    properties = Fields(found, "TensorStorageMetadata", "w").get("properties")
    assert properties.fields == {"dtype": "torch.float64", "layout": "torch.strided"}
    # Python 3.13 alone has its paths in another module.
    old = pickle.dumps(some_metadata(), 2)
    new = old.replace(b"cpathlib\n", b"cpathlib._local\n")
    assert new != old
    assert read_metadata(new).get("version") == "1.0.0"


class Called:
    """Gives a pickle that calls something."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.made = function, arguments

    def __reduce__(self) -> Any:
        return self.made


REFUSED = {
    "eval": (eval, "print(1)"),
    "getattr": (getattr, "a", "upper"),
    "getattr of pathlib": (getattr, pathlib.PurePosixPath("a"), "exists"),
    "set": (set, [1]),
    "bytes of torch": (torch.storage._load_from_bytes, b""),
    "open": (open, "/etc/passwd"),
    "device": (torch.device, "cpu"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_name_outside_of_the_table_is_refused_by_name(case, protocol):
    function = REFUSED[case][0]
    data = pickle.dumps(some_metadata(version=Called(*REFUSED[case])), protocol)
    with pytest.raises(RefusedPickle, match=rf"\.{function.__name__}\b"):
        read_metadata(data)


GLOBAL = b"ctorch.distributed.checkpoint."
CLASS = b"\x80\x02" + GLOBAL + b"metadata\n"
INDEX = GLOBAL + b"metadata\nMetadataIndex\n)\x81}(X\x03\0\0\0fqnX\x01\0\0\0wub"
ROWS = {
    errors.TruncatedFile: {"empty": b"", "cut": pickle.dumps(some_metadata())[:-1]},
    errors.TrailingBytes: {"more": pickle.dumps(some_metadata()) + b"x"},
    errors.BadField: {
        "plain value": pickle.dumps(3),
        "another object": pickle.dumps(StorageMeta()),
        "the class": CLASS + b"Metadata\n.",
        "unknown field": pickle.dumps(some_metadata()).replace(b"version", b"verzion"),
        "size of text": b"\x80\x02ctorch\nSize\nX\x01\0\0\0a\x85\x85R.",
        "negative length": b"\x80\x02ctorch\nSize\nJ\xff\xff\xff\xff\x85\x85R.",
        "index without a name": b"\x80\x02}" + GLOBAL + b"metadata\nMetadataIndex\n)\x81K\x01s.",
        "deep": b"\x80\x02" + b"]" * 20_000 + b"a" * 19_999 + b".",
    },
    errors.BadPickle: {
        "arguments": CLASS + b"Metadata\nK\x01\x85\x81.",
        "state twice": CLASS + b"Metadata\n)\x81}b}b.",
        "state of a list": b"\x80\x02]}b.",
        "no state": CLASS + b"Metadata\n)\x81]b.",
        "properties": CLASS + b"TensorProperties\n)\x81)b.",
        "memory format": CLASS + b"_MEM_FORMAT_ENCODING\nK\x03\x85R.",
        "size of itself": b"\x80\x02ctorch\nSize\n](h\0e\x85R.",
        "number as a key": b"\x80\x02}K\x01K\x01s.",
        "set": b"\x80\x04\x8f(K\x01\x90.",
        "storage": b"\x80\x02)Q.",
        "call of a value": b"\x80\x02K\x01)R.",
        "call of a dtype": b"\x80\x02ctorch\nfloat32\n)R.",
        "path of numbers": b"\x80\x02cpathlib\nPosixPath\nK\x01\x85R.",
    },
    errors.LimitExceeded: {
        "many dimensions": b"\x80\x02ctorch\nSize\n(" + 65 * b"K\x01" + b"t\x85R.",
        "huge length": b"\x80\x02ctorch\nSize\n\x8a\x08" + b"\xff" * 7 + b"\x7f\x85\x85R.",
    },
    errors.DuplicateKey: {"key twice": b"\x80\x02}(" + INDEX + b"K\x01" + INDEX + b"K\x02u."},
    errors.RefusedPickle: {
        "long name": b"\x80\x04X" + b"\0\0\1\0" + 65536 * b"a" + b"\x8c\1b\x93."
    },
}


def test_a_long_file_is_refused_before_it_is_read(seams):
    data = pickle.dumps(some_metadata())
    seams.bound("bytes of DCP metadata", len(data))
    assert read_metadata(data).get("version") == "1.0.0"
    seams.bound("bytes of DCP metadata", len(data) - 1)
    with pytest.raises(LimitExceeded):
        read_metadata(data)
