"""Makes the golden files that Standfast itself wrote: `python -m tests.formats.golden.make`.

They stay as they are. A writer that changes gets new files beside them, by new names, so that
whatever was written once is read for ever.
"""

import io
from pathlib import Path

import ml_dtypes
import numpy as np

import standfast
from standfast.oxck import Checkpoint, CheckpointTensor
from tests.formats.builders import Array, flipped, saved

FOLDER = Path(__file__).parent

TRAINER_TEXT = (
    b'{"epoch":0,"global_step":0,"best_val_loss":inf,"best_val_acc":0.000000,"best_epoch":0,'
    b'"learning_rate":nan,"model_name":"my "first" \\model","timestamp":1700000000}'
)
"""What the trainer of the tenzor format writes before its first epoch."""

METADATA = {
    "step": 100,
    "loss": 0.25,
    "note": 'say "hi" \\ back',
    "tags": ["a", None],
    "名": "重み",
}


def tenzor_tensors() -> dict[str, Array]:
    """Tensors of several widths; in this order, those after `mask` are misaligned."""
    return {
        "weight": np.arange(12, dtype=np.float32).reshape(2, 1, 3, 1, 2) - 5,
        "mask": np.array([1, 0, 255], np.uint8),
        "weight.bf16": np.array([1.5, -2, np.inf], ml_dtypes.bfloat16),
        "optim/weight/m": np.array([np.nan, -0.0, 1e-310]),
        "empty": np.zeros((0, 4), np.int16),
        "count": np.array(-7, np.int64),
        "重み": np.array([2**64 - 1], np.uint64),
    }


def oxck_tensors() -> dict[str, Array]:
    """Tensors of several shapes."""
    return {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3) * 0.5,
        "b": np.array([np.nan, -np.inf, -0.0, 1e-40], np.float32),
        "scalar": np.array(7, np.float32),
        "empty": np.zeros((0, 4), np.float32),
        "重み": np.ones((1, 1, 2), np.float32),
    }


def general_tensors() -> dict[str, Array]:
    """What safetensors, torch and npz all hold."""
    return {
        "weight": np.arange(6, dtype=np.float32).reshape(2, 3) * 0.5,
        "mask": np.array([True, False, True]),
        "half": np.array([np.nan, -0.0, 65504], np.float16),
        "psi": np.array([1 - 2j, np.inf], np.complex64),
        "empty": np.zeros((0, 4), np.int16),
        "count": np.array(-7, np.int64),
        "重み": np.array([2**64 - 1], np.uint64),
    }


def general_files() -> dict[str, bytes]:
    """The files of formats that anyone may have, and a snapshot with our extension."""
    with standfast.open(FOLDER / "sunc_u1_2d.sunc") as file:
        files = {"sunc": saved("sunc", dict(file), {**file.metadata, **METADATA})}
    for format in ("safetensors", "torch", "npz"):
        files[format] = saved(format, general_tensors(), METADATA)
    golden = {}
    for format, data in files.items():
        suffix = "pt" if format == "torch" else format
        inside = {"sunc": 200}.get(format, data.find(general_tensors()["half"].tobytes()))
        golden[f"standfast_{format}_extras.{suffix}"] = data
        golden[f"damaged_{format}_tensor.{suffix}"] = flipped(data, inside)
        golden[f"damaged_{format}_metadata.{suffix}"] = flipped(data, data.index(b"say"))
        golden[f"damaged_{format}_cut.{suffix}"] = data[:-1]
    return golden


def golden_files() -> dict[str, bytes]:
    """All files by their names."""
    # Written before tensors were ordered by width: it and what was made of it are only read.
    tenzor = (FOLDER / "standfast_tenzor_extras.tenzor").read_bytes()
    oxck = saved("oxck", oxck_tensors(), METADATA)
    return {
        "standfast_tenzor_aligned.tenzor": saved("tenzor", tenzor_tensors(), METADATA),
        "standfast_tenzor_aligned_trainer.tenzor": saved(
            "tenzor", tenzor_tensors(), TRAINER_TEXT, extras=False
        ),
        "standfast_oxck_extras.oxck": oxck,
        "standfast_oxck_repeated.oxck": repeated(),
        "damaged_tenzor_tensor.tenzor": flipped(tenzor, tenzor.index(b"\1\0\xff", 4096)),
        "damaged_tenzor_name.tenzor": flipped(tenzor, tenzor.index(b"optim/weight/m")),
        "damaged_tenzor_padding.tenzor": flipped(tenzor, 4000),
        "damaged_tenzor_cut.tenzor": tenzor[:-1],
        "damaged_oxck_tensor.oxck": flipped(oxck, oxck.index(b"scalar") + len("scalar") + 12),
        "damaged_oxck_name.oxck": flipped(oxck, oxck.index(b"scalar")),
        "damaged_oxck_padding.oxck": flipped(oxck, 4000),
        "damaged_oxck_cut.oxck": oxck[:-1],
        **general_files(),
    }


def repeated() -> bytes:
    """A checkpoint with digests in which a name stands twice, and a tensor without a shape."""
    checkpoint = Checkpoint(metadata={"step": "3"}, digests=True)
    for values in ([1, 2], [3]):
        checkpoint.add_tensor(CheckpointTensor("twice", values))
    checkpoint.add_tensor(CheckpointTensor("nothing", [], []))
    stream = io.BytesIO()
    checkpoint.write_to(stream)
    return stream.getvalue()


if __name__ == "__main__":
    for name, data in golden_files().items():
        if not (FOLDER / name).exists():
            (FOLDER / name).write_bytes(data)
