"""The golden files: what was written once is written again, and is read for ever or never."""

import io
import math

import pytest

import standfast
from standfast import errors
from standfast.oxck import Checkpoint, MetadataParse, TruncatedData
from tests.formats.golden.make import (
    FOLDER,
    METADATA,
    general_tensors,
    golden_files,
    oxck_tensors,
    tenzor_tensors,
)
from tests.formats.oxck.builders import original_read
from tests.formats.tenzor.builders import lookup
from tests.kit.strategies import same_bytes


@pytest.mark.guarantee("G19")
@pytest.mark.parametrize("name", golden_files())
def test_the_writer_still_writes_these_bytes(name):
    assert golden_files()[name] == (FOLDER / name).read_bytes()


ALIGNED = ["optim/weight/m", "count", "重み", "weight", "weight.bf16", "empty", "mask"]

HELD = {
    **{
        f"standfast_{name}": general_tensors()
        for name in ("safetensors_extras.safetensors", "torch_extras.pt", "npz_extras.npz")
    },
    "standfast_oxck_extras.oxck": oxck_tensors(),
    "standfast_tenzor_extras.tenzor": tenzor_tensors(),
    "standfast_tenzor_aligned.tenzor": {name: tenzor_tensors()[name] for name in ALIGNED},
}


@pytest.mark.parametrize("name", HELD)
def test_a_file_holds_what_was_saved(name):
    path, tensors = FOLDER / name, HELD[name]
    assert standfast.verify(path).tensors == len(tensors)
    with standfast.open(path) as file:
        assert (list(file), file.metadata) == (list(tensors), METADATA)
        for each, array in tensors.items():
            assert same_bytes(file[each], array)
            assert file[each].flags.aligned
            assert file.slice(each)[...].flags.aligned
            if path.suffix == ".tenzor":
                assert same_bytes(lookup(path.read_bytes(), each), array)
    if path.suffix == ".oxck":
        strings, originals = original_read(io.BytesIO(path.read_bytes()))
        assert strings["note"] == METADATA["note"]
        found = [(each.name, each.data) for each in originals]
        assert found == [(each, array.tobytes()) for each, array in tensors.items()]


@pytest.mark.parametrize("name", ["trainer", "aligned_trainer"])
def test_a_trainers_file_holds_what_was_saved(name):
    path = FOLDER / f"standfast_tenzor_{name}.tenzor"
    with standfast.open(path, names=list(tenzor_tensors())) as file:
        assert file.metadata["best_val_loss"] == math.inf
        assert math.isnan(file.metadata["learning_rate"])
        assert file.metadata["model_name"] == 'my "first" \\model'
        for each, array in tenzor_tensors().items():
            assert same_bytes(file[each], array)


def test_a_snapshot_holds_what_was_saved():
    path = FOLDER / "standfast_sunc_extras.sunc"
    assert standfast.verify(path).tensors == 5
    found = standfast.diff(FOLDER / "sunc_u1_2d.sunc", path)
    assert (found.same, len(found.changed), set(found.metadata)) == (5, 0, set(METADATA))


@pytest.mark.parametrize("name", ["standfast_oxck_extras.oxck", "standfast_oxck_repeated.oxck"])
def test_a_checkpoint_is_saved_again_byte_for_byte(name, tmp_path):
    checkpoint = Checkpoint.load(FOLDER / name)
    assert checkpoint.digests
    checkpoint.save(tmp_path / "again.oxck")
    assert (tmp_path / "again.oxck").read_bytes() == (FOLDER / name).read_bytes()


DAMAGED: dict[str, type[errors.StandfastError]] = {
    "tenzor_name.tenzor": errors.BadField,
    "tenzor_padding.tenzor": errors.BadField,
    "oxck_name.oxck": errors.IndexMismatch,
    "oxck_padding.oxck": errors.BadField,
    "safetensors_metadata.safetensors": errors.IndexMismatch,
}
OF_CHECKPOINT = {errors.BadField: MetadataParse, errors.TruncatedFile: TruncatedData}


@pytest.mark.parametrize("path", sorted(FOLDER.glob("damaged_*")), ids=lambda path: path.name)
def test_a_damaged_file_is_refused(path):
    _, name = path.name.split("_", 1)
    damage = path.stem.rpartition("_")[2]
    error = DAMAGED.get(name, {"tensor": errors.DigestMismatch}.get(damage, errors.DamagedFile))
    with pytest.raises(error) as refused:
        standfast.verify(path)
    assert type(refused.value) is error or error is errors.DamagedFile
    if path.suffix == ".oxck":
        own = OF_CHECKPOINT.get(type(refused.value), type(refused.value))
        with pytest.raises(own) as refused:
            Checkpoint.load(path)
        assert type(refused.value) is own


WEIGHTS = ["conv1_weight", "conv1_bias"]
FIRST = {
    "oxck_mixed.oxck": None,
    "tenzor_checkpoint.tenzor": [*WEIGHTS, *(f"optim/{name}/v" for name in WEIGHTS)],
}
"""Files of the first implementations, and the names that a file does not hold."""


@pytest.mark.parametrize("name", FIRST)
def test_a_file_of_the_first_implementation_is_converted_to_itself(name, tmp_path):
    first = FOLDER / name
    bare, full = tmp_path / f"bare{first.suffix}", tmp_path / f"full{first.suffix}"
    standfast.convert(first, bare, names=FIRST[name], extras=False)
    assert bare.read_bytes() == first.read_bytes()
    standfast.convert(first, full, names=FIRST[name])
    assert full.read_bytes() != first.read_bytes()
    standfast.convert(full, bare, extras=False, replace=True)
    assert bare.read_bytes() == first.read_bytes()
    with pytest.warns(errors.NotVerified):
        standfast.load(first)
    with pytest.raises(errors.NothingToVerify):
        standfast.verify(first)
