"""What must hold for an input that is a real file, through all verbs."""

import warnings
from pathlib import Path
from random import Random
from typing import Any

import standfast
from standfast import errors
from standfast.files.layout import Index
from standfast.formats import format_named
from standfast.formats.reader import Options
from tests.fuzz import properties
from tests.fuzz.properties import broken_tensors, damaged_tensors, expecting, read
from tests.fuzz.target import Broken, Outcome, require


def check_on_disk(data: bytes, path: Path, options: Options, random: Random) -> str:
    """Open, load, verify and convert a file; returns the name of its refusal, or nothing."""
    path.write_bytes(data)
    expected = read(data, str(path), options)
    try:
        with standfast.open(path, verify=options.verify, tensors_only=options.tensors_only) as file:
            require(isinstance(expected, Index), "open takes what read_index refuses")
            assert isinstance(expected, Index)
            require(list(file) == list(expected.rows), "open sees other names")
    except errors.StandfastError as error:
        properties.check_message(str(error))
        require(type(error) is type(expected), "open and read_index refuse it by two errors")
        named = str(error).startswith(f"{path}: ") or isinstance(error, errors.FileError)
        require(named, "the message does not name the file")
        if isinstance(error, errors.UnknownFormat):
            require(path.suffix == ".bin", "the suffix was not looked at")
        return type(error).__name__
    assert isinstance(expected, Index)
    damaged, broken = damaged_tensors(data, expected, options), broken_tensors(data, expected)
    _check_verify(data, path, read(data, str(path), Options()))
    for mapped in (True, False):
        _check_load(data, path, expected, options, mapped)
        _check_slices(data, path, expected, options, mapped, random)
    _check_convert(data, path, expected, options)
    return errors.DigestMismatch.__name__ if damaged or broken else ""


def _check_verify(data: bytes, path: Path, outcome: Outcome) -> None:
    if not isinstance(outcome, Index):
        try:
            standfast.verify(path)
        except errors.StandfastError as error:
            require(type(error) is type(outcome), f"verify and read_index differ: {error}")
            return
        raise Broken("verify takes what read_index refuses")
    try:
        with expecting(damaged_tensors(data, outcome, Options()), broken_tensors(data, outcome)):
            standfast.verify(path)
    except errors.NothingToVerify:
        require(outcome.digests is None, "there were digests")
    else:
        require(outcome.digests is not None, "there was nothing to verify")


def _check_load(data: bytes, path: Path, index: Index, options: Options, mapped: bool) -> None:
    with expecting(damaged_tensors(data, index, options), broken_tensors(data, index)):
        arrays = standfast.load(
            path, verify=options.verify, mapped=mapped, tensors_only=options.tensors_only
        )
        require(list(arrays) == list(index.rows), "load sees other names")
        for name, row in index.rows.items():
            require(arrays[name].flags.writeable, "an array cannot be written to")
            properties.check_array(
                arrays[name], properties.expected_array(data, index, row), index.spec(row)
            )


def _check_slices(
    data: bytes, path: Path, index: Index, options: Options, mapped: bool, random: Random
) -> None:
    damaged, broken = damaged_tensors(data, index, options), broken_tensors(data, index)
    with standfast.open(
        path, verify=options.verify, mapped=mapped, tensors_only=options.tensors_only
    ) as file:
        for name, row in index.rows.items():
            wrong = (name,) if name in damaged else ()
            with expecting(wrong, [name] if name in broken else []):
                array = file[name]
                slices = (_random_slice(random) for _ in range(min(array.ndim, 3)))
                # The ellipsis keeps a scalar an array, whose bytes NumPy does not touch.
                picked: Any = (*slices, ...)
                part, whole = file.slice(name)[picked], array[picked]
                require(part.shape == whole.shape, "a slice has another shape")
                require(part.flags.aligned, "a slice is not aligned")
                if index.spec(row).nbytes <= properties.LARGEST_ARRAY:
                    require(part.tobytes() == whole.tobytes(), "a slice has other bytes")


def _random_slice(random: Random) -> slice:
    ends = (None, None, 0, 1, 2, -1, 5)
    return slice(random.choice(ends), random.choice(ends), random.choice((None, 1, 2, -1)))


def _check_convert(data: bytes, path: Path, index: Index, options: Options) -> None:
    """To the same format: nothing may differ, and damage may not be carried over."""
    sound = read(data, str(path), Options(tensors_only=options.tensors_only))
    if not isinstance(sound, Index):
        return
    if sum(index.spec(row).nbytes for row in index.rows.values()) > properties.LARGEST_ARRAY:
        return
    target = path.with_name(f"converted{format_named(index.format).SUFFIXES[0]}")
    damaged, broken = damaged_tensors(data, sound, Options()), broken_tensors(data, sound)
    with expecting(damaged, broken, names_all=False):
        try:
            standfast.convert(
                path, target, cast=True, tensors_only=options.tensors_only, replace=True
            )
        except (errors.BadName, errors.UnsupportedShape):
            return
        names = list(index.rows)
        differences = standfast.diff(path, target, names=names, tensors_only=options.tensors_only)
        require(not differences.changed, "the converted file has other tensors")
        require(not differences.added and not differences.removed, "it has other names")
        with warnings.catch_warnings():
            warnings.simplefilter("error", errors.NotVerified)
            standfast.load(target)
