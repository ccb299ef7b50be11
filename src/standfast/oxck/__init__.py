"""OXCK checkpoints by the names that users of the original know.

    from standfast.oxck import Checkpoint, CheckpointTensor

    checkpoint = Checkpoint()
    checkpoint.set_metadata("step", "1000")
    checkpoint.add_tensor(CheckpointTensor("layer.0.weight", [0.5] * 6, [2, 3]))
    checkpoint.save("model.oxck")                        # the original's bytes
    step = Checkpoint.load("model.oxck").get_metadata("step")

`standfast.save` and `standfast.load` read and write the same files; only here may two tensors
have one name.
"""

from standfast.oxck.checkpoint import (
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

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CheckpointTensor",
    "InvalidMagic",
    "Io",
    "MetadataParse",
    "NameTooLong",
    "TruncatedData",
    "UnsupportedVersion",
    "WeightTensor",
]
